"""A launcher as a process of its own: python launch_program.py '{"steps": {...}, ...}'."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kit import make_requests

from kdist.launch.local import run_local
from kdist.launch.restarts import RestartPolicy
from kdist.launch.timing import Timing

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    sys.exit(
        run_local(
            make_requests(**options["requests"]),
            task_main="fake_tasks:scripted",
            preload=(),
            timing=Timing(**options.get("timing", {})),
            restarts=RestartPolicy(**options.get("restarts", {})),
        )
    )
