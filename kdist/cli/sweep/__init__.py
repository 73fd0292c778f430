"""Sweeps (`-m`): many runs from one command, each as if it had been started alone."""

import sys
from collections.abc import MutableMapping

from kdist.cli.arguments import CommandLine
from kdist.cli.reporting import report, say
from kdist.cli.sweep.composing import GRID, SweepPlan, planned_sweep
from kdist.cli.sweep.grid import grid
from kdist.cli.sweep.jobs import NOT_STARTED
from kdist.cli.sweep.sweep import Sweep, SweepEnded
from kdist.cli.sweep.table import render_table
from kdist.cluster.tf_config import VARIABLE
from kdist.errors import ConfigError, KdistError
from kdist.records.result import COMPLETED
from kdist.records.sweep_folder import SweepFolder

_FAILED = 1


def run_sweep(line: CommandLine, environ: MutableMapping[str, str]) -> int:
    """Run every job of a sweep; what becomes of one ends no other.

    Returns:
        0; 1 if any job failed; 130 or 143 if a signal ended the sweep.

    Raises:
        KdistError: If some job cannot run; then none has started.
    """
    if VARIABLE in environ:
        raise ConfigError(
            f"A sweep starts tasks of its own. Received: -m with {VARIABLE} set. Unset it, or "
            "start each run by itself."
        )
    with planned_sweep(line) as plan:
        folder = SweepFolder.claim(plan.folder, make_unique=not plan.names_folder)
        try:
            plan.settle_on(folder.path)
            sweep = Sweep(plan, folder, environ)
            exit_code = _run(plan, sweep)
            _tell(sweep, folder)
        finally:
            folder.release()
    return exit_code


def _run(plan: SweepPlan, sweep: Sweep) -> int:
    try:
        if plan.sweeper == GRID:
            sweep.launch(grid(plan), 0, is_all=True)
        else:
            from kdist.cli.sweep.plugins import run_sweeper

            run_sweeper(plan, sweep)
    except SweepEnded:
        pass
    except KdistError as error:
        outcomes = [outcome for _, outcome in sweep.rows.values()]
        if all(outcome.status == NOT_STARTED for outcome in outcomes):
            raise
        if any(outcome.value is not None for outcome in outcomes):
            report(error, is_debug=bool(plan.tree.get("debug")))
            return _FAILED
    if sweep.stop_signal is not None:
        return 128 + sweep.stop_signal
    is_done = all(outcome.status == COMPLETED for _, outcome in sweep.rows.values())
    return 0 if is_done else _FAILED


def _tell(sweep: Sweep, folder: SweepFolder) -> None:
    """Print the table of all jobs, and draw it."""
    rows = list(sweep.rows.values())
    trains = any(job.trains for job, _ in rows)
    if trains or any(outcome.status != COMPLETED for _, outcome in rows):
        say(f"\n{render_table(rows, folder.path)}")
    if not trains:
        return
    from kdist.cli.sweep.figure import draw_sweep

    try:
        draw_sweep(rows, folder.sweep_png)
    except Exception as error:
        say(f"Warning: sweep.png was not drawn: {error}\n", sys.stderr)
