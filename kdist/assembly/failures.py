"""What an exception means for the run: whose fault it was, and which exit code follows."""

import re

import tensorflow as tf

from kdist.assembly.cluster_link import ClusterLink
from kdist.cluster.task import Task
from kdist.config.importing import where_users_code_failed
from kdist.distribute.model.structure import first_lines, without_keras_frame
from kdist.errors import KdistError, PeerLostError, TrainingError

# What TensorFlow raises in a healthy task because another one failed.
PEER_ERRORS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
_MAX_MESSAGE_CHARS = 1000
# A whole sentence of kdist's own, that an operation on batches failed with.
_OWN_SENTENCE = re.compile(
    r"assertion failed: \[((?:(?!\] \[)[^\n])+)\](?:\n|$)|ConfigError: ([^\n]+)"
)
# An exception of Python code that an operation has called, such as a generator of rows.
_PYTHON_ERROR = re.compile(
    r"(?:^|\}\} |: )(\w+: [^\n]*)\nTraceback \(most recent call last\):", re.MULTILINE
)


def with_lost_peer(error: Exception, task: Task, cluster: ClusterLink) -> Exception:
    """Return who was lost in place of an error that TensorFlow raised of it; others as they are.

    TensorFlow notices a loss at once and names an operation. The control channel needs a moment
    more, for which this waits, and knows the task.
    """
    if not isinstance(error, PEER_ERRORS):
        return error
    lost = cluster.find_lost()
    if lost is None and cluster.is_alone:
        return error
    return lost or PeerLostError(f"{task} lost a peer: {_op_message(error)}")


def as_kdist_error(error: Exception) -> KdistError:
    """Return an error with the exit code that it means."""
    if isinstance(error, KdistError):
        return error
    if isinstance(error, tf.errors.OpError):
        return TrainingError(_op_message(error))
    text = first_lines(error, _MAX_MESSAGE_CHARS)
    told = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return TrainingError(told + where_users_code_failed(error))


def _op_message(error: tf.errors.OpError) -> str:
    """Return the sentence of an operation's error without the graph around it."""
    message = without_keras_frame(error.message)
    if own := _OWN_SENTENCE.search(message):
        return (own[1] or own[2]).replace("\\'", "'")
    if python := _PYTHON_ERROR.search(message):
        return python[1]
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    framing = ("File ", "Detected at", "[[", "<", "Graph execution error")
    telling = [line for line in lines if not line.startswith(framing)]
    return f"{type(error).__name__}: {' '.join(telling[:3]) or error.message[:300]}"
