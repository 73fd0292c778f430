"""Train synchronously while workers are lost: `lose_sync_workers.py <addresses as JSON>`."""

from tests.ps.programs.losing import SlowTraining, ask, connected, end_with

STEPS = 60
# The steps of a second stretch, which begins when the requests are fulfilled.
STEPS_AFTER = 20


def train(trainings, num_shares: int, *requests: str) -> dict:
    """Train while the requests are fulfilled in the middle of it; return what it came to."""
    strategy = {"update": "sync", "replicas_to_aggregate": num_shares}
    training = SlowTraining(trainings, STEPS, strategy=strategy)
    asked = training.ask_after(15, *requests)
    first = STEPS - STEPS_AFTER
    training.train(0, first)
    asked.join()
    training.train(first, STEPS_AFTER)
    facts = training.store.tallies.contributions.read()
    shares = {"shares": facts.num_taken, "workers": sorted(facts.by_worker)}
    return training.outcome() | shares


def main() -> None:
    trainings = connected()
    needed = train(trainings, 2, "kill worker-1", "start worker-1")
    backup = train(trainings, 1, "kill worker-0")
    ask("start worker-0")
    end_with({"needed": needed, "backup": backup})


if __name__ == "__main__":
    main()
