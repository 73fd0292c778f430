"""Train while workers are lost and come back: `lose_workers.py <addresses as JSON>`."""

from tests.ps.programs.losing import SlowTraining, ask, connected, end_with


def main() -> None:
    training = SlowTraining(connected(), 120)
    asked = training.ask_after(25, "kill worker-1")
    training.train(0, 60, steps_per_call=10)
    asked.join()
    ask("start worker-1")
    asked = training.ask_after(75, "kill worker-0", "start worker-0")
    training.train(60, 60, steps_per_call=10)
    asked.join()
    end_with(training.outcome())


if __name__ == "__main__":
    main()
