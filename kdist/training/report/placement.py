"""placement.png: what each parameter server holds."""

import io
import os
from collections.abc import Sequence
from pathlib import Path

from kdist.training.report.facts import ServerContents
from kdist.training.report.formats import escaped

_COLORS = ("#3b6fb6", "#7fa6d6")
_MEAN = "#8a8a8a"
# A block narrower than this part of the fullest server has no room for its label.
_LABELLED_FROM = 0.12


def write_placement(
    servers: Sequence[ServerContents], png_path: str | os.PathLike[str], *, title: str = ""
) -> None:
    """Draw the bytes of each server, a block for each bucket.

    Args:
        servers: At least one.
        png_path: The picture, replaced as a whole.
        title: A line above it, such as the mode.

    Raises:
        OSError: If the file cannot be written.
    """
    data = _draw(servers, title=title)
    path = Path(png_path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def scale_of(num_bytes: int) -> tuple[float, str]:
    """Return the unit that suits a number of bytes: how many bytes it has, and its name."""
    for power, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1024**power:
            return float(1024**power), name
    return 1.0, "bytes"


def _draw(servers: Sequence[ServerContents], *, title: str) -> bytes:
    # The object API needs neither pyplot's global state nor a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fullest = max(server.num_bytes for server in servers)
    mean = sum(server.num_bytes for server in servers) / len(servers)
    unit, unit_name = scale_of(fullest)
    height = 1.5 + 0.45 * min(len(servers), 40)
    figure = Figure(figsize=(9.0, height), layout="constrained", dpi=120)
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    for row, server in enumerate(servers):
        left = 0.0
        blocks = sorted(server.blocks, key=lambda block: -block.num_bytes)
        for index, block in enumerate(blocks):
            width = block.num_bytes / unit
            color = _COLORS[index % len(_COLORS)]
            axes.barh(row, width, left=left, color=color, edgecolor="white", linewidth=0.6)
            if block.num_bytes >= _LABELLED_FROM * fullest:
                middle = left + width / 2
                label = _fitting(block.label, block.num_bytes / fullest)
                axes.text(middle, row, label, ha="center", va="center", fontsize=7, color="white")
            left += width
    axes.axvline(mean / unit, color=_MEAN, linewidth=1.0, linestyle=(0, (4, 3)), label="mean")
    axes.set_yticks(range(len(servers)), [escaped(server.name) for server in servers])
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit_name} of values (optimizer slots multiply them)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    above = 100 * (fullest / mean - 1) if mean else 0.0
    heading = [escaped(title)] if title else []
    heading.append(f"fullest server {above:.1f}% above the mean")
    figure.suptitle("   |   ".join(heading), fontsize=11)
    picture = io.BytesIO()
    canvas.print_png(picture, metadata={"Software": None})
    return picture.getvalue()


def _fitting(label: str, share: float) -> str:
    """Return a label shortened to the width of its block."""
    room = max(4, int(110 * share))
    return escaped(label if len(label) <= room else f"...{label[3 - room :]}")
