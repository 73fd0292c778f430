"""What a search process does, from its request to its exit code."""

from multiprocessing import forkserver as fork_server

from kdist.launch import forkserver
from kdist.launch.request import LauncherLink
from kdist.tuning.loop import Stop, Wake
from kdist.tuning.request import SearchRequest


def search_main(request: SearchRequest, link: LauncherLink) -> int:
    """Be a search; return its exit code. Called once, in the search's own process.

    Raises:
        KdistError: Why the search failed; the launcher reports it.
    """
    wake = Wake()
    stop = Stop(wake)
    stop.install()
    if not request.role.is_chief:
        _warm_up()
    if request.role.is_local or request.role.is_chief:
        from kdist.tuning.search import Search

        exit_code = Search(request, link, stop, wake).run()
    else:
        from kdist.tuning.tuner import run_tuner

        exit_code = run_tuner(request, link, stop, wake)
    link.send("finished", exit_code=exit_code)
    return exit_code


def _warm_up() -> None:
    """Start the server that this process' trials are forked from.

    It imports TensorFlow in the background while this process does the same for keras_tuner.
    """
    forkserver.context()
    fork_server.ensure_running()
