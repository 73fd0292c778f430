"""A launch plan as text, for `command=plan`."""

import shlex
from collections.abc import Sequence

from kdist.cluster.spec import ClusterSpec
from kdist.cluster.task import TaskType
from kdist.launch.plan import LaunchPlan, PlannedTask


def render_plan(plan: LaunchPlan, arguments: Sequence[str] | None = None) -> str:
    """Return the plan for people: mode, tasks with devices and batch shares, commands by hand.

    Args:
        plan: What was decided.
        arguments: What `python -m kdist` is to be given for the same run; `None` where no command
            line is that run.
    """
    rows = [("task", "address", "devices", "each batch")]
    rows += [_row(plan, task) for task in plan.tasks]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines = [plan.choice.line, f"Mode: {plan.traits.label}", f"Batch: {_batch_line(plan)}"]
    lines += [f"Note: {note}" for note in plan.notes]
    lines += ["", *table]
    command = shlex.join(["python", "-m", "kdist", *(arguments or ())])
    by_hand = [
        f"# {planned.task}\nTF_CONFIG={shlex.quote(planned.tf_config)} {command}"
        for planned in plan.tasks
        if planned.tf_config
    ]
    if by_hand and arguments is not None:
        lines += ["", "The same run by hand, one command a task:", *by_hand]
    return "\n".join(lines) + "\n"


def _row(plan: LaunchPlan, planned: PlannedTask) -> tuple[str, str, str, str]:
    address = _shown_address(plan.spec, planned)
    return (str(planned.task), address, _shown_devices(planned), _shown_work(planned))


def _shown_address(spec: ClusterSpec, planned: PlannedTask) -> str:
    address = spec.address(planned.task)
    return "-" if address.endswith(":0") else address


def _shown_devices(planned: PlannedTask) -> str:
    if not planned.num_devices:
        return "CPU"
    if planned.is_elsewhere:
        return "of its machine"
    if planned.accelerators:
        return ", ".join(f"GPU:{index}" for index in planned.accelerators)
    if planned.num_devices == 1:
        return "CPU"
    return f"CPU, {planned.num_devices} virtual devices"


def _shown_work(planned: PlannedTask) -> str:
    if planned.batch_rows:
        sizes = sorted(set(planned.batch_rows), reverse=True)
        rows = " or ".join(str(size) for size in sizes)
        replicas = f", on each of {len(planned.batch_rows)} devices"
        return f"{rows} examples" + (replicas if len(planned.batch_rows) > 1 else "")
    return {
        TaskType.CHIEF: "drives the workers",
        TaskType.PS: "holds parameters",
        TaskType.EVALUATOR: "not part of training",
    }.get(planned.task.type, "-")


def _batch_line(plan: LaunchPlan) -> str:
    num_replicas = sum(len(planned.batch_rows) for planned in plan.tasks)
    if plan.traits.batch_is_global:
        whole = f"{plan.batch_size} examples an update, over {num_replicas} replica(s)"
        return whole if num_replicas <= plan.batch_size else f"{whole}; some replicas get none"
    return f"{plan.batch_size} examples of one worker an update, {num_replicas} worker(s)"
