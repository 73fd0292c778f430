"""What the environment says about this machine's accelerators."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

_NVIDIA_FOLDER = Path("/proc/driver/nvidia/gpus")
_PROBE_TIMEOUT_S = 5.0


def count_accelerators(environ: Mapping[str, str], nvidia_folder: Path = _NVIDIA_FOLDER) -> int:
    """Return how many GPUs a task on this machine would see, without asking TensorFlow.

    Args:
        environ: The process environment; CUDA_VISIBLE_DEVICES is honoured.
        nvidia_folder: Where the driver lists its GPUs.
    """
    present = _count_present(nvidia_folder)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not present:
        return present
    num_visible = 0
    for entry in visible.split(","):  # As in CUDA, an invalid entry hides all that follow.
        name = entry.strip()
        if not ((name.isdigit() and int(name) < present) or name.startswith(("GPU-", "MIG-"))):
            break
        num_visible += 1
    return num_visible


def _count_present(nvidia_folder: Path) -> int:
    if nvidia_folder.is_dir():
        return sum(1 for _ in nvidia_folder.iterdir())
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())
