from __future__ import annotations

import warnings

import pytest

import aiacc
from aiacc.horovod_variables import warning_about


def test_nothing_to_say():
    assert warning_about({}, ()) is None
    unchanged = {
        "PATH": "/bin",
        "AIACC_LANES": "2",
        "HOROVOD_CYCLE_TIME": "1",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "10",
        "HOROVOD_ELASTIC": "",
        "HOROVOD_HOSTNAME": "here",
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CACHE_CAPACITY": "7",
    }
    assert warning_about(unchanged, ["HOROVOD_CACHE_CAPACITY"]) is None


def test_one_text_names_all_with_reasons():
    text = warning_about(
        {
            "HOROVOD_FUSION_THRESHOLD": "0",
            "HOROVOD_CYCLE_TIME": "3.5",
            "HOROVOD_COLOUR": "blue",
            "HOROVOD_RANK": "0",
        },
        ["HOROVOD_RANK"],
    )
    assert text is not None
    assert "HOROVOD_CYCLE_TIME (there is no cycle)" in text
    assert "HOROVOD_FUSION_THRESHOLD (there is no fusion buffer; AIACC_UNIT_BYTES" in text
    assert "HOROVOD_COLOUR (unknown)" in text
    assert "HOROVOD_RANK" not in text


def test_init_warns_once(monkeypatch):
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "5")
    monkeypatch.setenv("HOROVOD_AUTOTUNE", "1")
    monkeypatch.setenv("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "5")
    monkeypatch.setenv("HOROVOD_STALL_CHECK_DISABLE", "1")
    with pytest.warns(UserWarning, match="no effect") as record:
        aiacc.init()
    aiacc.shutdown()
    assert len(record) == 1
    assert record[0].filename == __file__
    text = str(record[0].message)
    assert "HOROVOD_AUTOTUNE " not in text
    assert "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE (what is tuned" in text
    assert "HOROVOD_CYCLE_TIME" in text
    assert "STALL" not in text


def test_init_is_quiet_without(monkeypatch):
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "error")
    with warnings.catch_warnings(record=True) as seen:
        aiacc.init()
    aiacc.shutdown()
    assert not seen
