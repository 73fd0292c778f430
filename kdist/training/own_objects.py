"""A user's own classes and functions that a `.keras` file names: found before Keras reads it."""

import json
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import keras
import yaml

from kdist.config.importing import import_object
from kdist.config.targets import TARGET
from kdist.distribute.model.structure import first_lines
from kdist.errors import ConfigError
from kdist.records.resumption import folder_of

# Sections of a configuration whose objects a model file names, and keys that hold a dotted path.
_SECTIONS = ("model", "loss", "metrics", "optimizer", "tuner")
_PATH_KEYS = (TARGET, "hypermodel")
_FOREIGN = ("keras", "tensorflow")


class _Named(NamedTuple):
    """What a file says of one object; `key` is what Keras looks it up by."""

    kind: str
    name: str
    module: str
    key: str

    def __str__(self) -> str:
        """Return it as a message shows it."""
        if self.kind == "function":
            return f"function {self.name}"
        owner = f"module {self.module}" if self.module else "a script or a notebook"
        return f"class {self.name} (of {owner})"


@dataclass(frozen=True, kw_only=True)
class OwnObjects:
    """What was found of the user's own.

    Attributes:
        found: Objects by the names that Keras looks them up by, for `custom_objects`.
        missing: What was not found, each in words.
        problems: Why targets could not be imported, by target, such as `model._target_=my.build`.
        targets: All targets that were looked at.
    """

    found: Mapping[str, Any]
    missing: Sequence[str]
    problems: Mapping[str, str]
    targets: Sequence[str]

    def advice(self) -> str:
        """Return what is missing, what came in, and what to do about it."""
        received = "; ".join(self.problems.values()) or ", ".join(self.targets) or "no target"
        return (
            f"it holds what no imported module defines: {', '.join(self.missing)}. "
            f"Received: {received.rstrip('.')}. Name a function of the module that defines it, as "
            "in model._target_=my_pkg.model.build (for runs of kdist.fit, too), or import it "
            "there, decorated with keras.saving.register_keras_serializable()."
        )


def targets_of_run(path: Path) -> dict[str, str]:
    """Return the dotted paths by key that the config.yaml of a run names for its model."""
    file = folder_of(str(path)) / "config.yaml" if path.is_dir() else path.parent / "config.yaml"
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return targets_of(content) if isinstance(content, Mapping) else {}


def targets_of(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the dotted paths by key that a configuration names for its model."""
    return {
        key: value
        for section in _SECTIONS
        for key, value in _texts(section, content.get(section))
        if all(name.isidentifier() for name in value.split(".")) and "." in value
        if key.startswith(("loss", "metrics")) or key.rpartition(".")[2] in _PATH_KEYS
    }


def own_objects(
    file: Path,
    targets: Sequence[Mapping[str, str]],
    *,
    is_compiled: bool,
    known: Collection[str] = (),
) -> OwnObjects:
    """Import what targets name, and return what a `.keras` file names of the user's own.

    No module is imported because the file names it: a file may come from anywhere.

    Args:
        file: The model file.
        targets: Dotted paths by key; what the first ones name counts first.
        is_compiled: Whether its optimizer, loss and metrics are of interest, too.
        known: Names that need no search.
    """
    modules: list[ModuleType] = []
    problems: dict[str, str] = {}
    texts = []
    for key, path in (pair for each in targets for pair in each.items()):
        if path.partition(".")[0] in (*_FOREIGN, "kdist"):
            continue
        texts.append(f"{key}={path}")
        try:
            import_object(path, key)
        except ConfigError as error:
            problems.setdefault(path, first_lines(error))
        modules += _modules_of(path)
    found: dict[str, Any] = {}
    missing = []
    for named in _named_in(file, is_compiled=is_compiled):
        if named.key in known or keras.saving.get_registered_object(named.key) is not None:
            continue
        value = _find(named, modules)
        if value is not None:
            found[named.key] = value
        elif not _is_of_keras(named):
            missing.append(str(named))
    return OwnObjects(
        found=found, missing=missing, problems=problems, targets=tuple(dict.fromkeys(texts))
    )


def _texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Return the texts inside a section with their dotted keys."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _texts(f"{key}.{name}", entry)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _texts(f"{key}[{index}]", entry)


def _modules_of(path: str) -> list[ModuleType]:
    """Return the imported module that a dotted path lies in, then the rest of its package."""
    owner = path.rpartition(".")[0]
    while owner and owner not in sys.modules:
        owner = owner.rpartition(".")[0]
    package = path.partition(".")[0]
    if not owner or package in _FOREIGN:
        return []
    names = sorted(name for name in sys.modules if f"{name}.".startswith(f"{package}."))
    return [sys.modules[name] for name in (owner, *names)]


def _named_in(file: Path, *, is_compiled: bool) -> list[_Named]:
    """Return the classes and functions that a `.keras` file names, each once."""
    try:
        with zipfile.ZipFile(file) as archive:
            content = json.loads(archive.read("config.json"))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return []  # Keras will say so.
    if not is_compiled:
        content.pop("compile_config", None)
    return list(dict.fromkeys(_walk(content)))


def _walk(value: Any) -> Iterator[_Named]:
    if isinstance(value, dict):
        name, module = value.get("class_name"), value.get("module", False)
        if name == "function" and isinstance(value.get("config"), str):
            function = value["config"]
            yield _Named("function", function.rpartition(">")[2], "", function)
        elif isinstance(name, str) and module is not False and not name.startswith("__"):
            yield _Named("class", name, module or "", value.get("registered_name") or name)
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from _walk(entry)


def _find(named: _Named, modules: Sequence[ModuleType]) -> Any:
    """Return the user's object of a name: from the module of the file, else from the others."""
    if named.kind == "class" and _is_of_keras(named):
        return None
    said = [sys.modules[named.module]] if named.module in sys.modules else []
    for module in (*said, *modules):
        value = vars(module).get(named.name)
        root = str(getattr(value, "__module__", "keras")).partition(".")[0]
        is_class = isinstance(value, type) and hasattr(value, "from_config")
        if root not in _FOREIGN and (is_class if named.kind == "class" else callable(value)):
            return value
    return None


def _is_of_keras(named: _Named) -> bool:
    """Return whether Keras itself knows it."""
    if named.kind == "class":
        return named.module.partition(".")[0] in ("builtins", *_FOREIGN)
    spaces = (keras.activations, keras.losses, keras.metrics, keras.initializers, keras.ops)
    return any(hasattr(space, named.name) for space in spaces)
