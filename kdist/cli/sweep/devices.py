"""This machine's accelerators, dealt out to jobs that run side by side."""

from collections.abc import Mapping, Sequence

from kdist.errors import ConfigError

VARIABLE = "CUDA_VISIBLE_DEVICES"


class DevicePool:
    """Deals accelerators to jobs, none to two of them at a time."""

    def __init__(self, devices: Sequence[str], per_job: int | None) -> None:
        """Deal out `per_job` of `devices` to each job; all jobs see all of them if it is `None`.

        Raises:
            ConfigError: If there are too few for a single job.
        """
        if per_job is not None and devices and per_job > len(devices):
            raise ConfigError(
                "sweep.devices_per_job must not be more than this machine has. Received: "
                f"{per_job}, {len(devices)} accelerator(s)."
            )
        self._free = list(devices)
        self._num_devices = len(devices)
        self._per_job = per_job if devices else None

    def take(self) -> tuple[str, ...] | None:
        """Return the devices of one job (none, where nothing is dealt out); `None`: wait."""
        if self._per_job is None:
            return ()
        if len(self._free) < self._per_job:
            return None
        taken, self._free = self._free[: self._per_job], self._free[self._per_job :]
        return tuple(taken)

    def give_back(self, devices: Sequence[str]) -> None:
        """Take back what `take` returned."""
        self._free = [*devices, *self._free]

    def most_for_one_job(self) -> int:
        """Return how many accelerators a job will see."""
        return self._num_devices if self._per_job is None else self._per_job

    def count(self, devices: Sequence[str]) -> int:
        """Return how many accelerators a job sees that got these devices."""
        return self._num_devices if self._per_job is None else len(devices)


def visible_devices(environ: Mapping[str, str], num_accelerators: int) -> list[str]:
    """Return this machine's accelerators as CUDA_VISIBLE_DEVICES names them."""
    visible = environ.get(VARIABLE)
    if visible is None:
        return [str(index) for index in range(num_accelerators)]
    return [entry.strip() for entry in visible.split(",")][:num_accelerators]
