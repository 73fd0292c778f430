"""What a new start in a used folder means."""

import pytest

from kdist.config.schema import Config
from kdist.records.result import write_result
from kdist.records.resumption import Start, Wish, beyond_wish, decide, settings_of


@pytest.mark.parametrize(
    ("batches_seen", "max_steps", "total_steps", "said"),
    [
        (45, None, 46, None),
        (46, None, 46, None),  # Finished, and no more than that.
        (47, None, 46, "47 batches, where 46 were asked for (epochs=2)"),
        (47, 50, 46, "47 batches, where 46 were asked for (epochs=2)"),
        (47, 30, 30, "47 batches, where 30 were asked for (max_steps=30)"),
    ],
)
def test_a_run_that_is_further_than_what_is_asked_for(batches_seen, max_steps, total_steps, said):
    config = Config(epochs=2, max_steps=max_steps)
    assert beyond_wish(batches_seen, total_steps, config) == said


def test_a_garbled_configuration_of_an_earlier_run_ends_nothing(tmp_path):
    (tmp_path / "checkpoints/step-000000010").mkdir(parents=True)
    done = {"status": "completed", "epochs": 1, "steps_per_epoch": 10}
    write_result(tmp_path / "result.json", done)
    (tmp_path / "config.yaml").write_bytes(b"seed: \xff\n")
    wish = Wish(run_dir=tmp_path, config=Config(), config_yaml="seed: 1\n", is_new_name=False)
    assert decide(wish) is Start.CONTINUE
    assert settings_of("day: 2020-99-99\n") == {}  # YAML's dates are Python's.
