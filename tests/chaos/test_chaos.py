"""Random kills and stops of random tasks: every run ends completed, with every update in it.

A failed test names its seed; `KDIST_CHAOS_SEED=<seed>` repeats what was done, and after which
epoch. `pytest tests/chaos -m "" -s` shows the table, `-k multiworker` runs those of one mode.
"""

import random
import signal
from dataclasses import dataclass, field

import pytest

from tests.faults.kit import STEPS_PER_EPOCH, FaultyRun, check_completed
from tests.faults.modes import MODES

pytestmark = [pytest.mark.cluster]
EPOCHS = 60
FEW_EPOCHS = 24  # In the short version: a fault hits one of the first sixteen.
NUM_RUNS = 20
OFTEN = ("multiworker", "ps", "ps_between_sync")  # tests/e2e/test_resume.py kills in the others.
KINDS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)


@dataclass
class Row:
    """What the runs of one mode came to."""

    mode: str
    num_faults: int = 0
    num_runs: int = 0
    num_completed: int = 0
    num_updates_lost: int = 0
    recovery_s: list[float] = field(default_factory=list)

    @property
    def text(self):
        mean = sum(self.recovery_s) / len(self.recovery_s) if self.recovery_s else float("nan")
        return (
            f"{self.mode:<16}{self.num_faults:>7}{self.num_runs:>6}{self.num_completed:>11}"
            f"{self.num_updates_lost:>14}{mean:>17.1f} s"
        )


HEAD = (
    f"{'mode':<16}{'faults':>7}{'runs':>6}{'completed':>11}{'updates lost':>14}{'to recover':>19}"
)


def plan_faults(choice, mode, num_faults, *, epochs=EPOCHS, kinds=KINDS):
    """Return (epoch, task, signal) for each fault, in the order of epochs."""
    struck = sorted(choice.sample(range(2, epochs * 2 // 3), num_faults))
    return [(epoch, choice.choice(mode.tasks), choice.choice(kinds)) for epoch in struck]


def torment(bench, mode, faults, row, *, epochs=EPOCHS):
    """Run a mode through its faults; fill in its row of the table."""
    row.num_runs += 1
    faulty = FaultyRun(bench, mode, "cluster.max_restarts=10", epochs=epochs)
    for epoch, task, number in faults:
        if not faulty.wait_for_epochs(epoch):
            break  # Where others go on without a frozen task, they may be done.
        struck_s = faulty.strike(task, number)
        row.num_faults += 1
        took_s = faulty.wait_until_recovered(struck_s)
        if took_s is not None:
            row.recovery_s.append(took_s)
    result = faulty.wait_for_the_end()
    row.num_completed += result["status"] == "completed"
    row.num_updates_lost += epochs * STEPS_PER_EPOCH - result["global_step"]
    check_completed(faulty)


def mode_of(index):
    """Return the mode of a run: each in turn."""
    return list(MODES)[index % len(MODES)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name",
    [
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow)
        for name in MODES
        if name != "mirrored"
    ],
)
def test_one_run_with_a_fault(bench, chaos_seed, name):
    mode, row = MODES[name], Row(name)
    choice = random.Random(f"{chaos_seed} {name}")
    faults = plan_faults(choice, mode, 1, epochs=FEW_EPOCHS, kinds=(signal.SIGKILL,))
    print(f"seed {chaos_seed}: {faults}")
    torment(bench, mode, faults, row, epochs=FEW_EPOCHS)
    print(f"{HEAD}\n{row.text}")


@pytest.fixture(scope="module")
def table():
    """Return the row of each mode; what the runs came to is shown after the last one."""
    rows = {name: Row(name) for name in MODES}
    yield rows
    print("\n".join(["", HEAD, *(row.text for row in rows.values() if row.num_runs)]))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("index", range(NUM_RUNS), ids=lambda index: f"{index}-{mode_of(index)}")
def test_a_run_survives(bench, table, chaos_seed, index):
    name = mode_of(index)
    choice = random.Random(f"{chaos_seed} {index}")
    faults = plan_faults(choice, MODES[name], choice.randint(1, 3))
    print(f"\nchaos {index + 1} of {NUM_RUNS}, seed {chaos_seed}: {name} {faults}")
    torment(bench, MODES[name], faults, table[name])
