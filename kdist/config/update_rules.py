"""Rules for how updates come about on parameter servers: N of M shares, or bounded staleness."""

from kdist.cluster.traits import ASYNC, StrategyTraits
from kdist.config.schema import StrategyConfig
from kdist.errors import ConfigError


def check_updates(strategy: StrategyConfig, traits: StrategyTraits | None) -> None:
    """Refuse settings of one kind of update where updates are of another kind.

    Args:
        strategy: The section of the configuration.
        traits: Of the mode that the configuration names, or `None` if it names none.

    Raises:
        ConfigError: Naming the key.
    """
    for key in ("replicas_to_aggregate", "total_replicas"):
        value = getattr(strategy, key)
        if value is not None and not (traits and traits.aggregates):
            raise ConfigError(
                f"strategy.{key} is about synchronous parameter servers. Received: "
                f"strategy.{key}={value}, {_mode_text(traits)}. "
                "Add strategy=ps strategy.update=sync, or leave it out."
            )
    is_async = traits is not None and traits.has_servers and traits.update == ASYNC
    if strategy.max_staleness is not None and not is_async:
        raise ConfigError(
            "strategy.max_staleness is about asynchronous parameter servers. Received: "
            f"strategy.max_staleness={strategy.max_staleness}, {_mode_text(traits)}. "
            "Add strategy=ps strategy.update=async, or leave it out."
        )
    num_shares, num_replicas = strategy.replicas_to_aggregate, strategy.total_replicas
    if num_shares and num_replicas and num_shares > num_replicas:
        raise ConfigError(
            "An update cannot have more shares than replicas that compute them. Received: "
            f"strategy.replicas_to_aggregate={num_shares}, strategy.total_replicas={num_replicas}."
        )


def shares_and_replicas(strategy: StrategyConfig, num_workers: int) -> tuple[int, int]:
    """Return how many shares make an update, and how many workers compute shares.

    Args:
        strategy: The section of the configuration, checked.
        num_workers: Workers of the cluster.

    Raises:
        ConfigError: If there are fewer workers.
    """
    num_replicas = strategy.total_replicas or num_workers
    num_shares = strategy.replicas_to_aggregate or num_replicas
    if max(num_shares, num_replicas) > num_workers:
        raise ConfigError(
            "Each share of an update needs a worker of its own. Received: "
            f"strategy.replicas_to_aggregate={strategy.replicas_to_aggregate}, "
            f"strategy.total_replicas={strategy.total_replicas}, {num_workers} workers. "
            "Use more workers (cluster.workers) or fewer replicas."
        )
    return num_shares, num_replicas


def _mode_text(traits: StrategyTraits | None) -> str:
    if traits is None:
        return "no strategy"
    return f"strategy={traits.name} with strategy.update={traits.update}"
