"""What a new start in a used folder means."""

import pytest

from kdist.config.schema import Config
from kdist.records.resumption import beyond_wish


@pytest.mark.parametrize(
    ("batches_seen", "max_steps", "total_steps", "said"),
    [
        (45, None, 46, None),
        (46, None, 46, None),  # Finished, and no more than that.
        (47, None, 46, "47 batches, where 46 were asked for (epochs=2)"),
        (47, 50, 46, "47 batches, where 46 were asked for (epochs=2)"),
        (47, 30, 30, "47 batches, where 30 were asked for (max_steps=30)"),
    ],
)
def test_a_run_that_is_further_than_what_is_asked_for(batches_seen, max_steps, total_steps, said):
    config = Config(epochs=2, max_steps=max_steps)
    assert beyond_wish(batches_seen, total_steps, config) == said
