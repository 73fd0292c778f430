"""Composing: every file that is shipped, saved runs, and refusals in kdist's words."""

import dataclasses

import pytest
import yaml
from omegaconf import OmegaConf

from kdist import config as kdist_config
from kdist.cli.arguments import parse
from kdist.cli.composition import compose_run
from kdist.cli.groups import OPTIONAL_GROUPS, conf_folder, options_of_groups
from kdist.cli.resolution import resolved, yaml_without_secrets
from kdist.cli.saved_run import with_data_of_run
from kdist.config.reading import known_keys
from kdist.config.schema import Config
from kdist.errors import ConfigError

GROUPS = options_of_groups(conf_folder())
FILES = [f"{group}={option}" for group, options in GROUPS.items() for option in options]


def compose(*argv):
    return compose_run(parse(argv))


@pytest.mark.parametrize("choice", FILES)
def test_every_shipped_file_composes_and_passes_the_gate(choice):
    needs = {"data=npz": ["data.path=x.npz"], "experiment=predict_single": ["run=x"]}
    kdist_config.load(resolved(compose(choice, *needs.get(choice, [])).tree))


def test_every_experiment_says_what_it_asks_and_how_to_run_it():
    for name in GROUPS["experiment"]:
        text = (conf_folder() / "experiment" / f"{name}.yaml").read_text()
        assert "# Question: " in text
        assert f"# Run: python -m kdist +experiment={name}" in text


def test_every_group_stands_in_the_defaults_list():
    primary = yaml.safe_load((conf_folder() / "kdist.yaml").read_text())
    listed = [name for entry in primary["defaults"] if isinstance(entry, dict) for name in entry]
    assert sorted(listed) == sorted(GROUPS)
    nulls = [
        name
        for entry in primary["defaults"]
        if isinstance(entry, dict)
        for name, option in entry.items()
        if option is None
    ]
    assert sorted(nulls) == sorted(OPTIONAL_GROUPS)


def test_the_primary_file_shows_every_key_with_its_default():
    primary = OmegaConf.load(conf_folder() / "kdist.yaml")
    content = OmegaConf.to_container(primary)
    assert isinstance(content, dict)
    del content["defaults"]
    shown = kdist_config.load(content)
    assert shown == dataclasses.replace(Config(), loss=shown.loss, metrics=shown.metrics)
    of_groups = {f"{section}._target_" for section in ("data", "model")} | {"data.path"}
    for key in set(known_keys()) - of_groups - {"model", "optimizer"}:
        assert OmegaConf.select(primary, key, default="absent") != "absent", key


def test_an_experiment_chooses_the_strategy_unless_the_user_does():
    assert compose("+experiment=digits_ps").tree.strategy.name == "ps"
    tree = compose("+experiment=digits_ps", "strategy=single").tree
    assert tree.strategy.name == "single"
    assert tree.cluster.workers == 3


def test_typed_keys():
    typed = compose(
        "+strategy=ps",
        "optimizer.learning_rate=1",
        "model={units: 3, dropout: 0}",
        "++callbacks.stop._target_=my.Stop",
        "metrics=[]",
        "~data.validation_fraction",
        "hydra.run.dir=x",
    ).typed_keys
    assert typed == (
        "strategy",
        "optimizer.learning_rate",
        "model.units",
        "model.dropout",
        "callbacks.stop._target_",
        "metrics",
    )


