"""Importing a user's object by its dotted path, with errors that name what is missing."""

import difflib
import importlib
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from kdist.errors import ConfigError

# Where code lives that no user wrote: kdist, Python's library, and what has no file.
_NOT_USERS = (f"{Path(__file__).parents[1]}/", f"{sysconfig.get_path('stdlib')}/", "<")


def import_object(path: str, key: str) -> Any:
    """Return the object that a dotted path such as `my_pkg.models.build` names.

    The current directory is importable, so a user's own module needs no installation.

    Args:
        path: Module and attribute(s), separated by dots.
        key: The configuration key that the path stands under, for messages.

    Raises:
        ConfigError: If the path names nothing, or importing its module fails.
    """
    names = path.split(".") if isinstance(path, str) else []
    if len(names) < 2 or not all(name.isidentifier() for name in names):
        raise ConfigError(
            f"{key} must be an importable path such as my_pkg.models.build. Received: {path!r}."
        )
    make_current_folder_importable()
    spot = f"{key}={path} cannot be imported"
    if not _import_module(names[0], spot):
        raise ConfigError(
            f"{spot}: there is no module {names[0]!r}, neither in the current directory "
            f"({Path.cwd()}) nor among the installed packages."
        )
    found: Any = sys.modules[names[0]]
    for depth, name in enumerate(names[1:], start=2):
        if isinstance(found, ModuleType) and not hasattr(found, name):
            _import_module(".".join(names[:depth]), spot)
        if not hasattr(found, name):
            raise ConfigError(f"{spot}: {_no_attribute(found, name)}")
        found = getattr(found, name)
    if isinstance(found, ModuleType):
        raise ConfigError(f"{spot}: it is a module. Name a function or class in it.")
    return found


def make_current_folder_importable() -> None:
    """Put the current directory first on the module path, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def where_raised(error: BaseException) -> str:
    """Return " (file, line n)" of the place an error comes from, or "" where that is unknown."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"


def where_users_code_failed(error: BaseException) -> str:
    """Return " (file, line n)" of the last line of the user's own that an error came through.

    That is the innermost one outside of kdist and of installed packages; "" if there is none.
    """
    found, trace = "", error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not (path.startswith(_NOT_USERS) or "-packages" in path):
            found = f" ({path}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return found


def _import_module(name: str, spot: str) -> bool:
    """Import a module; return whether there is one of that name."""
    try:
        importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return False
        raise ConfigError(
            f"{spot}: importing {name} raised {type(error).__name__}: {error}{where_raised(error)}"
        ) from error
    return True


def _no_attribute(owner: Any, name: str) -> str:
    owner_name = getattr(owner, "__name__", repr(owner))
    close = difflib.get_close_matches(name, dir(owner), n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"{owner_name} has no {name!r}.{guess}"
