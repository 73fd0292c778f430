"""What the console says: one source for the terminal and for plain lines. Pure functions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kdist.training.report.facts import EpochFacts, OpeningFacts, ProgressFacts
from kdist.training.report.formats import (
    bytes_text,
    clock_text,
    count_text,
    duration_text,
    metric_text,
    plural_text,
    printable,
    rate_text,
)

SERVER_WARNING = (
    "TensorFlow's servers listen on every interface and ask for no password: "
    "whoever reaches these ports can run anything. Keep them inside a trusted network."
)


@dataclass(frozen=True)
class Line:
    """One labelled line of the opening or closing report."""

    label: str
    text: str
    is_warning: bool = False


def opening_lines(facts: OpeningFacts) -> tuple[Line, ...]:
    """Return the opening report, label by label; repeated labels are left empty."""
    parameters = plural_text(facts.num_parameters, "parameter")
    lines = [
        Line("mode", facts.mode_line),
        Line("why", facts.choice_line),
        *_labelled("tasks", [_tasks_text(facts.tasks)]),
        Line("devices", ", ".join(facts.devices)),
        Line("batch", batch_text(facts)),
        Line("model", f"{parameters}, {bytes_text(facts.parameter_bytes)}"),
        *_labelled("store", facts.store_lines),
        Line("data", data_text(facts)),
        Line("run folder", facts.run_dir),
    ]
    if facts.open_ports:
        lines.append(Line("open ports", ", ".join(map(str, facts.open_ports))))
        lines.append(Line("", SERVER_WARNING, is_warning=True))
    lines.extend(_labelled("note", facts.notes, is_warning=True))
    return tuple(
        Line(line.label, printable(line.text), line.is_warning) for line in lines if line.text
    )


def batch_text(facts: OpeningFacts) -> str:
    """Return how many examples meet in one optimizer update, and each replica's share."""
    sizes, size = facts.per_replica_batch_sizes, facts.global_batch_size
    if size is None:
        return "as the data brings them"
    if facts.num_replicas <= 1 or not sizes:
        return plural_text(size, "example")
    if sum(sizes) > size and set(sizes) == {size}:
        workers = plural_text(facts.num_replicas, "worker")
        return (
            f"{plural_text(size, 'example')}; each batch of the {workers} is an update of its own"
        )
    if len(set(sizes)) == 1:
        return (
            f"{count_text(size)} examples: {count_text(sizes[0])} on each of {len(sizes)} replicas"
        )
    if len(sizes) <= 8:
        shares = " + ".join(map(count_text, sizes))
    else:
        shares = (
            f"{count_text(min(sizes))} to {count_text(max(sizes))} on each of {len(sizes)} replicas"
        )
    return f"{count_text(size)} examples: {shares}"


def data_text(facts: OpeningFacts) -> str:
    """Return how much data there is and how long training will take in epochs and batches."""
    parts = []
    if facts.train_examples is not None:
        examples = f"{count_text(facts.train_examples)} training"
        if facts.validation_examples is not None:
            examples += f" and {count_text(facts.validation_examples)} validation"
        parts.append(examples + " examples")
    elif facts.validation_examples is not None:
        parts.append(f"{count_text(facts.validation_examples)} validation examples")
    length = plural_text(facts.epochs, "epoch")
    if facts.steps_per_epoch is not None:
        length += f" of {plural_text(facts.steps_per_epoch, 'batch')}"
    parts.append(length)
    return "; ".join(parts)


def progress_head(facts: ProgressFacts) -> tuple[str, str]:
    """Return `epoch 3/5` and `12/23`, which stand before and behind the bar."""
    total = "?" if facts.steps_per_epoch is None else count_text(facts.steps_per_epoch)
    return _epoch_text(facts.epoch, facts.epochs), f"{count_text(facts.step)}/{total}"


def progress_tail(facts: ProgressFacts) -> tuple[str, ...]:
    """Return speed and remaining time, as far as they are known."""
    tail = []
    if facts.steps_per_second:
        tail.append(rate_text(facts.steps_per_second, "step"))
    if facts.eta_s is not None:
        tail.append(f"ETA {clock_text(facts.eta_s)}")
    return tuple(tail)


def metric_texts(metrics: Mapping[str, float]) -> tuple[str, ...]:
    """Return `name value` for each metric, in the order given."""
    return tuple(f"{printable(name)} {metric_text(value)}" for name, value in metrics.items())


def progress_line(facts: ProgressFacts) -> str:
    """Return the plain line that stands for the bar where the output is piped."""
    head, done = progress_head(facts)
    return "  ".join([head, f"step {done}", *metric_texts(facts.metrics), *progress_tail(facts)])


def epoch_parts(facts: EpochFacts, *, epochs: int | None, num_steps: int) -> list[str]:
    """Return the parts of the lasting line of an epoch of `num_steps` batches."""
    parts = [
        _epoch_text(facts.epoch, epochs),
        *metric_texts(facts.metrics),
        duration_text(facts.seconds),
    ]
    if facts.seconds > 0 and num_steps > 0:
        parts.append(rate_text(num_steps / facts.seconds, "step"))
    return parts


