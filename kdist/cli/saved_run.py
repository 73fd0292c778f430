"""What a command on a finished run takes over from that run's saved configuration."""

from collections.abc import Collection
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from kdist.cli.hydra_errors import explained

SAVED_NAME = "config.yaml"


def with_data_of_run(tree: DictConfig, typed_keys: Collection[str]) -> DictConfig:
    """Return the tree with the data, loss and metrics of the run that `run` names.

    `command=evaluate` should meet the examples that the run was validated on. What the user typed
    stays: single keys of `data`, and all of it where a data group or function was chosen.
    """
    run = OmegaConf.select(tree, "run", throw_on_resolution_failure=False)
    saved_file = _folder(str(run)) / SAVED_NAME if run else None
    chooses_data = {"data", "data._target_"} & set(typed_keys)
    if tree.get("command") != "evaluate" or not (saved_file and saved_file.is_file()):
        return tree
    with explained({}):
        saved = OmegaConf.load(saved_file)
    if not isinstance(saved, DictConfig) or not isinstance(saved.get("data"), DictConfig):
        return tree
    found = tree.copy()
    with open_dict(found):
        for name in ("loss", "metrics"):
            if name in saved and name not in typed_keys:
                found[name] = saved[name]
        if chooses_data:
            return found
        found.data = saved.data
        if "seed" not in typed_keys:
            found.seed = saved.get("seed")
        for key in typed_keys:
            if key.startswith("data."):
                OmegaConf.update(found, key, OmegaConf.select(tree, key))
    return found


def _folder(run: str) -> Path:
    path = Path(run)
    return path if path.is_dir() else path.parent