def test_the_run_dir_is_hydra_s(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    default = compose()
    assert default.is_default_dir
    assert default.run_dir.parent.parent == tmp_path / "outputs"
    moved = compose("epochs=3", "hydra.run.dir=runs/${hydra.job.override_dirname}")
    assert not moved.is_default_dir
    assert moved.run_dir == tmp_path / "runs" / "epochs=3"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("epochz=3", "Did you mean epochs?"),
        ("modl=cnn", "Did you mean model?"),
        ("strategy.nam=ps", "Did you mean strategy.name?"),
        ("data.foo=1", "++data.foo=..."),
        ("model=foo", "model has no option foo. Received: model/foo. Use: cnn, mlp."),
        ("experiment=foo", "Use: cifar_mirrored"),
        ("model=null", "cnn, mlp"),
        ("strategy=ps,mirrored", "Add -m"),
        ("a b", "key=value. Received: 'a b'"),
        ("epochs=[", "key=value. Received: 'epochs=['"),
        ("~nothing", "no key nothing"),
        ("hydra/launcher=foo", "hydra/launcher has no option foo"),
        (
            "optimizer={_target_: my.Adam, unknown: 1}",
            "optimizer has no key unknown in the chosen configuration. To pass a further argument "
            "to its _target_, write '++optimizer={_target_: my.Adam, unknown: 1}'",
        ),
        ("callbacks={stop: {patience: 3}}", "no key stop in the chosen configuration. To add it"),
        ("program.x=1", "++program.x=..."),
        ("checkpoint={keep_bst: 1}", "no key checkpoint.keep_bst. Did you mean checkpoint.keep_b"),
        ("strategy={name: ps, foo: 1}", "no key strategy.foo. `--cfg job`"),
        ("metrics={out: [mse]}", "~metrics '+metrics={out: [mse]}'"),
        ("cluster=[1]", "cluster=[1] does not fit"),
        ("metrics.out=mse", "Received: metrics.out=mse. Give each key"),
        ("model=[1]", "Received: model=[1]. Give each key"),
        (f"epochs={'9' * 5000}", "Received: epochs=999"),
        (f"loss={'[' * 2000}{']' * 2000}", "Received: loss=[[["),
    ],
)
def test_a_refusal_is_one_line_that_says_what_to_do(override, said):
    with pytest.raises(ConfigError) as caught:
        compose(override)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_new_key_inside_of_a_mapping_is_taken_with_two_plus_signs():
    tree = compose("++optimizer={_target_: my.Adam, unknown: 1}").tree
    assert (tree.optimizer._target_, tree.optimizer.unknown) == ("my.Adam", 1)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data=npz", "data.path has no value"),
        ("run=${nope}", "run: Interpolation key 'nope' not found"),
        ("run=${oc.env:KDIST_TEST_NOT_SET}", "KDIST_TEST_NOT_SET"),
    ],
)
def test_a_value_that_does_not_resolve_is_named(override, said):
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        resolved(compose(override).tree)


def test_the_saved_configuration_is_resolved_but_holds_no_secret(monkeypatch):
    monkeypatch.setenv("KDIST_TEST_SECRET", "s3cret")
    tree = compose(
        "cluster.key=${oc.env:KDIST_TEST_SECRET}",
        "++data.password=prefix-${cluster.key}",
        "++data.all=${cluster}",
        "++data.list=[1, '${oc.env:KDIST_TEST_SECRET}', '${epochs}']",
        "data.validation_batch_size=${data.batch_size}",
    ).tree
    assert resolved(tree)["data"]["password"] == "prefix-s3cret"
    text = yaml_without_secrets(tree)
    assert "s3cret" not in text
    saved = yaml.safe_load(text)
    assert saved["data"]["validation_batch_size"] == 64
    assert saved["data"]["list"] == [1, "${oc.env:KDIST_TEST_SECRET}", 20]
    assert saved["data"]["password"] == "prefix-${cluster.key}"
    assert saved["data"]["all"] == "${cluster}"
    assert resolved(OmegaConf.create(saved)) == resolved(tree)


@pytest.fixture
def saved_run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    text = yaml_without_secrets(compose("+strategy=ps", "epochs=3", "model.units=7").tree)
    (folder / "config.yaml").write_text(text)
    return ["--config-dir", str(folder), "--config-name", "config"]


def test_a_saved_run_is_repeated_with_its_values(saved_run):
    tree = compose(*saved_run, "epochs=5", "data.path=x").tree
    assert (tree.strategy.name, tree.epochs, tree.model.units) == ("ps", 5, 7)


@pytest.mark.parametrize("choice", ["strategy=single", "+strategy=single", "model=cnn"])
def test_a_saved_run_takes_no_group(saved_run, choice):
    with pytest.raises(ConfigError, match="takes values, not groups"):
        compose(*saved_run, choice)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("loss=mse", "holds no loss. To add it, write ++loss=..."),
        ("checkpoint.keep=3", "holds no checkpoint.keep. To add it, write ++checkpoint.keep=..."),
        ("checkpoint={keep: 3}", "holds no checkpoint. To add it, write ++checkpoint=..."),
        ("data._target_=my.load", "holds no data._target_. To add it, write ++data._target_=..."),
        ("~metrics", "holds no metrics. Leave ~metrics out."),
        ("los=mse", "has no key los. Did you mean loss?"),
    ],
)
def test_a_key_that_only_the_saved_file_lacks_is_one_to_add(override, said, tmp_path):
    (tmp_path / "config.yaml").write_text("epochs: 3\ndata: {batch_size: 8}\n")
    with pytest.raises(ConfigError) as caught:
        compose("--config-dir", str(tmp_path), "--config-name", "config", override)
    assert said in str(caught.value)


