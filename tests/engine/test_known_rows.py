"""Where each batch has as many rows, a step is traced with all shapes known."""

import pytest

from kdist.distribute.step.signatures import rows_per_share

from .harness import train
from .recording import traced_rows


@pytest.mark.parametrize(
    ("num_rows", "replicas", "known"),
    [(24, 1, 12), (24, 2, 6), (8, 1, 8), (20, 1, None), (24, 5, None)],
)
def test_a_step_knows_the_rows_of_its_share(num_rows, replicas, known):
    seen = traced_rows(train, num_rows, replicas=replicas)
    assert known in seen
    assert seen <= {None, known}


@pytest.mark.parametrize(
    ("rows_per_batch", "num_shares", "rows"), [(8, 1, 8), (8, 4, 2), (8, 3, None), (None, 1, None)]
)
def test_shares_are_alike_where_they_divide_the_batch(rows_per_batch, num_shares, rows):
    assert rows_per_share(rows_per_batch, num_shares) == rows
