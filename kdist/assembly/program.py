"""command=program: a function of the user's, run by the chief as the only client of a cluster."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdist.config.schema import Config
from kdist.config.targets import bind_target
from kdist.distribute.between_graph.reach import wait_for_servers
from kdist.distribute.strategies import start_server
from kdist.errors import ConfigError
from kdist.launch.journal import known_facts
from kdist.launch.request import LauncherLink, TaskRequest
from kdist.records.events import EventLog
from kdist.records.result import COMPLETED, blank_result, write_result
from kdist.records.run_folder import RunFolder

CLUSTER = "cluster"


@dataclass(frozen=True, kw_only=True)
class ProgramCluster:
    """What a program is told of where it runs: its argument `cluster`.

    Attributes:
        tasks: Addresses (`host:port`) of TensorFlow servers, by task type.
        target: Of a `tf.compat.v1.Session` that reaches all of them; empty where there are none.
        run_dir: The run folder, for files of the program's own.
    """

    tasks: Mapping[str, tuple[str, ...]]
    target: str
    run_dir: Path


def run_program(request: TaskRequest, config: Config, link: LauncherLink) -> int:
    """Call `program._target_` in a new run folder; what it returns is in result.json.

    Returns:
        The exit code, 0.

    Raises:
        ConfigError: If the program cannot be called, or returns no mapping of names to values.
        TaskTimeoutError: If a server of the cluster does not answer in time.
    """
    bound = bind_target(
        "program",
        config.program,
        typed_keys=request.typed_keys,
        extra={CLUSTER: None, "seed": config.seed},
    )
    target = _reach(request, config)
    with RunFolder.create(
        request.run_dir, request.config_yaml, make_unique=request.may_rename_run_dir
    ) as folder:
        link.send("run_folder_ready", run_dir=str(folder.path))
        link.send("task_ready")
        arguments = dict(bound.arguments)
        if CLUSTER in arguments:
            arguments[CLUSTER] = ProgramCluster(
                tasks={kind: tuple(found) for kind, found in request.spec.as_dict().items()},
                target=target,
                run_dir=folder.path,
            )
        returned = bound.function(**arguments)
        result = {
            **blank_result(**known_facts(request.config, request.spec)),
            "status": COMPLETED,
            "metrics": _named_values(bound.path, returned),
            "run_dir": str(folder.path),
        }
        result["seconds"]["total"] = time.time() - request.started_at_s
        write_result(folder.result_json, result)
        EventLog(folder.events_jsonl).write("run_ended", status=COMPLETED)
        link.send("run_ended", status=COMPLETED)
    return 0


def _reach(request: TaskRequest, config: Config) -> str:
    """Start the chief's server, which a session asks for the others; wait until those answer."""
    spec = request.spec
    if not spec.is_distributed:
        return ""
    others = [task for task in spec.tasks() if task != request.task]
    wait_for_servers(
        {str(task): spec.address(task) for task in others}, config.cluster.start_timeout_s
    )
    return start_server(spec, request.task, accelerators=request.accelerators).target


def _named_values(path: str, returned: Any) -> dict[str, float]:
    """Return the numbers that a program has returned, by name.

    Raises:
        ConfigError: If it is neither `None` nor a mapping of names to numbers.
    """
    try:
        return {str(name): float(value) for name, value in (returned or {}).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            "program._target_ must return a mapping of names to numbers, or None. Received: "
            f"{type(returned).__name__} from {path}."
        ) from error
