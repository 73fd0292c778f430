"""A server that is killed while it writes its part of a checkpoint."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.e2e.kit import wait_until

from .kit import check_completed
from .modes import MODES

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(170)]
TABLES = Path(__file__).parent / "tables.py"
TABLE = (
    "model._target_=tables.build",
    "data._target_=tables.load",
    "strategy.sparse=rows",
    "strategy.gather_bytes=1000000",
)


@pytest.mark.parametrize("mode", [MODES["ps"], MODES["ps_between"]], ids=str)
def test_a_server_killed_in_the_middle_of_its_shard(bench, start, mode):
    shutil.copy(TABLES, bench.folder)
    faulty = start(mode, *TABLE, epochs=8)
    stopped = _stopped_while_writing(faulty)
    os.kill(stopped, signal.SIGKILL)
    result = check_completed(faulty)
    assert (result["restarts"], result["workers_lost"]) == (1, 0)
    assert 0 < result["resumed_from_step"] < result["global_step"]
    [lost] = faulty.events_of("task_lost")
    assert (lost["task"], lost["exit_code"]) == ("ps-0", -signal.SIGKILL)


def _stopped_while_writing(faulty):
    """Stop the server where its file of a checkpoint is there in part; return its process id.

    Not in the first checkpoint, so that there is one to go on from.
    """
    checkpoints, found = faulty.run.path / "checkpoints", []

    def is_stopped():
        assert not faulty.has_ended(), "no checkpoint was met in the middle of its writing"
        if not list(checkpoints.glob("step-*/checkpoint.json")):
            return False
        for part in checkpoints.glob(".step-*/shard-*"):
            server = faulty.command.tasks(faulty.run.path)["ps-0"]
            os.kill(server, signal.SIGSTOP)
            if part.parent.exists() and not list(part.parent.glob("*.index")):
                found.append(server)
                return True
            os.kill(server, signal.SIGCONT)
        return False

    wait_until(is_stopped, 120, "a server writes")
    return found[0]
