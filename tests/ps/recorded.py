"""Which rows made which update, from the contributions that the first server recorded."""

from kdist.cluster.batch_share import share_bounds
from tests.ps.models import BATCH_SIZE


def units_by_step(contributions):
    """Return the shares of each step."""
    by_step = {}
    for one in contributions:
        by_step.setdefault(one.update, []).append(one.unit)
    assert sorted(by_step) == list(range(len(by_step)))
    return by_step


def rows_by_step(contributions, total, num_shares):
    """Return the rows of each step in order, of `total` rows that are not shuffled."""
    by_step = units_by_step(contributions)
    batches_per_pass = -(-total // BATCH_SIZE)
    found = []
    for step in sorted(by_step):
        units = by_step[step]
        assert len(units) == len(set(units)) == num_shares
        rows = []
        for unit in units:
            first = unit // num_shares % batches_per_pass * BATCH_SIZE
            num_rows = min(BATCH_SIZE, total - first)
            lo, hi, has_vote = share_bounds(num_rows, unit % num_shares, num_shares)
            rows += range(first + lo, first + hi) if has_vote else ()
        found.append(rows)
    return found
