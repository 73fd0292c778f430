"""What makes a run the same run: settings, model, optimizer and data, compared when it goes on."""

import itertools
from collections.abc import Mapping
from typing import Any

import keras

from kdist.assembly.building import Sources
from kdist.assembly.same_data import data_facts
from kdist.config.dotted import flattened
from kdist.distribute.data.source import BatchSource
from kdist.distribute.store.further_optimizers import FurtherOptimizers
from kdist.errors import ConfigError
from kdist.records.plain import to_plain
from kdist.records.resumption import differences, refuse, settings_of
from kdist.training.checkpoints.positions import own_variables
from kdist.training.plan import TrainingPlan

Facts = Mapping[str, Mapping[str, Any]]


def run_facts(
    config_yaml: str, model: keras.Model, sources: Sources, plan: TrainingPlan
) -> dict[str, dict[str, Any]]:
    """Return what must be the same when a run goes on; JSON can hold it.

    Args:
        config_yaml: The content of config.yaml.
        model: Built and compiled, as the user's function made it.
        sources: The data.
        plan: How long to train.
    """
    return {
        "settings": settings_of(config_yaml),
        "model": {
            f"variable {index} ({variable.path})": f"{tuple(variable.shape)} {variable.dtype}"
            for index, variable in enumerate(own_variables(model))
        },
        "optimizer": _optimizer_facts(model.optimizer) | _further_facts(model),
        "compiled": _loss_facts(model),
        "data": _data_facts(sources, plan),
    }


def refuse_other_run(before: Facts, now: Facts, where: str) -> None:
    """Refuse to go on with another model, optimizer or data than those of a checkpoint.

    Raises:
        ConfigError: Naming what differs.
    """
    found: list[str] = []
    for part in ("settings", "model", "optimizer", "compiled", "data"):
        if part == "compiled" and any(each.startswith("loss") for each in found):
            continue  # The settings have told it.
        then, here = before.get(part, {}), now.get(part, {})
        # Of a variable, the path is a label; position, shape and dtype are what counts.
        if part == "model" and list(then.values()) == list(here.values()):
            continue
        found += differences(then, here)
    refuse(found, where)


def refuse_other_shapes(before: Facts, now: Facts, where: str) -> None:
    """Refuse a model that cannot hold the weights of a checkpoint, whatever the user wants.

    Raises:
        ConfigError: Naming the first difference.
    """
    then, here = (list(facts.get("model", {}).values()) for facts in (before, now))
    for index, (there, mine) in enumerate(itertools.zip_longest(then, here)):
        if then and _shape(there) != _shape(mine):
            raise ConfigError(
                f"The checkpoint does not fit the model: variable {index} was {there or 'none'}, "
                f"is {mine or 'none'}. Received: {where}. Build the model that was trained, or "
                "start a new run."
            )


def _shape(described: str | None) -> str | None:
    """Return the shape of a variable's description, such as `(3, 4) float32`."""
    return described and described.rpartition(" ")[0]


def has_same_optimizer(before: Facts, now: Facts) -> bool:
    """Return whether the slots of a checkpoint belong to an optimizer of the same class."""
    key = "class"
    return before.get("optimizer", {}).get(key) == now.get("optimizer", {}).get(key)


def changed_rates(before: Facts, now: Facts) -> list[Any]:
    """Return the learning rates that the model's optimizer was not given before a checkpoint.

    Those of further optimizers, which only the model's own step uses, are not among them.
    """
    then, here = before.get("optimizer", {}), now["optimizer"]
    return [
        value
        for key, value in here.items()
        if then and "learning_rate" in key and not _is_of_further(key) and then.get(key) != value
    ]


def _is_of_further(key: str) -> bool:
    return key.split(" ")[1][:1].isdigit()


def _optimizer_facts(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    content, _ = to_plain(optimizer.get_config())
    settings = {
        f"optimizer {key}": value
        for key, value in flattened(content).items()
        if key.rpartition(".")[2] != "name" and " at 0x" not in str(value)
    }
    return {"class": type(optimizer).__name__, **settings}


def _loss_facts(model: keras.Model) -> dict[str, Any]:
    """Return the losses that the model was compiled with: config.yaml knows its own only."""
    losses: Any = getattr(model, "loss", None)
    content, _ = to_plain({"loss": keras.tree.map_structure(_loss_fact, losses)})
    return flattened(content)


def _loss_fact(loss: Any) -> Any:
    """Describe a loss by its name and settings; code of a function may change its looks."""
    if loss is None or isinstance(loss, str):
        return loss
    if not isinstance(loss, keras.losses.Loss):
        return getattr(loss, "__name__", type(loss).__name__)
    settings = {
        key: value
        for key, value in loss.get_config().items()
        if key not in ("name", "fn") and isinstance(value, bool | int | float | str)
    }
    return {"class": type(loss).__name__, **settings}


def _further_facts(model: keras.Model) -> dict[str, Any]:
    """Return the same of optimizers that only the model's own step uses."""
    return {
        f"optimizer {number} {key}": value
        for number, each in enumerate(FurtherOptimizers(model).optimizers, start=2)
        for key, value in _optimizer_facts(each).items()
    }


def _data_facts(sources: Sources, plan: TrainingPlan) -> dict[str, Any]:
    """Return what of the data is certain to be the same when it is read again.

    Batches of validation may change, and what comes from a generator may be drawn anew.
    """
    facts = dict(data_facts(sources, plan))
    facts.pop("validation batches", None)
    for name, source in (("training", sources.train), ("validation", sources.validation)):
        if source is None or not _is_fixed(source):
            facts.pop(f"checksum of the first {name} rows", None)
    return facts


def _is_fixed(source: BatchSource) -> bool:
    return source.kind == "arrays"
