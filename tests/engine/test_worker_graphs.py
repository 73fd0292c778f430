"""The graph of a between-graph worker carries no data and no weights: its limit is 2 GB."""

import keras
import numpy as np
import pytest

from tests.engine.cases import LOGITS, L, X, Y
from tests.engine.test_row_tables import OPTIMIZERS, model_of, rows
from tests.engine.test_server_refusals import build_as

LARGEST_BYTES = 4096
BETWEEN = ["between_graph async", "between_graph sync"]


def constants(graph):
    """Return (name, bytes) of every constant of a graph, its functions included."""
    content = graph.as_graph_def()
    nodes = [*content.node, *(n for each in content.library.function for n in each.node_def)]
    return [
        (node.name, node.attr["value"].tensor.ByteSize()) for node in nodes if node.op == "Const"
    ]


@pytest.mark.parametrize("mode", BETWEEN)
def test_workers_with_tables_by_rows_compare_their_variables(mode):
    """Shares of row gradients are staged in variables without a shape.

    And what tables and their slots begin with is made on their server: no worker sends it.
    """
    build, data = model_of(OPTIMIZERS["adagrad"]), {"train": rows()}
    graph = build_as(mode, build, data, strategy={"sparse": "rows"}).loop
    assert graph.signature
    of_tables = [v for v in graph.shared if v.shape.rank == 2]
    made_on = {v.initializer.inputs[1].op.device.partition("/replica")[0] for v in of_tables}
    assert len(of_tables) >= 8
    assert made_on == {"/job:ps"}
    assert any(v.shape.rank is None for v in graph.shared) == mode.endswith("_graph sync")


@pytest.mark.parametrize("mode", BETWEEN)
def test_arrays_and_weights_are_no_constants(mode):
    """Rows, kernels, a frozen kernel and what an adapted layer knows are larger than allowed."""

    def build():
        normal = L.Normalization()
        normal.adapt(wide)
        layers = [normal, L.Dense(64, trainable=False), L.Dense(64), L.Dense(3)]
        model = keras.Sequential([keras.Input(wide.shape[1:]), *layers])
        model.compile("adam", loss=LOGITS)
        return model

    wide = np.tile(X, (1, 200))
    engine = build_as(mode, build, {"train": (wide, Y)})
    found = constants(engine.loop.graph)
    assert found
    assert max(size for _, size in found) <= LARGEST_BYTES, sorted(found, key=lambda c: -c[1])[:3]
