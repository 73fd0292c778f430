"""A sweep: batches of jobs, composed and checked before they start, and their outcomes."""

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import MutableMapping, Sequence

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf, open_dict

from kdist.cli.reporting import say
from kdist.cli.resolution import yaml_without_secrets
from kdist.cli.run import PreparedRun, prepare
from kdist.cli.sweep.composing import SweepPlan, compose_job
from kdist.cli.sweep.devices import VARIABLE, DevicePool, visible_devices
from kdist.cli.sweep.earlier import Earlier, look_at
from kdist.cli.sweep.job_run import JobRun
from kdist.cli.sweep.jobs import NOT_STARTED, Outcome, SweepJob, outcome_of_run
from kdist.cli.sweep.pool import CarryOut, JobPool
from kdist.cli.sweep.table import describe, render_csv
from kdist.errors import ConfigError, KdistError
from kdist.launch.accelerators import count_accelerators
from kdist.launch.plan import FindPorts
from kdist.launch.ports import PortLeases, find_free_ports
from kdist.records.atomic import write_text_atomically
from kdist.records.run_folder import refuse_used
from kdist.records.sweep_folder import SweepFolder

_MANY_JOBS = 20  # From here on the check takes seconds, and says so.
_SAY_EVERY = 100  # Jobs.


class SweepEnded(Exception):
    """No other job may start: a signal came, or one failed and `sweep.fail_fast` is set."""


