"""A tuner of a distributed search: runs the trials that the chief hands out."""

import sys
from pathlib import Path

from kdist import config as kdist_config
from kdist.launch.request import LauncherLink
from kdist.tuning.journal import NAME
from kdist.tuning.loop import Stop, Wake, run_trials
from kdist.tuning.orders import space_of
from kdist.tuning.remote_desk import RemoteDesk
from kdist.tuning.request import TRIALS, SearchRequest
from kdist.tuning.slot import make_slots


def run_tuner(request: SearchRequest, link: LauncherLink, stop: Stop, wake: Wake) -> int:
    """Run trials until the chief says that the search is over; return the exit code.

    Runs go into the chief's folder where it is visible here, else into this command's own.

    Raises:
        PeerLostError: If the chief is gone.
        KdistError: If it refuses this tuner, or the search cannot go on.
    """
    config = kdist_config.load(request.config)
    tuner = str(request.role.tuner_id)
    desk = RemoteDesk(request.role, request.settings, config.cluster)
    try:
        desk.connect()
        link.send("task_ready")
        shared = Path(desk.search_dir)
        search_dir = shared if (shared / NAME).is_file() else Path(request.run_dir)
        print(f"{tuner} runs trials for {request.role.address} in {search_dir / TRIALS}.")
        sys.stdout.flush()
        slots = make_slots(
            request,
            config,
            space_of(config),
            desk,
            trials_dir=search_dir / TRIALS,
            tuner=tuner,
            wake=wake,
        )
        run_trials(
            slots,
            desk,
            tuner=tuner,
            wake=wake,
            stop=stop,
            stop_grace_s=config.cluster.stop_grace_s,
        )
    finally:
        desk.close()
    return 128 + stop.first if stop.first is not None else 0
