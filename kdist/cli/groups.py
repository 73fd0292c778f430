"""The configuration files that kdist ships: where they lie, and which groups they form."""

from collections.abc import Mapping
from pathlib import Path

import kdist

PRIMARY = "kdist"
# Groups that a run may do without: `strategy=null` on the command line means the same.
OPTIONAL_GROUPS = ("strategy", "tuner", "experiment")


def conf_folder() -> Path:
    """Return the folder of configuration files, of a wheel or of a checkout."""
    package = Path(kdist.__file__).resolve().parent
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def options_of_groups(*folders: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the options of every group (a folder that holds YAML files), sorted by name."""
    groups: dict[str, set[str]] = {}
    for folder in folders:
        for file in folder.glob("*/*.yaml"):
            groups.setdefault(file.parent.name, set()).add(file.stem)
    return {name: tuple(sorted(options)) for name, options in sorted(groups.items())}
