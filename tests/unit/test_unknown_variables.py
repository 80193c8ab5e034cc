from __future__ import annotations

import warnings

import pytest

import aiacc
from aiacc import _core
from aiacc.exceptions import BootstrapError
from aiacc.unknown_variables import warning_about
from tests.support.ranks import run_ranks

KNOWN = [name for name, *_ in _core.env_table()]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"AIACC_LANES": "4", "PATH": "/bin", "LANE": "1", "HOROVOD_LANE": "4"},
        {"AIACC_LANE": ""},
        {"AIACC_MPICC": "mpicc.openmpi"},
    ],
)
def test_nothing_to_say(variables):
    assert warning_about(variables, KNOWN) == ""


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("AIACC_LANE", "AIACC_LANES"),
        ("AIACC_ADDRESS", "AIACC_ADDR"),
        ("AIACC_TIMEOUT_S", "AIACC_PEER_TIMEOUT_S"),
        ("AIACC_LOGLEVEL", "AIACC_LOG_LEVEL"),
    ],
)
def test_a_typo_is_named_with_what_was_meant(name, meant):
    text = warning_about({name: "4"}, KNOWN)
    assert text.startswith(f"[config] {name} (did you mean {meant}?) is no variable of aiacc")


def test_one_text_for_all():
    text = warning_about({"AIACC_COLOUR": "1", "AIACC_LANE": "2"}, KNOWN)
    assert "AIACC_COLOUR, AIACC_LANE (did you mean AIACC_LANES?) are no variables" in text


def test_init_warns_once_and_where_it_was_called(monkeypatch):
    monkeypatch.setenv("AIACC_LANE", "4")
    with pytest.warns(UserWarning, match="AIACC_LANE ") as record:
        aiacc.init()
    aiacc.shutdown()
    assert len(record) == 1
    assert record[0].filename == __file__


def test_settings_that_cannot_work_because_of_a_typo(monkeypatch):
    monkeypatch.setenv("AIACC_RANK", "0")
    monkeypatch.setenv("AIACC_SIZE", "2")
    monkeypatch.setenv("AIACC_ADR", "127.0.0.1:1")
    with pytest.raises(BootstrapError, match=r"without AIACC_ADDR.*AIACC_ADR \(did you mean AIACC"):
        aiacc.init()


def warnings_at_init():
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        aiacc.init()
    aiacc.shutdown()
    return len(record)


def test_only_one_rank_warns():
    assert run_ranks(3, warnings_at_init, env={"AIACC_LANE": "4"}) == [1, 0, 0]


def test_they_are_part_of_an_error(monkeypatch):
    monkeypatch.setenv("AIACC_RANKS", "3")
    monkeypatch.setenv("AIACC_LANES", "foo")
    with pytest.raises(ValueError, match=r"AIACC_LANES.*AIACC_RANKS .did you mean AIACC_RANK"):
        aiacc.init()
