"""What a search leaves in its folder: search.csv, search.png, best.yaml, result.json, the model."""

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kdist.config.rules import HYPERBAND
from kdist.config.schema import Config
from kdist.errors import KdistError
from kdist.records.atomic import write_text_atomically
from kdist.records.result import blank_result, read_result, write_result
from kdist.records.run_folder import RunFolder
from kdist.tuning.objective import Objective
from kdist.tuning.orders import space_of
from kdist.tuning.picture import draw_search
from kdist.tuning.table import render_csv
from kdist.tuning.trials import FAILED, PRUNED, RUNNING, SearchState, Trial

_RESUME_KEYS = ("resume", "resume_force")


class SearchResults:
    """Keeps the files of a search up to date."""

    def __init__(
        self,
        folder: RunFolder,
        config: Config,
        content: Mapping[str, Any],
        state: SearchState,
        objective: Objective,
    ) -> None:
        """Write into `folder` what `state` tells.

        Args:
            folder: The search's.
            config: Its configuration.
            content: The same in plain containers.
            state: What has happened; changes as the search goes on.
            objective: What trials are compared by.
        """
        self._folder = folder
        self._config = config
        self._content = content
        self._state = state
        self._objective = objective

    def update(self) -> None:
        """Write what changes with every trial that ends.

        Raises:
            EnvironmentFault: If a file cannot be written.
        """
        path = self._folder.path
        write_text_atomically(path / "search.csv", render_csv(self._state, self._objective))
        best = self._state.best(self._objective)
        run_dir = best.best_run_dir(self._objective) if best else None
        if best is not None and run_dir is not None:
            self._write_best(best, Path(run_dir))
        if self._config.tuner.keep_checkpoints == "best":
            self._drop_checkpoints(best, is_over=self._state.over is not None)

    def conclude(self, *, status: str, seconds: float, error: BaseException | None = None) -> None:
        """Write everything, at the end of the search or of this stretch of it.

        Args:
            status: completed, stopped or failed.
            seconds: How long this stretch took.
            error: Why it failed.

        Raises:
            EnvironmentFault: If a file cannot be written.
        """
        self.update()
        space, picture = space_of(self._config), self._folder.path / "search.png"
        draw_search(self._state, self._objective, space, picture)
        best = self._state.best(self._objective)
        run_dir = best.best_run_dir(self._objective) if best else None
        known: dict[str, Any] = {}
        if run_dir is not None:
            with contextlib.suppress(KdistError):
                known = _result_of(Path(run_dir))
        known |= {
            "status": status,
            "error": None
            if error is None
            else {"type": type(error).__name__, "message": str(error), "task": "search"},
            "run_dir": str(self._folder.path),
            "seconds": {"total": round(seconds, 3), "startup": None, "train": None},
            "search": self._facts(best, run_dir),
        }
        write_result(self._folder.result_json, blank_result(**known))

    def _facts(self, best: Trial | None, run_dir: str | None) -> dict[str, Any]:
        state = self._state
        statuses = [trial.status for trial in state.trials.values()]
        return {
            "tuner": self._config.tuner.name,
            "objective": self._objective.name,
            "direction": self._objective.direction,
            "trials": len(statuses),
            "failed": statuses.count(FAILED),
            "pruned": statuses.count(PRUNED),
            "running": statuses.count(RUNNING),
            "best": None
            if best is None
            else {
                "trial": best.id,
                "value": best.score,
                "epoch": best.best_epoch,
                "values": best.values,
                "run_dir": run_dir,
            },
        }

    def _write_best(self, best: Trial, run_dir: Path) -> None:
        """Write best.yaml, and link the model of that run."""
        folder = self._folder.path
        config_yaml = run_dir / "config.yaml"
        if not config_yaml.is_file():  # On another machine.
            return
        content = yaml.safe_load(config_yaml.read_text(encoding="utf-8"))
        for key in _RESUME_KEYS:  # A repetition trains all epochs in one go.
            if key in content:
                content[key] = self._content.get(key)
        score = f"{self._objective.name} {best.score!r} at epoch {best.best_epoch}"
        head = (
            f"# Trial {best.id}: {score}.\n"
            f"# Repeat it: python -m kdist --config-dir {folder} --config-name best\n"
        )
        text = head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        write_text_atomically(folder / "best.yaml", text)
        model = run_dir / "model.keras"
        if model.is_file():
            _link(self._folder.model_keras, Path(os.path.relpath(model, folder)))

    def _drop_checkpoints(self, best: Trial | None, *, is_over: bool) -> None:
        """Remove the checkpoints of trials that nobody goes on from any more."""
        for trial in droppable(self._state, best, is_over=is_over, tuner=self._config.tuner.name):
            for run_dir in (*trial.failed_dirs, *(e.run_dir for e in trial.executions.values())):
                shutil.rmtree(RunFolder(Path(run_dir)).checkpoints, ignore_errors=True)


def droppable(
    state: SearchState, best: Trial | None, *, is_over: bool, tuner: str | None
) -> list[Trial]:
    """Return the trials whose checkpoints are not needed.

    The best one's stay. While hyperband goes on, so do those of trials that no ended one has gone
    on from: it may still choose them.
    """
    ended = [trial for trial in state.trials.values() if trial.status != RUNNING]
    followed = {trial.parent for trial in ended}
    needed = {trial.parent for trial in state.with_status(RUNNING)}
    return [
        trial
        for trial in ended
        if trial is not best and trial.id not in needed
        if is_over or tuner != HYPERBAND or trial.id in followed or trial.status == FAILED
    ]


def _result_of(run_dir: Path) -> dict[str, Any]:
    """Return the result of a run, whose folder may have been moved since.

    Raises:
        ConfigError: If there is none.
    """
    result = read_result(run_dir / "result.json")
    best = result.get("best") or {}
    checkpoint, before = best.get("checkpoint"), result.get("run_dir")
    if checkpoint and before and Path(checkpoint).is_relative_to(before):
        moved = run_dir / Path(checkpoint).relative_to(before)
        result["best"] = {**best, "checkpoint": str(moved)}
    return result


def _link(link: Path, target: Path) -> None:
    """Make a symbolic link, in the place of one that is there."""
    if link.is_symlink() and Path(os.readlink(link)) == target:
        return
    unfinished = link.with_name(f".{link.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        unfinished.unlink(missing_ok=True)
        unfinished.symlink_to(target)
        os.replace(unfinished, link)
