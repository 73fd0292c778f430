"""The control channel between the tasks of a run: coming together, decisions, losses, the end.

Pure Python sockets beside TensorFlow's own. The chief calls every other task on the port that
TensorFlow will use there; when all have answered it says go, the ports are freed for TensorFlow,
and the connections stay.
"""

from kdist.cluster.control_chief import ControlChief
from kdist.cluster.control_listener import ChiefEndedError
from kdist.cluster.control_peer import ControlPeer

__all__ = ["ChiefEndedError", "ControlChief", "ControlPeer"]
