"""Sweeps whose jobs are played by a function: no process starts, the run folders are real."""

import csv
import threading
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from kdist.launch.local import LocalRun
from kdist.launch.policy import Cause
from kdist.records.result import blank_result, write_result

SMALL = ("data=synthetic", "epochs=1", "strategy=single")


@dataclass
class Jobs:
    """What the sweep asked for, in the order in which jobs started."""

    play: object = None
    requests: list = field(default_factory=list)
    environments: list = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run_tasks(self, requests, *, signals, environment, stdout=None, stderr=None):
        with self._lock:
            self.requests.append(requests)
            self.environments.append(environment)
        done = self.play(requests[0], signals) if self.play else None
        return done or ended(requests[0])

    def values(self, *keys):
        """Return what each started job had under a dotted key."""
        found = []
        for requests in self.requests:
            value = requests[0].config
            for key in keys:
                value = value[key]
            found.append(value)
        return found


def ended(request, exit_code=0, value=None, **result):
    """Write the files of a run that has ended, and return what the launcher is told."""
    if request.config["command"] != "train":
        return LocalRun(exit_code=exit_code, cause=None, run_dir=None, warnings=())
    folder = Path(request.run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(request.config_yaml)
    value = request.config["optimizer"]["learning_rate"] if value is None else value
    best = {"monitor": "val_loss", "value": value, "epoch": 1}
    status = {0: "completed", 130: "stopped"}.get(exit_code, "failed")
    content = blank_result(
        status=status, best=best, seconds={"total": 2.5, "startup": 1.0, "train": 1.0}, **result
    )
    write_result(folder / "result.json", content)
    (folder / "metrics.csv").write_text(
        f"epoch,global_step,seconds,examples,loss,val_accuracy,learning_rate\n"
        f"1,7,0.1,400,{value},{value * 2},0.1\n2,14,0.1,400,{value},{value},0.1\n"
    )
    cause = None
    if exit_code == 1:
        task = request.task
        cause = Cause(task=task, type="ValueError", message="no such width", exit_code=1)
    return LocalRun(exit_code=exit_code, cause=cause, run_dir=folder, warnings=())


def saved(folder):
    return yaml.safe_load((Path(folder) / "config.yaml").read_text())


def rows(folder="swept"):
    """Return the rows of a sweep's table."""
    with (Path(folder) / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))
