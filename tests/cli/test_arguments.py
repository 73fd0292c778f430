"""The command line as flags and overrides."""

from pathlib import Path

import pytest

from kdist.cli.arguments import CommandLine, as_hydra_takes_them, parse, to_train
from kdist.errors import ConfigError

GROUPS = {"strategy": ("mirrored", "ps"), "model": ("cnn", "mlp"), "experiment": ("big",)}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], CommandLine()),
        (["epochs=1", "-m", "a=1,2"], CommandLine(overrides=("epochs=1", "a=1,2"), is_sweep=True)),
        (["hydra.mode=MULTIRUN"], CommandLine(overrides=("hydra.mode=MULTIRUN",), is_sweep=True)),
        (["-h"], CommandLine(wants_help=True)),
        (["--version"], CommandLine(wants_version=True)),
        (
            ["--config-dir", "x/y", "a=1", "--config-name=config"],
            CommandLine(overrides=("a=1",), config_dir=Path("x/y"), config_name="config"),
        ),
        (
            ["a=1", "--cfg", "job", "--resolve"],
            CommandLine(overrides=("a=1",), hydra_flags=("--cfg", "job", "--resolve")),
        ),
        (["--info"], CommandLine(hydra_flags=("--info", "all"))),
        (["~a", "++b=1"], CommandLine(overrides=("~a", "++b=1"))),
    ],
)
def test_parse(argv, expected):
    assert parse(argv) == expected


@pytest.mark.parametrize("argv", [["--nope"], ["--cfg"], ["--cfg", "all-of-it"], ["--multi"]])
def test_flags_that_cannot_be_read_are_refused(argv):
    with pytest.raises(ConfigError, match="See --help"):
        parse(argv)


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        ("+strategy=ps", ["strategy=ps"]),
        ("++strategy=ps", ["strategy=ps"]),
        ("strategy=ps", ["strategy=ps"]),
        ("+strategy=mirrored,ps", ["strategy=mirrored,ps"]),
        ("strategy=null", []),
        ("+experiment=null", []),
        ("+strategy.devices=2", ["+strategy.devices=2"]),
        ("+model={units: 3}", ["+model={units: 3}"]),
        ("+other=ps", ["+other=ps"]),
        ("++data.x=3", ["++data.x=3"]),
        ("data.path=x.npz", ["++data.path=x.npz"]),
        ("~model", ["~model"]),
    ],
)
def test_overrides_in_the_form_that_hydra_accepts(typed, taken):
    assert list(as_hydra_takes_them([typed], GROUPS)) == taken


def test_a_group_that_a_run_needs_cannot_be_null():
    with pytest.raises(ConfigError, match="cnn, mlp"):
        as_hydra_takes_them(["model=null"], GROUPS)


@pytest.mark.parametrize(
    ("planned", "trained"),
    [
        (["command=plan", "+strategy=ps"], ("+strategy=ps",)),
        (["seed=1", "++command=plan", "plan.model=true"], ("seed=1",)),
        (["--config-name", "my_plan"], ("--config-name", "my_plan", "command=train")),
    ],
)
def test_the_arguments_of_the_run_that_is_planned(planned, trained):
    assert to_train(planned) == trained
