"""placement.png shows each server's bytes; the opening panel and the plan say them."""

import io

import pytest

from kdist.training.report.facts import Block, ServerContents
from kdist.training.report.placement import scale_of, write_placement

matplotlib = pytest.importorskip("matplotlib")


def servers(*loads):
    return tuple(
        ServerContents(
            name=f"ps-{index}",
            blocks=tuple(
                Block(label=f"{i}/$kernel", num_bytes=size) for i, size in enumerate(load)
            ),
        )
        for index, load in enumerate(loads)
    )


def size_of(path):
    from matplotlib.image import imread

    return imread(io.BytesIO(path.read_bytes()), format="png").shape


@pytest.mark.parametrize(
    "loads",
    [[(10,)], [(5 << 20, 100), (3 << 20,), ()], [tuple(range(1, 200))] * 12],
    ids=["one", "uneven", "many"],
)
def test_a_picture_is_drawn_for_any_number_of_servers(tmp_path, loads):
    path = tmp_path / "placement.png"
    write_placement(servers(*loads), path, title="ps (in-graph, async)")
    assert size_of(path)[1] == 1080
    assert list(tmp_path.iterdir()) == [path]


def test_more_servers_need_more_room(tmp_path):
    heights = []
    for num in (1, 8):
        write_placement(servers(*[(1,)] * num), tmp_path / "p.png")
        heights.append(size_of(tmp_path / "p.png")[0])
    assert heights[1] > heights[0]


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(12, (1.0, "bytes")), (2048, (1024.0, "KiB")), (3 << 30, (float(1 << 30), "GiB"))],
)
def test_the_axis_has_a_unit_that_suits_the_fullest_server(num_bytes, expected):
    assert scale_of(num_bytes) == expected
