"""How the chief of a distributed search and a tuner introduce themselves."""

import secrets
import socket
from collections.abc import Collection, Mapping
from typing import Any

from kdist.cluster.control_wire import Wire, WireFault
from kdist.errors import ConfigError
from kdist.tuning.settings import describe_changes
from kdist.version import __version__

PROTOCOL = 1
_HELLO_DEADLINE_S = 5.0


async def greet_tuner(
    wire: Wire, welcome: Mapping[str, Any], present: Collection[str]
) -> dict[str, Any]:
    """Take a tuner's hello, on the chief's side, and return it.

    Args:
        wire: The new connection.
        welcome: `settings` and `search_dir` of the search.
        present: The tuners that are there.

    Raises:
        WireFault: If it is no tuner, or one that cannot take part; it was told why.
    """
    hello = await wire.receive(_HELLO_DEADLINE_S)
    fault = _fault(hello, welcome, present)
    if fault is not None:
        wire.send_unsigned({"kind": "refused", "reason": fault})
        raise WireFault(fault)
    nonce = secrets.token_hex(16)
    wire.send({"kind": "welcome", "nonce": nonce, "search_dir": welcome["search_dir"]})
    wire.start_session(f"{hello['nonce']}{nonce}")
    return hello


async def greet_chief(wire: Wire, tuner: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Say hello, on a tuner's side, and return the chief's welcome.

    Raises:
        ConfigError: If the chief refuses this tuner.
        WireFault: If nobody of ours answered.
    """
    nonce = secrets.token_hex(16)
    wire.send(
        {
            "kind": "hello",
            "protocol": PROTOCOL,
            "version": __version__,
            "tuner": tuner,
            "host": socket.gethostname(),
            "settings": dict(settings),
            "nonce": nonce,
        }
    )
    answer = await wire.receive(_HELLO_DEADLINE_S)
    if answer["kind"] == "refused":
        raise ConfigError(f"The chief of the search refused {tuner}: {answer.get('reason')}")
    if answer["kind"] != "welcome":
        raise WireFault("is no chief of a search")
    wire.start_session(f"{nonce}{answer.get('nonce')}")
    return answer


def _fault(
    hello: Mapping[str, Any], welcome: Mapping[str, Any], present: Collection[str]
) -> str | None:
    """Return why a tuner cannot take part."""
    if hello["kind"] != "hello" or not isinstance(hello.get("settings"), dict):
        return "it is no tuner of a kdist search."
    if hello.get("protocol") != PROTOCOL or hello.get("version") != __version__:
        return f"it runs kdist {hello.get('version')}, the chief {__version__}; install the same."
    if hello.get("tuner") in present:
        return (
            f"there is a {hello.get('tuner')} already. Give each tuner a KERASTUNER_TUNER_ID of "
            "its own."
        )
    changes = describe_changes(welcome["settings"], hello["settings"])
    if changes is not None:
        changes = changes.replace(" before,", " on the chief,").replace(" now)", " here)")
        return f"it was started with another configuration: {changes}. Start all with the same."
    return None
