"""What a command on a finished run takes over from that run's saved configuration."""

from collections.abc import Collection
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from kdist.cli.hydra_errors import explained
from kdist.config.rules import COMMANDS_ON_A_RUN
from kdist.errors import ConfigError
from kdist.records.reach import refuse_unreachable
from kdist.records.resumption import folder_of

SAVED_NAME = "config.yaml"


def with_data_of_run(tree: DictConfig, typed_keys: Collection[str]) -> DictConfig:
    """Return the tree with what the run that `run` names says of its data and its model.

    `command=evaluate` should meet the examples that the run was validated on. What the user typed
    stays: single keys of `data`, and all of it where a data group or function was chosen. Where
    there is no model file but a checkpoint, the model function is the run's, too.
    """
    run = OmegaConf.select(tree, "run", throw_on_resolution_failure=False)
    if not run or tree.get("command") not in COMMANDS_ON_A_RUN:
        return tree
    refuse_unreachable("run", str(run))
    has_model = not Path(str(run)).is_dir() or (Path(str(run)) / "model.keras").exists()
    saved_file = folder_of(str(run)) / SAVED_NAME
    if not saved_file.is_file() or (has_model and tree.get("command") != "evaluate"):
        return tree
    with explained({}):
        saved = OmegaConf.load(saved_file)
    if not isinstance(saved, DictConfig) or not isinstance(saved.get("data"), DictConfig):
        if _chooses_data(typed_keys):  # A file of somebody else's, beside a model.
            return tree
        raise ConfigError(
            f"The configuration of the run cannot be read. Received: run={run}, whose {SAVED_NAME} "
            "has no section data. Restore the file, or name the data (data=...)."
        )
    found = tree.copy()
    with open_dict(found):
        for name in ("loss", "metrics") if has_model else ("loss", "metrics", "model", "optimizer"):
            if name in saved and name not in typed_keys:
                found[name] = saved[name]
        if tree.get("command") == "evaluate":
            _take_data(found, tree, saved, typed_keys)
    return found


def _take_data(
    found: DictConfig, tree: DictConfig, saved: DictConfig, typed_keys: Collection[str]
) -> None:
    if _chooses_data(typed_keys):
        return
    found.data = saved.data
    if "seed" not in typed_keys:
        found.seed = saved.get("seed")
    for key in typed_keys:
        if key.startswith("data."):
            OmegaConf.update(found, key, OmegaConf.select(tree, key))


def _chooses_data(typed_keys: Collection[str]) -> bool:
    return bool({"data", "data._target_"} & set(typed_keys))
