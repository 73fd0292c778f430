"""Where a worker that is its own client sits in its cluster."""

from collections.abc import Mapping
from dataclasses import dataclass

from kdist.distribute.shares import WorkerShare


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a worker sits.

    Attributes:
        share: Its index among all workers, and their number.
        target: The address of its own TensorFlow server, such as "grpc://127.0.0.1:2222".
        servers: Addresses ("host:port") of the parameter servers by name.
        device: Its device, such as "/job:worker/replica:0/task:0/device:CPU:0".
        compute_device: Where it computes, such as "/device:GPU:0"; `None` for `device`.
        container: Keeps the variables of several trainings on the same servers apart.
    """

    share: WorkerShare
    target: str
    servers: Mapping[str, str]
    device: str
    compute_device: str | None = None
    container: str = "kdist"

    @property
    def device_filters(self) -> list[str]:
        """Return the devices that its session needs: not those of other workers."""
        return ["/job:ps", self.device.rpartition("/device")[0].replace("/replica:0", "")]
