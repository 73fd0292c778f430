"""Axes of search.png."""

import pytest

from kdist.config.space import read_space
from kdist.tuning.axes import Axis, axis_of
from kdist.tuning.objective import Objective
from kdist.tuning.picture import draw_search

from .entries import create, end, state


@pytest.mark.parametrize(
    ("entry", "values", "axis"),
    [
        ({"type": "float", "min": 1e-3, "max": 2e-3, "sampling": "log"}, [1e-3], Axis(is_log=True)),
        ({"type": "float", "min": 1e-5, "max": 1.0}, [1e-5, 1.0], Axis()),
        ({"type": "int", "min": 1, "max": 9}, [4, 6], Axis(is_whole=True)),
        ({"type": "choice", "values": [6, 4, 5]}, [4, 6], Axis(("6", "4", "5"))),
        ({"type": "choice", "values": [[8], [8, 4]]}, [[8, 4]], Axis(("[8]", "[8, 4]"))),
        ({"type": "bool"}, [True], Axis(("False", "True"))),
        (None, [1e-5, 1.0], Axis(is_log=True)),
        (None, [4, 6], Axis(is_whole=True)),
        (None, ["b", "a", "b"], Axis(("b", "a"))),
    ],
)
def test_an_axis_is_what_the_space_says(entry, values, axis):
    [known] = read_space({"k": entry}) if entry else [None]
    assert axis_of(values, known) == axis


def test_values_of_a_choice_stand_side_by_side():
    assert Axis(("6", "4", "None")).place_of(4) == 1.0
    assert Axis(("6", "4", "None")).place_of(None) == 2.0
    assert Axis(is_log=True).place_of(4) == 4.0


def test_a_picture_has_every_kind_of_axis(tmp_path):
    space = {
        "rate": {"type": "float", "min": 1e-4, "max": 1e-1, "sampling": "log"},
        "layers": {"type": "choice", "values": [[16, 32], [32, 64], [128, 256, 512]]},
        "units": {"type": "int", "min": 4, "max": 6},
    }
    values = {"rate": 1e-3, "layers": [32, 64], "units": 5, "own$": 0.5}
    known = state(create("0", values=values), end("0", "completed", 0.5))
    path = tmp_path / "search.png"
    assert draw_search(known, Objective("val_loss", "min"), read_space(space), path)
    assert path.stat().st_size > 5000
