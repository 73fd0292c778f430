"""Which rows of a global batch a replica takes: the one rule of every synchronous mode."""


def share_bounds(num_rows: int, replica_index: int, num_replicas: int) -> tuple[int, int, bool]:
    """Return `(lo, hi, vote)`: the rows of one replica, and whether its result counts.

    Args:
        num_rows: Rows of the global batch.
        replica_index: The replica's index among all replicas of all workers.
        num_replicas: Replicas of all workers together.
    """
    if num_rows < num_replicas:
        return 0, num_rows, replica_index == 0
    lo = replica_index * num_rows // num_replicas
    return lo, (replica_index + 1) * num_rows // num_replicas, True