def wrapped(parts: Iterable[str], width: int) -> list[str]:
    """Return `parts` on lines of `width` columns, broken between parts, the later ones indented."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(f"    {part}" if lines else part)
    return lines


def closing_title(result: Mapping[str, Any]) -> str:
    """Return how the run ended, in a few words."""
    seconds = (result.get("seconds") or {}).get("total")
    duration = (
        ""
        if seconds is None
        else f" {'after' if result.get('error') else 'in'} {duration_text(seconds)}"
    )
    return f"{result.get('status', 'ended')}{duration}"


def closing_lines(result: Mapping[str, Any]) -> tuple[Line, ...]:
    """Return what stands below the metrics: throughput, counts, warnings, files.

    The error of a failed run is left out: the launcher prints the root cause, once.
    """
    lines = []
    speeds = [
        rate_text(result[key], unit)
        for key, unit in (("steps_per_second", "step"), ("examples_per_second", "example"))
        if result.get(key)
    ]
    if speeds:
        lines.append(Line("throughput", ", ".join(speeds)))
    seconds = result.get("seconds") or {}
    times = [
        f"{duration_text(seconds[key])} {words}"
        for key, words in (("startup", "until the first step"), ("train", "training"))
        if seconds.get(key) is not None
    ]
    if times:
        lines.append(Line("time", ", ".join(times)))
    counts = [
        plural_text(result[key], noun)
        for key, noun in (("batches_seen", "batch"), ("examples_seen", "example"))
        if result.get(key) is not None
    ]
    if counts:
        lines.append(Line("trained on", ", ".join(counts)))
    lines.extend(update_lines(result))
    lost, restarts = result.get("workers_lost") or 0, result.get("restarts") or 0
    if lost or restarts:
        text = f"{plural_text(lost, 'worker')} lost, {plural_text(restarts, 'restart')}"
        lines.append(Line("faults", text, is_warning=True))
    lines.extend(_labelled("warning", result.get("warnings") or (), is_warning=True))
    if result.get("run_dir"):
        lines.append(Line("run folder", str(result["run_dir"])))
    return tuple(Line(line.label, printable(line.text), line.is_warning) for line in lines)


def update_lines(result: Mapping[str, Any]) -> tuple[Line, ...]:
    """Return how updates on parameter servers came about; nothing for other modes."""
    lines = []
    staleness = result.get("staleness")
    if staleness and staleness["histogram"]:
        total = sum(staleness["histogram"].values())
        shares = [
            f"{age}: {count / total:.0%}" for age, count in list(staleness["histogram"].items())[:6]
        ]
        if len(staleness["histogram"]) > len(shares):
            shares.append("...")
        text = (
            f"{staleness['mean']:.2g} updates on average, {staleness['maximum']} at most "
            f"({', '.join(shares)})"
        )
        lines.append(Line("staleness", text))
    contributions = result.get("contributions")
    if contributions:
        parts = [f"{task} {count_text(count)}" for task, count in contributions.items()]
        text = ", ".join(parts[:8]) + (", ..." if len(parts) > 8 else "")
        dropped = result.get("stale_gradients_dropped") or 0
        if dropped:
            text += f"; {plural_text(dropped, 'stale gradient')} dropped and dealt again"
        lines.append(Line("contributed", text))
    return tuple(lines)


def closing_columns(
    result: Mapping[str, Any], history: Mapping[int, Mapping[str, float]]
) -> tuple[tuple[str, Mapping[str, float]], ...]:
    """Return the columns of the closing table: last epoch, best epoch, final weights.

    Args:
        result: The content of result.json.
        history: Metrics by epoch, as far as this process saw them.

    Returns:
        Pairs of a heading and metrics; empty if no epoch ended.
    """
    last = {k: v for k, v in (result.get("metrics") or {}).items() if v is not None}
    best = result.get("best") or {}
    best_epoch = best.get("epoch")
    last_epoch = max(history, default=None)
    columns = []
    if last:
        columns.append(("last epoch" if last_epoch is None else f"last epoch ({last_epoch})", last))
    if best_epoch is not None and best_epoch != last_epoch:
        metrics = history.get(best_epoch) or {best["monitor"]: best["value"]}
        columns.append((f"best epoch ({best_epoch}, by {best['monitor']})", metrics))
    elif best_epoch is not None and columns:
        columns[0] = (f"last and best epoch ({last_epoch}, by {best['monitor']})", last)
    final = {k: v for k, v in (result.get("final_metrics") or {}).items() if v is not None}
    if final:
        columns.append(("final weights", final))
    return tuple(columns)


def _labelled(label: str, texts: Iterable[str], *, is_warning: bool = False) -> list[Line]:
    """Return one line a text; only the first carries the label."""
    return [Line("" if index else label, text, is_warning) for index, text in enumerate(texts)]


def _epoch_text(epoch: int, epochs: int | None) -> str:
    """Return `epoch  3/20`, of one width all through the run."""
    return f"epoch {epoch}" if epochs is None else f"epoch {epoch:>{len(str(epochs))}}/{epochs}"


def _tasks_text(tasks: tuple[str, ...]) -> str:
    return tasks[0] if len(tasks) == 1 else f"{len(tasks)}: {', '.join(tasks)}" if tasks else ""
