"""What the console says until a run has ended, in the terminal and plainly. Pure functions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
        *labelled("tasks", [_tasks_text(facts.tasks)]),
        Line("devices", ", ".join(facts.devices)),
        Line("batch", batch_text(facts)),
        Line("model", f"{parameters}, {bytes_text(facts.parameter_bytes)}"),
        *labelled("store", facts.store_lines),
        Line("data", data_text(facts)),
        Line("run folder", facts.run_dir),
    ]
    if facts.open_ports:
        lines.append(Line("open ports", ", ".join(map(str, facts.open_ports))))
        lines.append(Line("", SERVER_WARNING, is_warning=True))
    lines.extend(labelled("note", facts.notes, is_warning=True))
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
        *_cut_texts(facts.planned_steps, num_steps),
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


def labelled(label: str, texts: Iterable[str], *, is_warning: bool = False) -> list[Line]:
    """Return one line a text; only the first carries the label."""
    return [Line("" if index else label, text, is_warning) for index, text in enumerate(texts)]


def _epoch_text(epoch: int, epochs: int | None) -> str:
    """Return `epoch  3/20`, of one width all through the run."""
    return f"epoch {epoch}" if epochs is None else f"epoch {epoch:>{len(str(epochs))}}/{epochs}"


def _cut_texts(planned_steps: int | None, num_steps: int) -> list[str]:
    if planned_steps is None:
        return []
    if num_steps >= planned_steps:
        return ["partial: not validated"]
    return [f"partial: {count_text(num_steps)} of {plural_text(planned_steps, 'batch')}"]


def _tasks_text(tasks: tuple[str, ...]) -> str:
    return tasks[0] if len(tasks) == 1 else f"{len(tasks)}: {', '.join(tasks)}" if tasks else ""
