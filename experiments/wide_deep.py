"""Clicks that depend on who sees what: tables of ids, a few of them popular and most rare."""

from typing import Any

import keras
import numpy as np

from kdist.datasets.splits import held_out

NUM_USERS = 20_000
NUM_ITEMS = 5_000


def make_data(
    num_examples: int = 100_000,
    num_users: int = NUM_USERS,
    num_items: int = NUM_ITEMS,
    exponent: float = 1.2,
    generator_seed: int = 0,
) -> dict:
    """Return impressions: a user, an item and the hour, and whether the user clicked.

    Ids are drawn by Zipf's law. The chance of a click depends on the user's and the item's
    hidden tastes, on how popular the item is, and on the hour.

    Args:
        num_examples: Impressions of both parts; a tenth is for validation.
        num_users: Size of the first table.
        num_items: Size of the second table.
        exponent: Of Zipf's law: how popular the popular ones are.
        generator_seed: What the data depend on.
    """
    random = np.random.default_rng(generator_seed)
    user = zipf_ids(random, num_examples, num_users, exponent)
    item = zipf_ids(random, num_examples, num_items, exponent)
    hour = random.uniform(0, 1, (num_examples, 1)).astype(np.float32)
    tastes = random.standard_normal((num_users, 4)), random.standard_normal((num_items, 4))
    logits = np.einsum("ij,ij->i", tastes[0][user[:, 0]], tastes[1][item[:, 0]])
    logits += random.standard_normal(num_items)[item[:, 0]] + 2 * hour[:, 0] - 2
    clicked = random.uniform(size=num_examples) < 1 / (1 + np.exp(-logits))
    x = {"user": user, "item": item, "hour": hour}
    return held_out((x, clicked.astype(np.float32)[:, None]), 0.1, generator_seed)


def zipf_ids(
    random: np.random.Generator, num_ids: int, num_values: int, exponent: float
) -> np.ndarray:
    """Return ids in `[0, num_values)`, int64, `(num_ids, 1)`; id k has weight (k + 1)^-exponent."""
    weights = np.arange(1, num_values + 1) ** -exponent
    return random.choice(num_values, (num_ids, 1), p=weights / weights.sum())


def build_model(
    num_users: int = NUM_USERS, num_items: int = NUM_ITEMS, width: int = 16, units: int = 64
) -> keras.Model:
    """Return the chance of a click: a linear part of each id, and a deep part of embeddings.

    Args:
        num_users: Rows of the users' tables.
        num_items: Rows of the items' tables.
        width: Size of an embedding.
        units: Size of the hidden layer.
    """
    hour = keras.Input((1,), name="hour")
    ids = {name: keras.Input((1,), dtype="int64", name=name) for name in ("user", "item")}
    rows = {"user": num_users, "item": num_items}
    flat = keras.layers.Flatten()
    wide = [
        flat(keras.layers.Embedding(rows[name], 1, name=f"{name}_wide")(entry))
        for name, entry in ids.items()
    ]
    embedded = []
    for name, entry in ids.items():
        spread: Any = keras.initializers.RandomNormal(stddev=0.3)  # Products count at once.
        table = keras.layers.Embedding(rows[name], width, spread, name=f"{name}_deep")
        embedded.append(flat(table(entry)))
    product = keras.layers.Multiply()(embedded)
    deep = keras.layers.Concatenate()([*embedded, product, hour])
    deep = keras.layers.Dense(units, activation="relu")(deep)
    logits = keras.layers.Add()([*wide, keras.layers.Dense(1)(deep)])
    clicks = keras.layers.Activation("sigmoid", dtype="float32")(logits)
    return keras.Model({**ids, "hour": hour}, clicks, name="wide_deep")