class Sweep:
    """Runs batches of jobs and keeps what became of each."""

    def __init__(
        self, plan: SweepPlan, folder: SweepFolder, environ: MutableMapping[str, str]
    ) -> None:
        """Remember what to do.

        Args:
            plan: The sweep.
            folder: Its folder.
            environ: The process environment; tasks inherit what is set in it.

        Raises:
            ConfigError: If its settings do not fit this machine.
        """
        num_at_once = plan.num_at_once(os.cpu_count() or 1)
        num_accelerators = count_accelerators(environ)
        per_job = plan.settings.devices_per_job
        if per_job is None and num_at_once > 1:
            per_job = 1
        self._plan = plan
        self._folder = folder
        self._environ = environ
        self._is_side_by_side = num_at_once > 1
        self._devices = DevicePool(visible_devices(environ, num_accelerators), per_job)
        self._ports = PortLeases()
        self._earlier: dict[int, Earlier] = {}
        self._taken: dict[int, contextlib.ExitStack] = {}  # Devices and ports, by job.
        self._num_jobs: int | None = None
        self._pool = JobPool(
            num_at_once=num_at_once,
            start=self._start,
            on_end=self._take,
            fail_fast=plan.settings.fail_fast,
        )
        self.rows: dict[int, tuple[SweepJob, Outcome]] = {}

    @property
    def stop_signal(self) -> int | None:
        """The signal that ended the sweep, if one did."""
        return self._pool.stop_signal

    def launch(
        self, batch: Sequence[Sequence[str]], first_number: int, *, is_all: bool = False
    ) -> list[Outcome]:
        """Run a batch of jobs; return their outcomes in the same order.

        Args:
            batch: The overrides of each job.
            first_number: The number of the first one.
            is_all: Whether the sweep has no other jobs.

        Raises:
            ConfigError: If one of the jobs cannot run; then none of them has started.
            SweepEnded: If no other job may start.
        """
        jobs = self._checked(batch, first_number)
        self._num_jobs = len(jobs) if is_all else None
        self.rows |= {job.number: (job, Outcome(status=NOT_STARTED)) for job in jobs}
        self._pool.run(jobs)
        if self._pool.is_ending:
            raise SweepEnded
        return [self.rows[job.number][1] for job in jobs]

    def _checked(self, batch: Sequence[Sequence[str]], first_number: int) -> list[SweepJob]:
        """Compose a batch, and refuse it if some job cannot run, before the first one starts."""
        jobs: list[SweepJob] = []
        refused: list[tuple[SweepJob, KdistError]] = []
        num_devices = self._devices.most_for_one_job()
        for index, overrides in enumerate(batch):
            if len(batch) >= _MANY_JOBS and index % _SAY_EVERY == 0:
                done = f", {index} done" if index else ""
                say(f"Checking {len(batch)} jobs before the first starts{done}.\n", sys.stderr)
            job = compose_job(self._plan, overrides, first_number + index, self._folder.path)
            jobs.append(job)
            try:
                self._look_at(job, num_devices)
            except KdistError as error:
                refused.append((job, error))
        if refused:
            job, error = refused[0]
            more = f" ({len(refused)} of {len(jobs)} jobs cannot run.)" if len(refused) > 1 else ""
            named = f"Job {job.number}, {job.label}," if job.label else f"Job {job.number}"
            raise type(error)(f"{named} cannot run: {error}{more}") from error
        folders = [job.composition.run_dir for job in jobs if job.trains]
        if len(set(folders)) < len(folders):
            raise ConfigError(
                "Each job needs a folder of its own. Received: hydra.sweep.subdir="
                f"{folders[0].relative_to(self._folder.path)} for several jobs."
            )
        return jobs

    def _look_at(self, job: SweepJob, num_devices: int) -> None:
        """Find out whether a job can run, and what is in its folder."""
        _refuse_search(job)
        self._prepare(job, num_devices, find_free_ports)
        if job.trains:
            if job.composition.tree.get("resume") == "never":
                refuse_used(job.composition.run_dir)
            asked = yaml.safe_load(yaml_without_secrets(job.composition.tree))
            self._earlier[job.number] = look_at(job.composition.run_dir, asked)

    def _prepare(self, job: SweepJob, num_devices: int, find_ports: FindPorts) -> PreparedRun:
        HydraConfig.instance().set_config(job.hydra)
        return prepare(
            job.composition,
            self._environ,
            None,
            started_at_s=time.time(),
            num_accelerators=num_devices,
            find_ports=find_ports,
        )

    def _start(self, job: SweepJob) -> CarryOut | Outcome | None:
        """Prepare a job for its thread; see `JobPool`."""
        earlier = self._earlier.get(job.number, Earlier.NOTHING)
        if earlier is Earlier.COMPLETED:
            say(f"Job {job.number} was completed before: {job.composition.run_dir}\n")
            return outcome_of_run(job.composition.run_dir, metric=self._plan.settings.metric)
        devices = self._devices.take()
        if devices is None:
            return None
        total = "" if self._num_jobs is None else f" of {self._num_jobs}"
        goes_on = ", which goes on" if earlier is Earlier.UNFINISHED else ""
        say(f"Job {job.number}{total}{goes_on}: {job.label}\n")
        with contextlib.ExitStack() as given_back:
            given_back.callback(self._devices.give_back, devices)
            if earlier is Earlier.UNFINISHED:
                job = _continuing(job)
            count = self._devices.count(devices)
            run = JobRun(
                job=job,
                prepared=self._prepare(job, count, self._ports.find),
                metric=self._plan.settings.metric,
                is_side_by_side=self._is_side_by_side,
                environment={**self._environ, VARIABLE: ",".join(devices)} if devices else None,
            )
            given_back.callback(self._ports.give_back, run.ports())
            self._taken[job.number] = given_back.pop_all()
        return run.carry_out

    def _take(self, job: SweepJob, outcome: Outcome) -> None:
        """Keep an outcome, tell the user and sweep.csv."""
        self._taken.pop(job.number, contextlib.ExitStack()).close()
        self.rows[job.number] = (job, outcome)
        if outcome.error and not outcome.is_told:
            say(f"Job {job.number} failed: {outcome.error}\n", sys.stderr)
        elif self._is_side_by_side:
            say(f"{describe(job, outcome)}\n")
        if any(job.trains for job, _ in self.rows.values()):
            write_text_atomically(self._folder.sweep_csv, render_csv(list(self.rows.values())))


def _refuse_search(job: SweepJob) -> None:
    tuner = OmegaConf.select(job.composition.tree, "tuner.name")
    if tuner is not None:
        raise ConfigError(
            f"A search makes its own runs and is no job of a sweep. Received: tuner={tuner} "
            "with -m. Start each search by itself."
        )


def _continuing(job: SweepJob) -> SweepJob:
    """Return the job as one that goes on from the checkpoints in its folder."""
    tree = job.composition.tree.copy()
    with open_dict(tree):
        tree.resume = "auto"
    return dataclasses.replace(job, composition=dataclasses.replace(job.composition, tree=tree))
