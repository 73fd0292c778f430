"""What every worker but the chief does in place of an outer loop: compute what the chief opens."""

import time
from collections.abc import Callable

from kdist.distribute.between_graph.desk import TURNS, Ticket
from kdist.distribute.between_graph.pauses import pause_s
from kdist.distribute.between_graph.worker import StepWorker


def follow(
    worker: StepWorker,
    chief: str,
    *,
    compare: Callable[[str], None],
    on_ready: Callable[[], None],
    check_cluster: Callable[[], None],
    start_timeout_s: float,
) -> int:
    """Take tickets, or turns, until the desk closes; return how many ids were computed by ticket.

    Args:
        worker: This task's; it is opened here, and closed.
        chief: The task that is waited for, by name.
        compare: Called with the chief's notes; raises where this task does not fit.
        on_ready: Called when this task takes tickets.
        check_cluster: Called between tickets; raises when following has no sense any more.
        start_timeout_s: How long to wait for the servers, and for the chief.

    Raises:
        TaskTimeoutError: If a server or the chief is not ready in time.
    """
    worker.open(start_timeout_s, check_cluster)
    try:
        compare(worker.wait_until_ready(start_timeout_s, chief, check_cluster))
        on_ready()  # Before the chief may begin, and end: it waits for nobody who is not ready.
        worker.arrive()
        return _take_until_closed(worker, check_cluster)
    finally:
        worker.close()


def _take_until_closed(worker: StepWorker, check_cluster: Callable[[], None]) -> int:
    num_ids, stretch, since_s = 0, None, time.monotonic()
    while not (ticket := worker.take()).is_closed:
        check_cluster()
        if ticket.num_ids:
            worker.run(ticket)
            num_ids, since_s = num_ids + ticket.num_ids, time.monotonic()
        elif ticket.kind == TURNS and ticket.base != stretch:
            _take_turns(worker, ticket)
            stretch, since_s = ticket.base, time.monotonic()
        else:
            time.sleep(pause_s(time.monotonic() - since_s))
    return num_ids


def _take_turns(worker: StepWorker, ticket: Ticket) -> None:
    assert worker.turns is not None
    if worker.index < worker.turns.num_replicas:
        worker.refresh(ticket.version)
        worker.turns_of(worker.index, ticket.base, ticket.first)()
