"""result.json: what a run came to, written whole at the end, also after a failure."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kdist.errors import ConfigError
from kdist.records.atomic import write_text_atomically
from kdist.records.plain import to_plain

COMPLETED = "completed"
STOPPED = "stopped"
FAILED = "failed"

# Every key that readers may rely on, in the order written, as a run that did nothing has them.
_BLANK: Mapping[str, Any] = {
    "status": FAILED,
    "error": None,
    "strategy": None,
    "replication": None,
    "update": None,
    "cluster": None,
    "num_replicas": None,
    "global_batch_size": None,
    "epochs": None,
    "steps_per_epoch": None,
    "batches_seen": 0,
    "global_step": 0,
    "examples_seen": 0,
    "metrics": {},
    "best": None,
    "seconds": {"total": None, "startup": None, "train": None},
    "steps_per_second": None,
    "examples_per_second": None,
    "resumed_from_step": None,
    "restarts": 0,
    "workers_lost": 0,
    "warnings": [],
    "run_dir": None,
    "versions": {},
}


def blank_result(**known: Any) -> dict[str, Any]:
    """Return a result with every key of the contract, and what is known filled in."""
    return {**to_plain(_BLANK)[0], **known}


def write_result(path: Path | str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Write result.json whole, and return what was written.

    NaN and infinities become null, and an entry of `warnings` names each of them.

    Raises:
        EnvironmentFault: If the file cannot be written; an older one is still whole then.
    """
    plain, notes = to_plain(result)
    if notes:
        nulls = [f"{note}; written as null" for note in notes]
        plain["warnings"] = [*(plain.get("warnings") or []), *nulls]
    write_text_atomically(Path(path), json.dumps(plain, indent=2, ensure_ascii=False) + "\n")
    return plain


def read_result(path: Path | str) -> dict[str, Any]:
    """Return the content of a result.json.

    Raises:
        ConfigError: If there is none, or it is no result.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            f"There is no result of a run here. Received: {path}. Name the folder of a run that "
            "has ended."
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"This result cannot be read: {error}. Received: {path}.") from error
    if not isinstance(content, dict) or "status" not in content:
        raise ConfigError(f"This is no result of a run (no `status` in it). Received: {path}.")
    return content
