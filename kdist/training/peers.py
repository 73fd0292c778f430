"""How the tasks of one training agree: the chief decides, everybody acts alike."""

from collections.abc import Mapping
from typing import Any, Protocol

Decision = Mapping[str, Any]


class Peers(Protocol):
    """The other tasks that run the same outer loop."""

    is_chief: bool

    def agree(self, decision: Decision) -> Decision:
        """Return the chief's decision; every task calls it at the same place, in the same order.

        Args:
            decision: JSON-able; only the chief's counts.

        Raises:
            PeerLostError: If the chief is gone.
            TaskTimeoutError: If the chief does not answer in time.
        """
        ...

    def check(self) -> None:
        """Raise if going on has no sense, because a task that is needed is gone."""
        ...


class Alone:
    """One task trains; it agrees with itself."""

    is_chief = True

    def agree(self, decision: Decision) -> Decision:
        """Return the decision."""
        return decision

    def check(self) -> None:
        """Nobody can be gone."""
