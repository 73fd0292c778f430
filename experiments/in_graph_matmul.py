"""A product of matrices, split over the workers' devices by hand, and joined on a server."""

import json
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kdist.assembly.program import ProgramCluster


def main(cluster: ProgramCluster, size: int = 1000, seed: int = 0) -> dict:
    """Multiply two matrices; print where each operation ran, and write timeline.json.

    Args:
        cluster: With parameter servers and workers.
        size: Rows and columns of both matrices.
        seed: What their values depend on.
    """
    random = np.random.default_rng(seed)
    a, b = (random.standard_normal((size, size), dtype=np.float32) for _ in "ab")
    with tf.Graph().as_default():
        joined = split_product(len(cluster.tasks["worker"]), size)
        feeds: dict[Any, np.ndarray] = {"a:0": a, "b:0": b}
        options = tf.compat.v1.RunOptions(
            trace_level=tf.compat.v1.RunOptions.FULL_TRACE, timeout_in_ms=60_000
        )
        with tf.compat.v1.Session(cluster.target) as session:
            session.run(joined, feeds, options)  # The first run places and compiles.
            traced = tf.compat.v1.RunMetadata()
            began_s = time.perf_counter()
            product = session.run(joined, feeds, options, traced)
            seconds = time.perf_counter() - began_s
    write_timeline(traced.step_stats.dev_stats, cluster.run_dir / "timeline.json")
    for name, device in placement(traced.step_stats.dev_stats):
        sys.stdout.write(f"{name:<8} ran on {device}\n")
    sys.stdout.write(f"timeline: {cluster.run_dir / 'timeline.json'}\n")
    return {"max_error": np.abs(product - a @ b).max(), "seconds": seconds}


def split_product(num_workers: int, size: int) -> tf.Tensor:
    """Return the product of the placeholders `a` and `b`; each worker multiplies rows of `a`."""
    v1 = tf.compat.v1
    with tf.device("/job:ps/task:0"):
        a = v1.placeholder(tf.float32, (size, size), name="a")
        b = v1.placeholder(tf.float32, (size, size), name="b")
        shares = np.array_split(np.arange(size), num_workers)
        rows = [a[share[0] : share[-1] + 1] for share in shares]
    parts = []
    for index, share in enumerate(rows):
        with tf.device(f"/job:worker/task:{index}"):
            parts.append(tf.matmul(share, b, name=f"part_{index}"))
    with tf.device("/job:ps/task:0"):
        return tf.concat(parts, axis=0, name="joined")


def placement(devices: Iterable) -> list[tuple[str, str]]:
    """Return the operations that ran, in order, and the device of each."""
    found = {
        name: device.device
        for device in devices
        for name in (node.node_name for node in device.node_stats)
        if re.fullmatch(r"part_\d+|joined", name)
    }
    return sorted(found.items(), key=lambda entry: (entry[0] == "joined", entry[0]))


def write_timeline(devices: Iterable, path: Path) -> None:
    """Write what ran when, as a trace that chrome://tracing and Perfetto show.

    Args:
        devices: `dev_stats` of a `RunMetadata`.
        path: The file; JSON, times in microseconds.
    """
    pids = {device.device: pid for pid, device in enumerate(devices)}
    events = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        for name, pid in pids.items()
    ]
    for device in devices:
        events += [
            {
                "ph": "X",
                "name": node.node_name,
                "pid": pids[device.device],
                "tid": node.thread_id,
                "ts": node.all_start_micros,
                "dur": max(1, node.all_end_rel_micros),
                "args": {"what": node.timeline_label},
            }
            for node in device.node_stats
        ]
    path.write_text(json.dumps({"traceEvents": events}))
