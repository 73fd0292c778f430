"""The parts of a sweep by themselves: decisions, texts, the folder, the figure."""

import dataclasses
import threading
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from kdist.cli.composition import Composition
from kdist.cli.sweep.devices import DevicePool, visible_devices
from kdist.cli.sweep.earlier import differences
from kdist.cli.sweep.figure import draw_sweep, figure_of
from kdist.cli.sweep.jobs import Outcome, SweepJob, failed
from kdist.cli.sweep.pool import JobPool
from kdist.cli.sweep.table import best_row, over_seeds, render_csv, render_table
from kdist.errors import ConfigError, EnvironmentFault
from kdist.launch import ports
from kdist.launch.ports import PortLeases
from kdist.records.sweep_folder import SweepFolder


def job(number, **values):
    composition = Composition(
        tree=OmegaConf.create({"command": "train"}),
        typed_keys=(),
        run_dir=Path(f"/swept/{number}"),
        is_default_dir=False,
    )
    return SweepJob(number=number, values=values, composition=composition, hydra=None)


def done(value, metric="val_loss", status="completed"):
    return Outcome(status=status, metric=metric, value=value, seconds=1.25)


ROWS = [
    (job(0, model="mlp", seed="1"), done(0.25)),
    (job(1, model="cnn, small", seed="1"), done(0.125)),
    (job(2, model="mlp", seed="2"), failed("it broke\nbadly", 0.5)),
    (job(3, model="mlp", seed="3"), Outcome(status="not started")),
]


def test_the_table_in_full():
    assert render_table(ROWS, Path("/swept")).splitlines() == [
        "job  overrides                status       best            seconds",
        "0    model=mlp seed=1         completed    val_loss 0.25       1.2",
        "1    model=cnn, small seed=1  completed    val_loss 0.125      1.2",
        "2    model=mlp seed=2         failed       -                   0.5",
        "3    model=mlp seed=3         not started  -                     -",
        "",
        "Sweep: 4 job(s), 2 completed, 1 failed, 1 not started. /swept",
        "Job 2 failed: it broke",
        "Best: job 1, val_loss 0.125. model=cnn, small seed=1",
    ]


def test_the_csv_in_full():
    assert render_csv(ROWS).splitlines() == [
        "job,status,metric,best,seconds,model,seed,overrides,folder,error",
        "0,completed,val_loss,0.25,1.25,mlp,1,model=mlp seed=1,/swept/0,",
        '1,completed,val_loss,0.125,1.25,"cnn, small",1,"model=cnn, small seed=1",/swept/1,',
        '2,failed,,,0.5,mlp,2,model=mlp seed=2,/swept/2,"it broke',
        'badly"',
        "3,not started,,,,mlp,3,model=mlp seed=3,/swept/3,",
    ]