def test_the_saved_file_of_a_fit_in_python_is_no_configuration(tmp_path):
    (tmp_path / "config.yaml").write_text("epochs: 3\nmodel: {}\ngiven: {loss: mse}\n")
    composition = compose("--config-dir", str(tmp_path), "--config-name", "config")
    with pytest.raises(ConfigError, match=r"Repeat the run with kdist\.fit"):
        kdist_config.load(resolved(composition.tree))


def test_a_group_that_the_user_s_file_leaves_out_is_named(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [{data: digits}, _self_]\n")
    with pytest.raises(ConfigError, match="leaves the group strategy out"):
        compose("--config-dir", str(tmp_path), "--config-name", "mine", "+strategy=ps")


def test_a_primary_file_of_the_user_s_may_build_on_the_shipped_one(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [kdist, _self_]\nepochs: 2\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "own.yaml").write_text("_target_: my_pkg.build\n")
    where = ["--config-dir", str(tmp_path), "--config-name", "mine"]
    assert compose(*where).tree.epochs == 2
    assert compose("--config-dir", str(tmp_path), "model=own").tree.model._target_ == "my_pkg.build"
    assert compose(*where, "+strategy=ps", "model=own").tree.strategy.name == "ps"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--config-name", "nope"], "--config-dir"),
        (["--config-dir", "/no/such/folder"], "must be a folder"),
        (["--config-dir", ".", "hydra.searchpath=[file://x]"], "Received: both"),
    ],
)
def test_a_configuration_file_that_is_not_there_is_named(argv, said):
    with pytest.raises(ConfigError, match=said):
        compose(*argv)


def test_a_file_that_is_no_yaml_is_named(tmp_path):
    (tmp_path / "config.yaml").write_text("a: [1,\n")
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        compose("--config-dir", str(tmp_path), "--config-name", "config")


@pytest.mark.parametrize("argv", [("--config-name", "mine"), ("+experiment=mine",)])
def test_a_file_that_is_no_utf_8_is_named(argv, tmp_path):
    (tmp_path / "experiment").mkdir()
    for name in ("mine.yaml", "experiment/mine.yaml"):
        (tmp_path / name).write_bytes("# größer\nepochs: 1\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"is not UTF-8 text.*# gr.*Save it as UTF-8"):
        compose("--config-dir", str(tmp_path), *argv)


@pytest.mark.parametrize(
    ("typed", "target", "batch_size"),
    [
        ([], "my.load", 8),
        (["data.batch_size=2"], "my.load", 2),
        (["data=synthetic"], "kdist.datasets.synthetic", 64),
        (["data._target_=other.load"], "other.load", 64),
    ],
)
def test_evaluate_meets_the_data_of_its_run_unless_told_otherwise(
    typed, target, batch_size, tmp_path
):
    saved = compose("data._target_=my.load", "data.batch_size=8", "seed=5").tree
    (tmp_path / "config.yaml").write_text(yaml_without_secrets(saved))
    composition = compose("command=evaluate", f"run={tmp_path}", *typed)
    tree = with_data_of_run(composition.tree, composition.typed_keys)
    assert (tree.data._target_, tree.data.batch_size) == (target, batch_size)
    assert tree.seed == (5 if target == "my.load" else 0)


@pytest.mark.parametrize(
    ("typed", "loss"), [([], "my.loss"), (["data=synthetic"], "my.loss"), (["loss=mse"], "mse")]
)
def test_evaluate_knows_the_loss_and_metrics_of_its_run(typed, loss, tmp_path):
    saved = compose("loss=my.loss", "metrics=[my.hits]").tree
    (tmp_path / "config.yaml").write_text(yaml_without_secrets(saved))
    composition = compose("command=evaluate", f"run={tmp_path}", *typed)
    tree = with_data_of_run(composition.tree, composition.typed_keys)
    assert (tree.loss, list(tree.metrics)) == (loss, ["my.hits"])


def test_a_run_without_a_configuration_changes_nothing(tmp_path):
    composition = compose("command=evaluate", f"run={tmp_path / 'model.keras'}")
    assert with_data_of_run(composition.tree, ()) is composition.tree


@pytest.mark.parametrize("content", ["[1, 2]", "epochs: 3", ""], ids=["list", "no data", "empty"])
def test_another_file_in_place_of_its_configuration_is_named(content, tmp_path):
    (tmp_path / "config.yaml").write_text(content)
    composition = compose("command=evaluate", f"run={tmp_path}")
    with pytest.raises(ConfigError, match=f"cannot be read.*run={tmp_path}.*has no section data"):
        with_data_of_run(composition.tree, ())
    named = compose("command=evaluate", f"run={tmp_path}", "data=synthetic")
    assert with_data_of_run(named.tree, named.typed_keys) is named.tree
