"""Which embedding tables `strategy.sparse=rows` updates by rows, and what it refuses."""

import contextlib
import math
from typing import Any

import keras
import tensorflow as tf

from kdist.config.schema import Config
from kdist.distribute import keras_adapter
from kdist.distribute.buckets.table_search import only_looked_up, plain_layers
from kdist.distribute.buckets.valueless_tables import building_without_values, fill
from kdist.distribute.model.structure import ModelStructure
from kdist.distribute.store.optimizer import inner_optimizer
from kdist.distribute.store.row_rules import ROW_RULES
from kdist.errors import ConfigError

ROWS = "rows"


def building_tables(
    config: Config, *, has_values_from_chief: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Return the block in which a model function runs; its tables may get their values later.

    Args:
        config: The checked configuration.
        has_values_from_chief: Whether first weights (`init_from`) are not for this task.
    """
    reads_weights = config.init_from is not None and not has_values_from_chief
    if config.strategy.sparse != ROWS or reads_weights:
        return contextlib.nullcontext()
    return building_without_values()


def choose_row_tables(
    config: Config, structure: ModelStructure, x_spec: Any, *, values_on_servers: bool
) -> tuple[str, ...]:
    """Find the tables that are updated by rows; give all others their values.

    Args:
        config: The checked configuration.
        structure: The probed structure; `by_rows` and `kept_on_servers` are filled in.
        x_spec: The signature of a batch's inputs.
        values_on_servers: Whether the servers draw the tables, so that this process need not.

    Returns:
        What the user should know, a sentence each.

    Raises:
        ConfigError: If the optimizer cannot update rows as the setting wants.
    """
    if config.strategy.sparse != ROWS:
        return ()
    tables = {i for i in range(len(structure.trainable)) if _embeddings_of(structure, i)}
    plain = {i for i in tables if plain_layers(structure, i) and not _is_constrained(structure, i)}
    by_rows = only_looked_up(structure, plain, x_spec)
    if by_rows:
        _refuse_optimizer(structure, by_rows)
    structure.by_rows = frozenset(by_rows)
    _give_values(structure, by_rows if values_on_servers else set())
    waiting = {i for i in by_rows if not keras_adapter.has_value(structure.trainable[i])}
    if sum(_bytes_of(structure.trainable[i]) for i in waiting) > config.strategy.gather_bytes:
        structure.kept_on_servers = frozenset(waiting)
    notes = []
    if tables - by_rows:
        names = ", ".join(structure.trainable[i].path for i in sorted(tables - by_rows))
        notes.append(
            f"strategy.sparse=rows leaves {names} dense: a regularizer, a constraint, or "
            "something else than embedding layers reads the whole table."
        )
    if not tables:
        notes.append("strategy.sparse=rows changes nothing: the model has no embedding table.")
    return tuple(notes)


def refuse_own_steps(config: Config, structure: ModelStructure) -> None:
    """Refuse a model that updates its tables by a step of its own.

    Raises:
        ConfigError: If tables should be updated by rows.
    """
    if config.strategy.sparse == ROWS:
        name = type(structure.model).__name__
        raise ConfigError(
            "strategy.sparse=rows changes the training step. Received: it for "
            f"{name}, which overrides train_step or test_step. Use strategy.sparse=dense."
        )


def _embeddings_of(structure: ModelStructure, index: int) -> list[keras.layers.Embedding]:
    variable = structure.trainable[index]
    return [
        layer
        for layer in keras_adapter.all_layers(structure.model)
        if isinstance(layer, keras.layers.Embedding)
        and any(each is variable for each in layer.trainable_variables)
    ]


def _is_constrained(structure: ModelStructure, index: int) -> bool:
    return structure.trainable[index].constraint is not None


def _bytes_of(variable: keras.Variable) -> int:
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size


def _give_values(structure: ModelStructure, left_out: set[int]) -> None:
    """Draw the tables that this process needs after all."""
    skipped = {id(structure.trainable[i]) for i in left_out}
    for layer in keras_adapter.all_layers(structure.model):
        if type(layer) is not keras.layers.Embedding:
            continue
        for variable in layer.weights:
            if id(variable) not in skipped and not keras_adapter.has_value(variable):
                fill(variable, layer)


def _refuse_optimizer(structure: ModelStructure, by_rows: set[int]) -> None:
    optimizer: Any = inner_optimizer(structure.model.optimizer)
    names = ", ".join(structure.trainable[i].path for i in sorted(by_rows))
    fault = None
    if type(optimizer) not in ROW_RULES:
        known = ", ".join(kind.__name__ for kind in ROW_RULES)
        fault = f"knows {known}", type(optimizer).__name__
    elif optimizer.use_ema:
        fault = "keeps no moving averages of tables", "use_ema=True"
    elif optimizer.gradient_accumulation_steps:
        given = f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}"
        fault = "accumulates no gradients of tables", given
    elif optimizer.clipnorm:
        fault = "does not clip by variable", f"clipnorm={optimizer.clipnorm}"
    elif optimizer.weight_decay and any(
        keras_adapter.uses_weight_decay(optimizer, structure.trainable[i]) for i in by_rows
    ):
        fault = (
            "does not decay rows that a batch does not read (leave tables out with "
            'optimizer.exclude_from_weight_decay(var_names=["embeddings"]))',
            f"weight_decay={optimizer.weight_decay}",
        )
    if fault is not None:
        raise ConfigError(
            f"strategy.sparse=rows {fault[0]}. Received: {fault[1]} for {names}. "
            "Use another optimizer or setting, or strategy.sparse=dense."
        )
