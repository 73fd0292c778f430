"""How long to wait before asking the servers again. Pure Python."""

# A question costs a millisecond of processor time on both sides.
SHORTEST_S, LONGEST_S = 0.002, 0.05
# What is waited for is noticed that much later than it happens, at most.
SHARE = 0.1


def pause_s(waited_s: float) -> float:
    """Return the seconds until the next question: a part of what was waited so far."""
    return min(max(SHORTEST_S, SHARE * waited_s), LONGEST_S)
