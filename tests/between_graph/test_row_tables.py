"""`strategy.sparse=rows` where every worker is a client of its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.buckets import table_values
from tests.engine.harness import assert_same
from tests.engine.harness import train as train_alone
from tests.engine.test_row_tables import NUM_IDS, OPTIMIZERS, model_of, rows
from tests.ps.recorded import rows_by_step

BY_ROWS = {"strategy": {"sparse": "rows"}}
SYNC = {"sparse": "rows", "update": "sync"}
WITH_SGD = {"sgd": lambda: keras.optimizers.SGD(0.5), **OPTIMIZERS}


@pytest.fixture
def draws(monkeypatch):
    """Record who draws first values of tables, in blocks of 7 rows: shapes, and devices of blocks.

    Chief, workers and servers are one process here. Nobody may draw a table at once, and who is
    asked for the blocks is a server.
    """
    shapes: list[tuple[int, ...]] = []
    devices: list[str] = []
    monkeypatch.setattr(table_values, "BLOCK_ROWS", 7)
    kind, draw_block = keras.initializers.RandomUniform, table_values.draw_block
    draw = kind.__call__

    def recorded(self, shape, *args, **options):
        shapes.append(tuple(shape))
        return draw(self, shape, *args, **options)

    def placed(*args):
        block = draw_block(*args)
        devices.append(block.device)
        return block

    monkeypatch.setattr(kind, "__call__", recorded)
    monkeypatch.setattr(table_values, "draw_block", placed)
    yield shapes, devices


def only_servers_draw(draws):
    shapes, devices = draws
    assert max(num_rows for num_rows, _ in shapes) <= 7
    assert {device.partition("/replica")[0] for device in devices} == {"/job:ps"}


@pytest.mark.parametrize("name", [pytest.param("adagrad", marks=pytest.mark.slow), "adam"])
def test_one_worker_equals_one_process(cluster, draws, name):
    build = model_of(OPTIMIZERS[name])
    data = {"train": rows(), "validation": rows(11)}
    run = cluster.train(build, data, workers=1, **BY_ROWS)
    only_servers_draw(draws)
    assert_same(run, train_alone(build, data, **BY_ROWS))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "momentum" else pytest.mark.slow) for n in WITH_SGD]
)
def test_all_shares_equal_one_process(cluster, draws, name):
    """Several workers read the same id: their shares add up before they are clipped and applied."""
    build = model_of(WITH_SGD[name])
    data = {"train": rows()}
    run = cluster.train(build, data, workers=2, strategy=SYNC)
    only_servers_draw(draws)
    assert_same(run, train_alone(build, data, **BY_ROWS))


@pytest.mark.slow
def test_each_update_is_the_mean_of_two_shares_of_three_workers(cluster):
    """What workers contributed, trained again by one process, gives these tables."""
    build = model_of(OPTIMIZERS["adam"])
    x, y = rows(32)
    strategy = {**SYNC, "replicas_to_aggregate": 2}
    run = cluster.train(build, {"train": (x, y)}, workers=3, strategy=strategy)
    recent = run.loop.store.tallies.contributions.read().recent
    order = np.concatenate(rows_by_step(recent, 32, 2))
    assert len(order) == 2 * 32
    data = {"train": ({key: ids[order] for key, ids in x.items()}, y[order])}
    assert_same(run, train_alone(build, data, epochs=1, **BY_ROWS), history=False)


@pytest.mark.parametrize("strategy", [BY_ROWS["strategy"], SYNC], ids=["async", "sync"])
def test_an_id_outside_of_its_table_is_named(cluster, strategy):
    x, y = rows()
    x["b"][17, 1] = NUM_IDS + 7
    run = cluster.prepare(model_of(OPTIMIZERS["adam"]), {"train": (x, y)}, strategy=strategy)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids from 0 to 49.*\[57\]"):
        run.trainer.run()
    run.loop.close()
