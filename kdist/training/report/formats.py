"""Numbers and names as people read them. Pure functions, text out."""

import math


def metric_text(value: float) -> str:
    """Return four decimals, fewer for large numbers; scientific outside 0.001 to 100,000."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(float(value))
    size = abs(value)
    if not 1e-3 <= size < 1e5:
        return f"{value:.3e}"
    return f"{value:.{max(0, 4 - len(str(int(size))) + 1)}f}"


def count_text(count: int) -> str:
    """Return a whole number with thousands separators."""
    return f"{count:,}"


def bytes_text(num_bytes: int) -> str:
    """Return a size in the largest binary unit that leaves at least one of it."""
    size = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1023.95:
            return f"{num_bytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def duration_text(seconds: float) -> str:
    """Return a span of time in at most two units."""
    if not math.isfinite(seconds) or seconds < 0:
        return "unknown"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def clock_text(seconds: float) -> str:
    """Return a span of time as `m:ss` or `h:mm:ss`, which keeps its width while it counts down."""
    if not math.isfinite(seconds) or seconds < 0:
        return "-:--"
    whole = math.ceil(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def rate_text(per_second: float, unit: str) -> str:
    """Return a speed, as seconds per `unit` (singular) where it is below one a second."""
    if not math.isfinite(per_second) or per_second <= 0:
        return f"unknown {unit}s/s"
    if per_second < 0.995:
        return f"{metric_text(1 / per_second)} s/{unit}"
    if per_second < 9.95:
        return f"{per_second:.1f} {unit}s/s"
    return f"{per_second:,.0f} {unit}s/s"


def plural_text(count: int, noun: str) -> str:
    """Return the count with its noun, such as `1 epoch`, `1,437 epochs` and `23 batches`."""
    ending = "" if count == 1 else "es" if noun.endswith("tch") else "s"
    return f"{count_text(count)} {noun}{ending}"


def printable(text: str) -> str:
    """Return `text` with line breaks as spaces and other control characters escaped."""
    one_line = " ".join(text.splitlines()) if not text.isprintable() else text
    if one_line.isprintable():
        return one_line
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in one_line)


def escaped(text: str) -> str:
    """Return `text` safe from matplotlib's mathematics mode."""
    return printable(text).replace("$", r"\$")
