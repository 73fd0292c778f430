"""The TF_CONFIG format: who this process is, and who else takes part.

The only module that knows the format. Every fault becomes one line that names TF_CONFIG, the
key and the value, before TensorFlow sees it.
"""

import difflib
import ipaddress
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import Task, TaskType
from kdist.errors import ConfigError

VARIABLE = "TF_CONFIG"

# What schedulers add beside `cluster` and `task`; none of it changes who takes part.
_IGNORED_KEYS = ("environment", "job", "model_dir", "rpc_layer")
_IGNORED_TASK_KEYS = ("cloud", "trial")
# Names of this machine for itself: of two tasks there, only one can have the port.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MAX_SHOWN = 160


@dataclass(frozen=True)
class Membership:
    """This process's place in a cluster."""

    spec: ClusterSpec
    task: Task


def decode(environ: Mapping[str, str]) -> Membership | None:
    """Return this process's place in the cluster, or `None` where TF_CONFIG is not set.

    Args:
        environ: The process environment.

    Raises:
        ConfigError: If TF_CONFIG is set to anything but a usable cluster and task.
    """
    raw = environ.get(VARIABLE)
    if raw is None:
        return None
    try:
        return _decode(_parse(raw))
    except RecursionError as error:
        raise ConfigError(
            f"{VARIABLE} is nested too deeply to be read. Received: {_shown(raw)}"
        ) from error


def encode(spec: ClusterSpec, task: Task) -> str:
    """Return the TF_CONFIG of one task; `decode` reads it back (evaluators' addresses aside)."""
    return json.dumps(
        {"cluster": spec.as_dict(), "task": {"type": str(task.type), "index": task.index}}
    )


def _parse(raw: str) -> dict[str, Any]:
    if not raw.strip():
        raise ConfigError(
            f"{VARIABLE} is set, but empty. Received: {raw!r}. Describe the cluster and the task "
            f"in it, or unset it (`unset {VARIABLE}`) to train without one."
        )
    try:
        content = json.loads(raw, object_pairs_hook=_without_doubles)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{VARIABLE} is not valid JSON (column {error.colno}: {error.msg}); was it cut off, or "
            f"its quotes lost? Received: {_shown(raw)}"
        ) from error
    except ConfigError:
        raise
    except ValueError as error:  # A number of thousands of digits.
        raise ConfigError(f"{VARIABLE} cannot be read: {error}. Received: {_shown(raw)}") from error
    if not isinstance(content, dict):
        raise ConfigError(
            f'{VARIABLE} must be an object with the keys "cluster" and "task". '
            f"Received: {_shown(raw)}"
        )
    return content


