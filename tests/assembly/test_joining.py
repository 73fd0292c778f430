"""A task that nobody calls: an error, unless the run is finished without it."""

import pytest

from kdist import config as kdist_config
from kdist.assembly.task import join
from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.errors import TaskTimeoutError
from kdist.launch.request import TaskRequest
from kdist.records.result import COMPLETED, STOPPED, blank_result, write_result


class NobodyCalls:
    def __init__(self, is_chief):
        self.is_chief = is_chief

    def join(self):
        raise TaskTimeoutError("nobody called")


def worker(run_dir):
    return TaskRequest(
        config={"epochs": 3},
        config_yaml="epochs: 3\n",
        typed_keys=(),
        spec=ClusterSpec({TaskType.WORKER: ("a:1", "b:1")}),
        task=Task(TaskType.WORKER, 1),
        run_dir=str(run_dir),
        may_rename_run_dir=False,
        is_local=False,
    )


@pytest.mark.parametrize(
    ("status", "epochs", "is_chief", "has_work"),
    [
        (COMPLETED, 3, False, False),
        (COMPLETED, 2, False, None),  # It was to go on.
        (STOPPED, 3, False, None),
        (None, 3, False, None),
        (COMPLETED, 3, True, None),
    ],
)
def test_a_worker_that_comes_too_late(status, epochs, is_chief, has_work, tmp_path, capsys):
    if status is not None:
        (tmp_path / "config.yaml").write_text(f"epochs: {epochs}\n")
        content = blank_result(status=status, epochs=epochs, steps_per_epoch=10)
        write_result(tmp_path / "result.json", content)
        (tmp_path / "checkpoints").mkdir()
    request, config = worker(tmp_path), kdist_config.load({"epochs": 3})
    if has_work is None:
        with pytest.raises(TaskTimeoutError, match="nobody called"):
            join(NobodyCalls(is_chief), request, config)
    else:
        assert join(NobodyCalls(is_chief), request, config) is has_work
        assert "is finished" in capsys.readouterr().out
