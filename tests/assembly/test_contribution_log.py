"""Samples of who contributed what, and the counts of result.json."""

import json

from kdist.assembly.contribution_log import ContributionLog
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import TaskType
from kdist.cluster.traits import traits_of
from kdist.distribute.servers.contributions import Contribution, ContributionFacts
from kdist.records.events import EventLog, read_events

SPEC = ClusterSpec(
    {TaskType.CHIEF: ("a:1",), TaskType.WORKER: ("b:1", "c:1"), TaskType.PS: ("d:1",)}
)


class Counted:
    """Stands for the first server: every reading finds more."""

    def __init__(self, *totals):
        self.totals = list(totals)

    def read(self):
        total = self.totals.pop(0)
        return ContributionFacts(
            num_taken=total,
            num_dropped=2,
            mean_staleness=0.5,
            max_staleness=1,
            histogram={0: total - 1, 1: 1},
            by_worker={0: total - 1, 1: 1},
            recent=tuple(Contribution(i, i + 100, i % 2, 0) for i in range(total)),
        )


class Samples:
    """Stands for the report."""

    def __init__(self):
        self.taken = []

    def contributions(self, sample):
        self.taken.append(sample.updates)


def make(tmp_path, counted, update="async"):
    times = iter(range(100))
    samples = Samples()
    log = ContributionLog(
        counted,
        traits_of("ps", "in_graph", update),
        SPEC,
        events=EventLog(tmp_path / "events.jsonl"),
        report=samples,
        clock=lambda: next(times),
    )
    return log, samples


def test_samples_show_the_newest_contributions_in_order(tmp_path):
    log, samples = make(tmp_path, Counted(3, 3, 20))
    for _ in range(3):
        log.after_stretch()
    first, last = read_events(tmp_path / "events.jsonl")
    assert first["event"] == "steps_contributed"
    assert first["tasks"] == ["worker-0", "worker-1", "worker-0"]
    assert first["shares"] == [100, 101, 102]
    assert last["updates"] == list(range(12, 20))
    assert samples.taken == [(0, 1, 2), tuple(range(12, 20))]


def test_entries_of_the_result(tmp_path):
    log, _ = make(tmp_path, Counted(4))
    assert log.entries()["staleness"] == {"mean": 0.0, "maximum": 0, "histogram": {}}
    log.finish()
    assert json.loads(json.dumps(log.entries())) == {
        "stale_gradients_dropped": 2,
        "staleness": {"mean": 0.5, "maximum": 1, "histogram": {"0": 3, "1": 1}},
        "contributions": {"worker-0": 3, "worker-1": 1},
    }
    assert "staleness" not in make(tmp_path, Counted(), "sync")[0].entries()
    assert make(tmp_path, None)[0].entries() == {}