def _without_doubles(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of the JSON; of a key that is there twice, json would keep the last."""
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ConfigError(
                f"{VARIABLE}: {json.dumps(name)} stands twice in one object; write it once, with "
                f"all that belongs to it. Received: {_shown(json.dumps(content[name]))} and "
                f"{_shown(json.dumps(value))}"
            )
        content[name] = value
    return content


def _decode(content: Mapping[str, Any]) -> Membership:
    _refuse_unknown("", content, ("cluster", "task"), _IGNORED_KEYS)
    if content.get("rpc_layer", "grpc") != "grpc":
        raise _fault("rpc_layer", 'must be "grpc"', content["rpc_layer"])
    spec = _decode_cluster(content)
    return Membership(spec, _decode_task(content, spec))


def _decode_cluster(content: Mapping[str, Any]) -> ClusterSpec:
    _require("", content, ("cluster", "task"))
    cluster = content["cluster"]
    if not isinstance(cluster, dict) or not cluster:
        raise _fault("cluster", 'must map task types to lists of "host:port" addresses', cluster)
    owners: dict[tuple[str, int], Task] = {}
    addresses: dict[TaskType, tuple[str, ...]] = {}
    for name, listed in cluster.items():
        key = f"cluster.{name}"
        task_type = _task_type(key, name)
        if not isinstance(listed, list):
            raise _fault(key, 'must be a list of "host:port" addresses', listed)
        for index, address in enumerate(listed):
            place = _read_address(f"{key}[{index}]", address)
            owner = owners.setdefault(place, Task(task_type, index))
            if owner != Task(task_type, index):
                raise _fault(
                    f"{key}[{index}]",
                    f"is also the address of {owner} ({cluster[str(owner.type)][owner.index]}); "
                    "give each task its own",
                    address,
                )
        if task_type is TaskType.CHIEF and len(listed) > 1:
            raise _fault(key, "must hold one address: there is one chief", listed)
        if listed:
            addresses[task_type] = tuple(listed)
    if TaskType.CHIEF not in addresses and TaskType.WORKER not in addresses:
        raise _fault("cluster", "must hold a chief or at least one worker", cluster)
    return ClusterSpec(addresses)


def _decode_task(content: Mapping[str, Any], spec: ClusterSpec) -> Task:
    task = content["task"]
    if not isinstance(task, dict):
        raise _fault("task", 'must say who this is, as in {"type": "worker", "index": 0}', task)
    _refuse_unknown("task.", task, ("type", "index"), _IGNORED_TASK_KEYS)
    _require("task.", task, ("type", "index"))
    task_type = _task_type("task.type", task["type"])
    index = task["index"]
    if isinstance(index, bool) or not isinstance(index, int):
        raise _fault("task.index", "must be a whole number (without quotes)", index)
    num_tasks = spec.num(task_type)
    if task_type is TaskType.EVALUATOR and not num_tasks:
        num_tasks = index + 1  # Schedulers leave evaluators out of the cluster.
    elif not num_tasks:
        raise _fault(
            "task.type", f"is not listed in cluster ({', '.join(spec.as_dict())})", task_type
        )
    if not 0 <= index < num_tasks:
        raise _fault(
            "task.index",
            f"is out of range: cluster.{task_type} lists {num_tasks} address(es)",
            index,
        )
    return Task(task_type, index)


def _task_type(key: str, name: Any) -> TaskType:
    known = [str(kind) for kind in TaskType]
    if name in known:
        return TaskType(name)
    if name == "master":
        raise _fault(key, 'is the old name of the chief; write "chief"', name)
    raise _fault(key, f"must be one of {', '.join(known)}{_guess(name, known)}", name)


def _read_address(key: str, address: Any) -> tuple[str, int]:
    """Return host and port of a "host:port", the same for all spellings of one address.

    Any host is allowed (dashes, dots, underscores, [::1]). Names are not looked up: who resolves
    them to what is known to their machines only.
    """
    if not isinstance(address, str):
        raise _fault(key, 'must be a "host:port" string', address)
    host, _, port = address.rpartition(":")
    if not host or any(mark in address for mark in "/ \t\n"):
        raise _fault(key, 'must be "host:port", with no scheme or path', address)
    if not (re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        raise _fault(key, "must end in a port from 1 to 65535", address)
    host = host.lower()
    if ":" in host or "[" in host:
        host = _read_ipv6(key, host, address)
    return "localhost" if host in _LOOPBACK else host, int(port)


def _read_ipv6(key: str, host: str, address: str) -> str:
    example = 'must have an IPv6 address in brackets, as in "[::1]:2222"'
    if not (host.startswith("[") and host.endswith("]")):
        raise _fault(key, example, address)
    try:
        return str(ipaddress.IPv6Address(host[1:-1]))
    except ValueError as error:
        raise _fault(key, example, address) from error


def _refuse_unknown(
    prefix: str, content: Mapping[str, Any], wanted: Collection[str], ignored: Collection[str]
) -> None:
    for name in content:
        if name not in wanted and name not in ignored:
            known = ", ".join(f'"{key}"' for key in wanted)
            raise _fault(
                f"{prefix}{name}", f"is no known key; use {known}{_guess(name, wanted)}", name
            )


def _require(prefix: str, content: Mapping[str, Any], wanted: Collection[str]) -> None:
    for name in wanted:
        if name not in content:
            raise _fault(f"{prefix}{name}", "is missing", content)


def _guess(name: Any, known: Collection[str]) -> str:
    close = difflib.get_close_matches(str(name).lower(), known, n=1)
    return f' (did you mean "{close[0]}"?)' if close else ""


def _fault(key: str, problem: str, value: Any) -> ConfigError:
    return ConfigError(f"{VARIABLE}: {key} {problem}. Received: {_shown(json.dumps(value))}")


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
