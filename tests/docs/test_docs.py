"""The documentation is true: its commands compose, its keys, links and paths exist."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kdist.cli.groups import conf_folder, options_of_groups
from kdist.config.reading import known_keys
from kdist.config.rules import COMMANDS
from kdist.config.schema import DataConfig

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
# What a reader puts in the place of a placeholder.
FILLED_IN = {"<date>": "2026-01-31", "<time>": "12-00-00"}
DEADLINE_S = 60
ANSWERS = ("--help", "--version", "--cfg")
# Sections whose keys belong to their targets, and keys that are Hydra's.
FREE_SECTIONS = ("model", "optimizer", "callbacks", "hydra", "data", "program")

OWN_FUNCTIONS = '''
def build(units=32):
    """Never called: a plan builds no model."""


def load(path):
    """Never called: a plan reads no data."""
'''
# Runs many command lines in one process, as each of them would run in one of its own.
PROGRAM = """
import contextlib, io, json, sys
from kdist.cli import main

for argv in json.load(sys.stdin):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        exit_code = main(argv)
    heavy = sorted({"tensorflow", "keras"} & set(sys.modules))
    print(json.dumps({"exit_code": exit_code, "printed": printed.getvalue(), "heavy": heavy}))
"""


def label(page):
    return str(page.relative_to(ROOT))


def text_of(page):
    return page.read_text(encoding="utf-8")


def prose_of(page):
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


def commands_of(page):
    """Return the arguments of every `python -m kdist ...` in the page's bash blocks."""
    found = []
    for block in re.findall(r"^```bash\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE):
        for placeholder, value in FILLED_IN.items():
            block = block.replace(placeholder, value)
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                assert words[:3] == ["python", "-m", "kdist"], f"{label(page)}: {line}"
                found.append(words[3:])
    return found


def as_plan(argv):
    """Return a command line that composes and checks the same settings, and trains nothing."""
    if any(word in argv for word in ANSWERS):
        return argv
    return [*argv, "command=plan"]


def test_commands_compose_without_tensorflow(tmp_path):
    saved_run = tmp_path / "outputs" / FILLED_IN["<date>"] / FILLED_IN["<time>"]
    saved_run.mkdir(parents=True)
    (tmp_path / "my_pkg.py").write_text(OWN_FUNCTIONS)
    sources = {}
    for page in PAGES:
        for argv in commands_of(page):
            sources.setdefault(tuple(as_plan(argv)), label(page))
    shown = run_all([["--cfg", "job"]], tmp_path)[0]["printed"]
    for name in ("config", "best"):  # A run's, and a search's best one.
        (saved_run / f"{name}.yaml").write_text(shown)
    faults = [
        f"{sources[argv]}: {shlex.join(argv)}\n{done['printed']}"
        for argv, done in zip(sources, run_all(list(sources), tmp_path), strict=True)
        if done["exit_code"] != 0 or done["heavy"]
    ]
    assert len(sources) > 15
    assert not faults, "\n".join(faults)


def run_all(command_lines, folder):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
        input=json.dumps(command_lines),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def documented_keys():
    """Return the rows of the tables of keys, key to the text of its default."""
    found = {}
    in_table = False
    for line in text_of(ROOT / "docs/configuration.md").splitlines():
        in_table = line.startswith("|") and (in_table or line == "| key | default | meaning |")
        row = re.match(r"\| `([a-z_.]+)` \| ([^|]+) \|", line)
        if in_table and row and not row[1].startswith("hydra."):
            found[row[1]] = row[2]
    return found


def test_every_key_is_documented_and_every_documented_key_exists():
    sections = {key.removesuffix("._target_") for key in documented_keys()}
    assert sections == {key.removesuffix("._target_") for key in known_keys()}


def test_documented_defaults_are_those_of_the_configuration_files(tmp_path):
    composed = yaml.safe_load(run_all([["--cfg", "job"]], tmp_path)[0]["printed"])
    for key, shown in documented_keys().items():
        value = composed
        for name in key.split("."):
            value = value.get(name)
        wanted = None if shown == "not set" else yaml.safe_load(shown.strip("`"))
        assert value == wanted, key


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_typed_keys_exist(page):
    """Every `section.key=` and every `key=` in a command is a key, a group, or a target's own."""
    groups = options_of_groups(conf_folder())
    known = {*known_keys(), *groups, *FREE_SECTIONS, "tuner.hypermodel._target_"}
    own_of_data = {f"data.{name}" for name in DataConfig.__dataclass_fields__}
    for argv in commands_of(page):
        for word in argv:
            key = re.match(r"[+~]{0,2}([\w.]+)=", word)
            if key is None:
                continue
            name = key[1]
            is_free = name.partition(".")[0] in FREE_SECTIONS and "." in name
            assert name in known or name in own_of_data or is_free, f"{label(page)}: {word}"


def test_the_listed_options_are_all_there_are():
    page = text_of(ROOT / "docs/configuration.md") + text_of(ROOT / "README.md")
    for group, options in options_of_groups(conf_folder()).items():
        assert f"`{group}`" in page
        for option in options if group != "experiment" else ():
            assert re.search(rf"\b{option}\b", page), f"{group}={option}"
    for command in COMMANDS:
        assert f"`{command}`" in page


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{label(page)}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", prose_of(file), re.MULTILINE)
            assert anchor in {anchor_of(heading) for heading in headings}, (
                f"{label(page)}: {target}"
            )


def anchor_of(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_named_files_and_modules_exist(page):
    for path in re.findall(r"`((?:kdist|conf|tests|benchmarks|docs)/[\w/.]*)`", prose_of(page)):
        assert (ROOT / path).exists(), f"{label(page)}: {path}"
    for module in re.findall(r"`(kdist(?:\.\w+)+)`", prose_of(page)):
        assert is_importable(module), f"{label(page)}: {module}"


def is_importable(dotted):
    """Return whether a module of that name exists, or its package names it."""
    path = ROOT / dotted.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    owner, _, name = dotted.rpartition(".")
    package = ROOT / owner.replace(".", "/") / "__init__.py"
    return package.is_file() and re.search(rf"\b{name}\b", text_of(package)) is not None


def test_every_decision_is_listed():
    folder = ROOT / "docs/adr"
    listed = set(re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", text_of(folder / "README.md")))
    records = {file.name for file in folder.glob("0*.md")}
    assert listed == records
    for name in records:
        text = text_of(folder / name)
        assert text.startswith(f"# {name[:4]}. ")
        for part in ("**Context.**", "**Decision.**", "**Consequences.**"):
            assert part in text, name


def test_the_readme_stays_short():
    assert len(text_of(ROOT / "README.md").splitlines()) <= 200
