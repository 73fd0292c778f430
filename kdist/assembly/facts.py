"""The facts of the opening panel."""

from collections.abc import Sequence

import yaml

from kdist.assembly.building import Sources
from kdist.assembly.engine import Engine
from kdist.assembly.layouts import server_contents, server_lines
from kdist.cluster.batch_share import share_bounds
from kdist.cluster.task import TaskType
from kdist.cluster.traits import StrategyTraits
from kdist.config.dotted import flattened
from kdist.config.schema import Config
from kdist.config.update_rules import shares_and_replicas
from kdist.launch.request import TaskRequest
from kdist.records.run_folder import RunFolder
from kdist.training.report.facts import OpeningFacts
from kdist.training.report.formats import plural_text
from kdist.training.trainer import TrainingPlan

# What says how a run differs from another one in what it learns: keys, and beginnings of keys.
_COMPARED = (
    *("loss", "seed", "data.batch_size", "cluster.workers"),
    *("strategy.name", "strategy.replication", "strategy.update", "strategy.sparse"),
)
_COMPARED_PARTS = ("model.", "optimizer.", "loss.")


def opening_facts(
    config: Config,
    traits: StrategyTraits,
    request: TaskRequest,
    engine: Engine,
    sources: Sources,
    plan: TrainingPlan,
    folder: RunFolder,
    notes: Sequence[str],
    *,
    num_replicas: int,
) -> OpeningFacts:
    """Return what is known before the first step. Called on the chief."""
    spec = request.spec
    is_clustered = spec.is_distributed
    counts = (
        ", ".join(f"{spec.num(k)} {k}" for k in TaskType if spec.num(k)) if is_clustered else ""
    )
    rows = ()
    if traits.batch_is_global:
        num_shares = num_replicas
        if traits.aggregates:
            num_shares, _ = shares_and_replicas(config.strategy, spec.num(TaskType.WORKER))
        bounds = [share_bounds(config.data.batch_size, r, num_shares) for r in range(num_shares)]
        rows = tuple(hi - lo if has_vote else 0 for lo, hi, has_vote in bounds)
    servers = server_contents(engine.structure, engine.layout) if spec.num(TaskType.PS) else ()
    kind = "accelerator" if request.accelerators else "CPU"
    per_task = max(1, request.num_devices)
    return OpeningFacts(
        mode_line=", ".join(part for part in (traits.label, counts) if part),
        choice_line=request.choice_line,
        tasks=tuple(f"{t} {spec.address(t)}" for t in spec.tasks()) if is_clustered else (),
        devices=tuple(f"{kind}:{index}" for index in range(per_task)),
        num_replicas=num_replicas,
        global_batch_size=config.data.batch_size
        if sources.train.kind in ("arrays", "stream")
        else None,
        per_replica_batch_sizes=rows or (config.data.batch_size,) * num_replicas,
        num_parameters=engine.structure.num_parameters,
        parameter_bytes=engine.structure.parameter_bytes,
        store_lines=server_lines(servers) or (plural_text(len(engine.layout.buckets), "bucket"),),
        servers=servers,
        train_examples=sources.train.num_examples,
        validation_examples=sources.validation.num_examples if sources.validation else None,
        steps_per_epoch=plan.steps_per_epoch,
        epochs=plan.epochs,
        run_dir=str(folder.path),
        open_ports=tuple(f"{t}:{spec.address(t).rpartition(':')[2]}" for t in spec.tasks())
        if is_clustered
        else (),
        notes=tuple(notes),
        settings=hyperparameters(request.config_yaml),
    )


def hyperparameters(config_yaml: str) -> dict[str, bool | float | str]:
    """Return what of a configuration runs are compared by: single values, by dotted key.

    Args:
        config_yaml: The content of config.yaml, where interpolations stand for secrets; they are
            left out.
    """
    content = yaml.safe_load(config_yaml)
    return {
        key: value
        for key, value in flattened(content if isinstance(content, dict) else {}).items()
        if (key in _COMPARED or key.startswith(_COMPARED_PARTS))
        and isinstance(value, bool | int | float | str)
        and "${" not in str(value)
    }
