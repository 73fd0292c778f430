"""Calling a `_target_`: what it is given, what is dropped, and how faults are named."""

import sys
import textwrap

import pytest

from kdist.config.schema import DataConfig, TargetConfig
from kdist.config.targets import bind_target, call_target, resolve
from kdist.errors import ConfigError

MODULE = """
    class Box:
        def __init__(self, size=1, **further):
            self.size, self.further = size, further

    def build(units, layers=2):
        return ("built", units, layers)

    def load(path, batch_size=0, seed=None):
        return (path, batch_size, seed)

    def nothing():
        return "nothing"

    def broken(units=1):
        raise FileNotFoundError("no such file: x.npz")

    constant = 3
"""


@pytest.fixture(autouse=True)
def user_module(tmp_path, monkeypatch):
    """A module of the user's in the current directory, and one that cannot be imported."""
    package = tmp_path / "usr_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "things.py").write_text(textwrap.dedent(MODULE))
    (package / "faulty.py").write_text("import not_there_at_all\n")
    (package / "wrong.py").write_text("1 +\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "usr_pkg"]:
        del sys.modules[name]


def section(name, **arguments):
    return {"_target_": f"usr_pkg.things.{name}", **arguments}


def test_calls_with_the_arguments_of_the_section():
    assert call_target("model", section("build", units=3)) == ("built", 3, 2)


def test_takes_a_section_of_the_schema():
    typed = TargetConfig(target="usr_pkg.things.build", arguments={"units": 5})
    assert call_target("model", typed) == ("built", 5, 2)


def test_inherited_keys_that_the_target_does_not_take_are_dropped_and_listed():
    bound = bind_target("model", section("build", units=1, dropout=0.1, activation="relu"))
    assert bound.dropped == ("model.activation", "model.dropout")
    assert bound.call() == ("built", 1, 2)


def test_a_typed_key_that_the_target_does_not_take_is_an_error_that_lists_what_it_takes():
    with pytest.raises(ConfigError, match=r"model\.dropout.*It takes: units, layers"):
        bind_target("model", section("build", units=1, dropout=1), typed_keys=["model.dropout"])


def test_a_typed_key_below_an_argument_counts_as_typed():
    with pytest.raises(ConfigError, match=r"model\.schedule"):
        bind_target("model", section("nothing", schedule={"a": 1}), typed_keys=["model.schedule.a"])


def test_own_keys_reach_only_targets_that_take_them():
    data = DataConfig(target="usr_pkg.things.load", path="x.npz", batch_size=8)
    assert call_target("data", data, extra={"seed": 7}) == ("x.npz", 8, 7)
    data = DataConfig(target="usr_pkg.things.nothing", batch_size=8)
    assert bind_target("data", data, typed_keys=["data.batch_size"]).arguments == {}


def test_a_seed_of_its_own_wins_over_the_run_s():
    data = DataConfig(target="usr_pkg.things.load", path="x", seed=3)
    assert call_target("data", data, extra={"seed": 7}) == ("x", 64, 3)


def test_a_typed_path_that_nobody_reads_is_an_error():
    data = DataConfig(target="usr_pkg.things.nothing", path="x")
    with pytest.raises(ConfigError, match=r"data\.path"):
        bind_target("data", data, typed_keys=["data.path"])


def test_a_target_that_takes_anything_gets_the_free_keys_only():
    data = DataConfig(target="usr_pkg.things.Box", arguments={"size": 2, "colour": "red"})
    box = call_target("data", data)
    assert (box.size, box.further) == (2, {"colour": "red"})


def test_a_typed_target_that_takes_anything_gets_nothing_of_the_one_it_replaces():
    """What it names it gets; the rest would be told to whoever takes any arguments of a base."""
    content = section("Box", size=2, colour="red", weight=1)
    typed = ["model._target_", "model.weight"]
    bound = bind_target("model", content, typed_keys=typed)
    assert bound.arguments == {"size": 2, "weight": 1}
    assert bound.dropped == ("model.colour",)


def test_a_target_inside_an_argument_is_called_too():
    box = call_target(
        "model", section("Box", size=section("build", units=1), more=[section("Box")])
    )
    assert box.size == ("built", 1, 2)
    assert box.further["more"][0].size == 1


def test_an_argument_inside_an_argument_must_fit():
    with pytest.raises(ConfigError, match=r"model\.size\.colour"):
        call_target("model", section("Box", size=section("build", units=1, colour="red")))


def test_resolve_keeps_the_names_of_keras_and_imports_dotted_ones():
    assert resolve("loss", "mse") == "mse"
    assert resolve("loss", None) is None
    assert resolve("loss", "usr_pkg.things.nothing")() == "nothing"
    assert resolve("metrics[0]", "usr_pkg.things.Box").size == 1
    assert resolve("loss", {"a": "mse", "b": section("Box", size=4)})["b"].size == 4
    assert [type(m).__name__ for m in resolve("metrics", ["mse", section("Box")])] == ["str", "Box"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (None, "model._target_ is missing"),
        ("build", "importable path"),
        ("my module.build", "importable path"),
        (3, "importable path"),
        ("no_such_pkg.build", "there is no module 'no_such_pkg'"),
        ("usr_pkg.things", "is a module"),
        ("usr_pkg.nothere.build", "usr_pkg has no 'nothere'"),
        ("usr_pkg.things.bild", "Did you mean 'build'?"),
        ("usr_pkg.things.constant", "must be callable"),
        ("usr_pkg.faulty.build", "No module named 'not_there_at_all'"),
        ("usr_pkg.wrong.build", "SyntaxError"),
        ("usr_pkg.things.build", "needs units"),
        ("usr_pkg.things.broken", "FileNotFoundError: no such file: x.npz"),
    ],
)
def test_a_target_that_cannot_be_called_is_named(path, said):
    with pytest.raises(ConfigError) as caught:
        call_target("model", {"_target_": path})
    assert said in str(caught.value)
    assert "model" in str(caught.value)


@pytest.mark.parametrize(("key", "example"), [("data", "load"), ("model", "build")])
def test_what_names_no_target_is_told_how(key, example):
    with pytest.raises(ConfigError) as caught:
        call_target(key, TargetConfig())
    assert f"as in ++{key}._target_=my_pkg.{example}. " in str(caught.value)


def test_a_failing_target_says_where_and_shows_no_text_that_may_be_secret():
    with pytest.raises(ConfigError) as caught:
        call_target("model", section("broken", units="s3cret"))
    assert "things.py, line" in str(caught.value)
    assert "s3cret" not in str(caught.value)
