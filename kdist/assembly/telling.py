"""What a task other than the chief tells its own terminal: it makes no report."""

from kdist.assembly.cluster_link import say
from kdist.launch.request import TaskRequest


def tell_own_terminal(request: TaskRequest, text: str) -> None:
    """Say one line of this task, unless it shares the terminal of a launcher on this machine."""
    if not request.is_local:
        say(f"{request.task}: {text}")


def tell_end(request: TaskRequest, exit_code: int) -> None:
    """Say that the run has ended, and how it did.

    Args:
        request: Who this task is.
        exit_code: The run's.
    """
    how = f", whose exit code is {exit_code}" if exit_code else ""
    tell_own_terminal(request, f"ended with {request.spec.chief}{how}")
