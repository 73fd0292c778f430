import json
import os

import numpy as np
import pytest

from kdist.errors import ConfigError, EnvironmentFault
from kdist.records.result import blank_result, read_result, write_result


def test_nan_and_infinity_become_null_and_are_named(tmp_path):
    result = blank_result(
        status="completed",
        metrics={"loss": float("nan"), "accuracy": np.float32(0.5)},
        best={"value": float("-inf")},
        warnings=["first"],
    )
    written = write_result(tmp_path / "result.json", result)
    text = (tmp_path / "result.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert json.loads(text) == written
    assert written["metrics"] == {"loss": None, "accuracy": 0.5}
    assert written["warnings"] == [
        "first",
        "metrics.loss is nan; written as null",
        "best.value is -inf; written as null",
    ]


def test_numpy_values_paths_and_tuples_become_plain(tmp_path):
    written = write_result(
        tmp_path / "result.json",
        {"status": "completed", "a": np.int64(3), "b": (1, np.arange(2)), "c": tmp_path},
    )
    assert written == {"status": "completed", "a": 3, "b": [1, [0, 1]], "c": str(tmp_path)}


def test_a_path_that_is_no_utf_8_is_kept(tmp_path):
    path = tmp_path / "result.json"
    written = write_result(path, {"status": "completed", "run_dir": "/gr\udcfcn/ü"})
    assert read_result(path) == written
    assert b"/gr\\udcfcn/\xc3\xbc" in path.read_bytes()


def test_a_blank_result_has_every_key_and_shares_nothing():
    first, second = blank_result(status="stopped"), blank_result()
    first["warnings"].append("x")
    assert second["warnings"] == [] and second["status"] == "failed"
    assert list(first) == list(second)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_result(path, {"status": "completed"})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFault, match=r"result\.json.*No space left on device"):
        write_result(path, {"status": "failed"})
    assert read_result(path)["status"] == "completed"
    assert os.listdir(tmp_path) == ["result.json"]


@pytest.mark.parametrize("content", [None, "{", "[]", '{"a": 1}'])
def test_what_is_no_result_is_refused_by_path(tmp_path, content):
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=str(path)):
        read_result(path)
