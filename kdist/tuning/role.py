"""Who a search process is among several machines, as Keras Tuner's environment says. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from kdist.errors import ConfigError

_ID, _HOST, _PORT = VARIABLES = (
    "KERASTUNER_TUNER_ID",
    "KERASTUNER_ORACLE_IP",
    "KERASTUNER_ORACLE_PORT",
)


@dataclass(frozen=True, kw_only=True)
class Role:
    """One of the processes of a search.

    Attributes:
        tuner_id: Its name among them; `None` where there is one process only.
        host: Where the chief serves the oracle.
        port: Its port.
    """

    tuner_id: str | None = None
    host: str = ""
    port: int = 0

    @property
    def is_local(self) -> bool:
        """Whether this process searches by itself."""
        return self.tuner_id is None

    @property
    def is_chief(self) -> bool:
        """Whether it serves the oracle (and runs no trials), as Keras Tuner has it."""
        return self.tuner_id is not None and "chief" in self.tuner_id

    @property
    def address(self) -> str:
        """The chief's address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


LOCAL = Role()


def read_role(environ: Mapping[str, str]) -> Role:
    """Return what Keras Tuner's variables say; without them the search runs by itself.

    Raises:
        ConfigError: If only some of them are set, or the port is none.
    """
    given = {name: environ[name].strip() for name in VARIABLES if environ.get(name, "").strip()}
    if not given:
        return LOCAL
    missing = [name for name in VARIABLES if name not in given]
    if missing:
        received = ", ".join(f"{name}={value}" for name, value in given.items())
        raise ConfigError(
            f"A distributed search needs {', '.join(VARIABLES)}. Received: {received} without "
            f"{' and '.join(missing)}. Set all of them, or none."
        )
    port = int(given[_PORT]) if given[_PORT].isdecimal() else 0
    if not 0 < port < 1 << 16:
        raise ConfigError(f"{_PORT} must be a port, 1 to 65535. Received: {given[_PORT]}.")
    return Role(tuner_id=given[_ID], host=given[_HOST], port=port)
