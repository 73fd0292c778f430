"""One run: what each task is asked to do. The launch itself is a fake."""

import dataclasses
import json

import pytest
import yaml

from kdist.cli.arguments import parse
from kdist.cli.composition import compose_run
from kdist.cli.run import run
from kdist.cluster.task import TaskType
from kdist.errors import ConfigError, EnvironmentFault


@pytest.fixture
def asked(monkeypatch):
    """Return a function that runs a command line and returns the requests that it led to."""
    started = []

    def remember(requests):
        started.extend(requests)
        return 0

    monkeypatch.setattr("kdist.launch.local.run_local", remember)

    def ask(*argv, **environ):
        started.clear()
        composition = compose_run(parse(["hydra.run.dir=/runs/one", *argv]))
        assert run(composition, {"PATH": "/bin", **environ}, started_at_s=12.5) == 0
        return list(started)

    return ask


def test_every_task_gets_the_same_configuration_and_knows_who_it_is(asked):
    requests = asked("+strategy=ps", "cluster.ps=1", "epochs=3")
    assert [str(request.task) for request in requests] == [
        "chief-0",
        "worker-0",
        "worker-1",
        "ps-0",
    ]
    assert [request.num_devices for request in requests] == [0, 1, 1, 0]
    first = requests[0]
    for request in requests:
        assert request.config == first.config
        assert request.spec == first.spec
        assert request.is_local
    assert first.spec.num(TaskType.WORKER) == 2
    assert first.config["strategy"]["replication"] == "in_graph"
    assert first.typed_keys == ("strategy", "cluster.ps", "epochs")
    assert first.choice_line == "strategy=ps: as configured"
    assert (first.run_dir, first.may_rename_run_dir) == ("/runs/one", False)
    assert first.started_at_s == 12.5


def test_the_saved_configuration_names_what_was_chosen(asked):
    saved = yaml.safe_load(asked("seed=null")[0].config_yaml)
    assert saved["strategy"]["name"] == "single"
    assert isinstance(saved["seed"], int)
    assert "hydra" not in saved


def test_the_same_seed_is_drawn_for_all_tasks(asked):
    seeds = {request.config["seed"] for request in asked("+strategy=multiworker", "seed=null")}
    assert len(seeds) == 1


def test_a_command_on_a_run_takes_one_process_whatever_the_run_took(asked, tmp_path):
    (tmp_path / "config.yaml").write_text(asked("+strategy=ps")[0].config_yaml)
    again = ["--config-dir", str(tmp_path), "--config-name", "config"]
    (request,) = asked(*again, "command=evaluate", f"run={tmp_path}")
    assert request.config["strategy"]["name"] == "single"
    assert len(asked(*again)) == 5
    assert len(asked(*again, "strategy.name=single")) == 1


def test_plan_starts_nothing_unless_the_model_is_asked_for(asked, capsys):
    assert asked("+strategy=ps", "command=plan") == []
    shown = capsys.readouterr().out
    assert "Mode: ps" in shown
    assert shown.count("}}' python -m kdist hydra.run.dir=/runs/one +strategy=ps\n") == 5
    requests = asked("+strategy=ps", "command=plan", "plan.model=true")
    assert [str(request.task) for request in requests] == ["chief-0"]


def test_tasks_inherit_the_backend(asked):
    environ = {"KERAS_BACKEND": "tensorflow"}
    composition = compose_run(parse([]))
    assert run(composition, environ, started_at_s=0.0) == 0
    assert environ["GRPC_FAIL_FAST"] == "use_caller"


def test_only_who_makes_the_run_folder_refuses_a_used_one(asked, monkeypatch, tmp_path):
    """A worker that is started again finds the folder of the run that it takes part in."""
    became = []
    monkeypatch.setattr(
        "kdist.assembly.task_main", lambda request, link: became.append(str(request.task)) or 0
    )
    (tmp_path / "config.yaml").touch()
    argv = ("strategy=ps", "resume=never", f"hydra.run.dir={tmp_path}")
    cluster = {"chief": ["a:1"], "worker": ["a:2"], "ps": ["a:3"]}
    environs = [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})}
        for kind in cluster
    ]
    for environ in environs[1:]:
        asked(*argv, **environ)
    assert became == ["worker-0", "ps-0"]
    for environ in ({}, environs[0]):
        with pytest.raises(ConfigError, match="already holds a run"):
            asked(*argv, **environ)


@pytest.mark.parametrize(
    "name", ["z" * 256, "z/" * 2050, "z/" * 2040], ids=["part", "path", "rest"]
)
@pytest.mark.parametrize("key", ["hydra.run.dir", "init_from", "resume", "run"])
def test_a_path_that_is_too_long_is_refused_by_its_key(asked, key, name):
    command = "evaluate" if key == "run" else "train"
    with pytest.raises(EnvironmentFault, match=f"^{key} names a place that cannot be looked at: F"):
        asked(f"command={command}", f"{key}=/{name}")


def test_evaluate_is_no_task_of_a_cluster(asked):
    cluster = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
    with pytest.raises(ConfigError, match="one process"):
        asked("command=evaluate", "run=x", TF_CONFIG=cluster)


def test_requests_can_be_told_apart_by_their_task_alone(asked):
    first, second = asked("+strategy=multiworker")
    assert dataclasses.replace(first, task=second.task) == second
