"""An evaluation can be ended between two stretches of batches; the next one is whole again."""

import numpy as np
import pytest

from .test_data import FORMS, NUM_ROWS, build


@pytest.mark.parametrize("form", ["arrays", pytest.param("stream", marks=pytest.mark.slow)])
def test_an_evaluation_that_is_ended(cluster, form):
    make, settings = FORMS[form]
    run = cluster.prepare(build, {"train": make(), "validation": make()}, workers=2, **settings)
    run.run()
    source = run.trainer._validation._source
    whole = run.loop.evaluate(source, None)
    asked = []

    def end_after_one(num_done):
        asked.append(num_done)
        return 1 if num_done == 0 else 0

    part = run.loop.evaluate(source, None, end_after_one)
    assert asked == [0, 2]  # A batch for each worker.
    assert 0 < run.loop.logs.num_examples(part) < NUM_ROWS
    again = run.loop.evaluate(source, None, lambda num_done: 3)
    assert run.loop.logs.num_examples(again) == NUM_ROWS
    np.testing.assert_allclose(again, whole, rtol=1e-9)