@pytest.mark.parametrize(
    ("outcomes", "best"),
    [
        ([done(3.0), done(1.0)], 1),
        ([done(0.3, "val_accuracy"), done(0.1, "val_accuracy")], 0),
        ([done(None, None), done(1.0)], 1),
        ([done(0.1, "val_accuracy"), done(0.2)], None),
        ([done(None, None)], None),
    ],
)
def test_the_best_job_goes_by_one_metric(outcomes, best):
    found = best_row([(job(number), each) for number, each in enumerate(outcomes)])
    assert (found[0].number if found else None) == best


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        [(job(n, rate=str(10.0**-n), model=m), done(n)) for n in range(3) for m in ("a", "b")],
        [(job(n, rate=str(n)), done(n)) for n in range(3)],
        [(job(n, a=str(n), b=str(n)), done(n, f"m{n}")) for n in range(3)],
        [(job(0), done(1.0))],
    ],
    ids=["bars", "lines", "one line", "several metrics", "one job"],
)
def test_the_figure_is_drawn_for_every_kind_of_sweep(rows, tmp_path):
    draw_sweep(rows, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def axes_of(rows):
    [axes] = figure_of(rows).axes
    return axes


SEEDS = [(job(n, seed=str(n)), done(float(n))) for n in (1, 2, 3)]
RATES_AND_SEEDS = [
    (job(4 * i + j, rate=str(rate), seed=str(seed)), done(rate * seed))
    for i, rate in enumerate((10.0, 20.0))
    for j, seed in enumerate((1, 3))
]


def test_seeds_are_points_at_integers_and_no_line():
    axes = axes_of(SEEDS)
    assert [line.get_linestyle() for line in axes.get_lines()] == ["None"]
    assert all(tick.is_integer() for tick in axes.get_xticks())


def test_values_over_a_key_are_means_over_the_seeds():
    axes = axes_of(RATES_AND_SEEDS)
    [line, *_] = axes.get_lines()
    assert axes.get_ylabel() == "best val_loss, mean over seeds"
    assert line.get_xydata().tolist() == [[10.0, 20.0], [20.0, 40.0]]
    assert line.get_linestyle() == "-"


def test_no_seed_is_the_best_one():
    assert render_table(SEEDS, Path("/swept")).splitlines()[-2:] == [
        "Over seeds:",
        "val_loss 2 (standard deviation 1, 3 seed(s))",
    ]


def test_what_differs_in_more_than_seeds_is_told_best_first():
    rows = [*RATES_AND_SEEDS, (job(9, rate="5.0", seed="1"), failed("no"))]
    assert render_table(rows, Path("/swept")).splitlines()[-3:] == [
        "Over seeds, best first:",
        "rate=10.0  val_loss 20 (standard deviation 14, 2 seed(s))",
        "rate=20.0  val_loss 40 (standard deviation 28, 2 seed(s))",
    ]


def test_the_highest_accuracy_over_seeds_comes_first():
    rows = [(j, done(outcome.value, "val_accuracy")) for j, outcome in RATES_AND_SEEDS]
    assert [each.label for each in over_seeds(rows)] == ["rate=20.0", "rate=10.0"]


def test_no_figure_without_a_value(tmp_path):
    draw_sweep([(job(0), failed("no"))], tmp_path / "sweep.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("saved", "asked", "found"),
    [
        ({"epochs": 3}, {"epochs": 3}, []),
        ({"epochs": 3}, {"epochs": 4}, ["epochs was 3, is 4"]),
        (
            {"model": {"units": 3}},
            {"model": {"units": 3, "width": 1}},
            ["model.width was None, is 1"],
        ),
        ({"max_steps": 3}, {"max_steps": None}, ["max_steps was 3, is None"]),
        ({"seed": 77}, {"seed": None}, []),
        ({"strategy": {"name": "single"}}, {"strategy": {"name": None}}, []),
        ({"verbose": True, "resume": "never"}, {"verbose": False, "resume": "auto"}, []),
        ({}, {"jit_compile": False}, []),
    ],
)
def test_what_makes_a_run_another_one(saved, asked, found):
    assert differences(saved, asked) == found


def test_devices_go_round():
    pool = DevicePool(["a", "b", "c"], 2)
    first = pool.take()
    assert (first, pool.take()) == (("a", "b"), None)
    pool.give_back(first)
    assert pool.take() == ("a", "b")
    assert (pool.count(first), pool.most_for_one_job()) == (2, 2)
    shared = DevicePool(["a", "b"], None)
    assert (shared.take(), shared.take(), shared.count(()), shared.most_for_one_job()) == (
        (),
        (),
        2,
        2,
    )
    assert DevicePool([], 3).take() == ()
    with pytest.raises(ConfigError, match="Received: 4, 3 accelerator"):
        DevicePool(["a", "b", "c"], 4)


@pytest.mark.parametrize(
    ("environ", "num", "found"),
    [({}, 2, ["0", "1"]), ({"CUDA_VISIBLE_DEVICES": "3, GPU-7,9"}, 2, ["3", "GPU-7"]), ({}, 0, [])],
)
def test_devices_are_named_as_cuda_does(environ, num, found):
    assert visible_devices(environ, num) == found


def test_no_port_is_given_to_two_runs(monkeypatch):
    offered = iter([(1, 2), (2, 3), (3, 4), (1, 2)])
    monkeypatch.setattr(ports, "find_free_ports", lambda *_: next(offered))
    leases = PortLeases()
    assert leases.find("127.0.0.1", 2) == (1, 2)
    assert leases.find("127.0.0.1", 2) == (3, 4)
    leases.give_back([1, 2, 0])
    assert leases.find("127.0.0.1", 2) == (1, 2)
    monkeypatch.setattr(ports, "find_free_ports", lambda *_: (1, 2))
    with pytest.raises(EnvironmentFault, match="too few free ports"):
        leases.find("127.0.0.1", 2)


def test_a_sweep_folder_that_held_nothing_leaves_nothing(tmp_path):
    folder = SweepFolder.claim(tmp_path / "a" / "b", make_unique=True)
    other = SweepFolder.claim(tmp_path / "a" / "b", make_unique=True)
    assert (folder.path.name, other.path.name) == ("b", "b-2")
    other.sweep_csv.touch()
    folder.release()
    other.release()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.csv")) == [
        "a/b-2/sweep.csv"
    ]
    assert not folder.path.exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    SweepFolder.claim(mine, make_unique=False).release()
    assert mine.exists()


def test_a_sweep_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match=r"file.*hydra\.sweep\.dir"):
        SweepFolder.claim(tmp_path / "file", make_unique=False)


def test_the_pool_ends_its_jobs_after_an_error_of_its_own():
    told = []

    def carry_out(signals):
        with signals.opened():
            waited = threading.Event()
            while not (numbers := signals.take()):
                assert not waited.wait(0.01)
            told.extend(numbers)
        return done(1.0)

    def on_end(found, outcome):
        raise RuntimeError("the disk is full")

    pool = JobPool(
        num_at_once=2,
        start=lambda found: carry_out if found.number == 0 else done(1.0),
        on_end=on_end,
        fail_fast=False,
    )
    with pytest.raises(RuntimeError, match="the disk is full"):
        pool.run([job(0), job(1)])
    assert told


def test_a_job_that_must_wait_is_asked_again_when_another_has_ended():
    free, order = [True], []

    def start(found):
        if not free[0]:
            return None
        free[0] = False

        def carry_out(_):
            return dataclasses.replace(done(float(found.number)))

        return carry_out

    def on_end(found, outcome):
        free[0] = True
        order.append(found.number)

    JobPool(num_at_once=3, start=start, on_end=on_end, fail_fast=False).run(
        [job(n) for n in (0, 1, 2)]
    )
    assert order == [0, 1, 2]
