"""Timelines of whole jobs: locales, files of all ranks, steps, the merge."""

import itertools
import json
import locale
import resource
import subprocess

import pytest
import torch

import aiacc.torch as hvd
from aiacc.run.main import main
from tests.support.learning.training import Together, distributed, train
from tests.support.ranks import run_ranks
from tests.support.timelines import check_rows


@pytest.fixture(scope="module")
def comma_locale(tmp_path_factory):
    """A folder with the locale de_DE.UTF-8, in which 1/2 is 0,5; not every system has it."""
    folder = tmp_path_factory.mktemp("locales")
    command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / "de_DE.UTF-8")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (folder / "de_DE.UTF-8" / "LC_NUMERIC").exists(), made.stderr
    return folder


def _train(steps):
    locale.setlocale(locale.LC_NUMERIC, "de_DE.UTF-8")
    assert locale.localeconv()["decimal_point"] == ","
    hvd.init()
    model = torch.nn.Linear(3, 2)
    optimizer = distributed(model, torch.optim.SGD(model.parameters(), lr=0.1))
    train(Together(model, optimizer, lambda *_: model(torch.ones(4, 3)).sum()), range(steps))
    hvd.shutdown()


def _phases(events, category):
    return [event for event in events if event.get("cat") == category]


def test_all_ranks_write_valid_json_with_steps_where_numbers_have_commas(tmp_path, comma_locale):
    path = tmp_path / "t.json"
    environment = {"AIACC_TIMELINE": str(path), "LOCPATH": str(comma_locale)}
    run_ranks(2, _train, 3, env=environment)
    files = [path, tmp_path / "t.rank1.json"]
    for rank, file in enumerate(files):
        events = json.loads(file.read_text())
        steps = _phases(events, "STEP")
        assert [event["name"] for event in steps] == ["step 0", "step 1", "step 2"]
        assert _phases(events, "ALLREDUCE")
        for before, after in itertools.pairwise(steps):
            assert after["ts"] == before["ts"] + before["dur"]
        assert {event["pid"] for event in events} == {rank}
        check_rows(events)
        agreed = _phases(events, "NEGOTIATE_ALLREDUCE")
        assert [event["ph"] for event in agreed] == ["b", "e"] * (len(agreed) // 2) != []
    merged = tmp_path / "all.json"
    assert main(["--merge-timelines", str(merged), *map(str, files)]) == 0
    events = json.loads(merged.read_text())
    assert {event["pid"] for event in events} == {0, 1}
    check_rows(events)
    # An all-reduce takes place on both ranks at once: their phases overlap on the common clock.
    spans = {
        rank: [
            (event["ts"], event["ts"] + event["dur"])
            for event in _phases(events, "ALLREDUCE")
            if event["pid"] == rank
        ]
        for rank in (0, 1)
    }
    assert len(spans[0]) == len(spans[1])
    for first, second in zip(spans[0], spans[1], strict=True):
        assert max(first[0], second[0]) <= min(first[1], second[1])


def _add_up(times, room):
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
    hvd.init()
    for _ in range(times):
        total = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="x")
        assert total.tolist() == [hvd.size()] * 3
    hvd.shutdown()


def test_a_full_disk_ends_the_timelines_and_not_the_job(tmp_path, capfd):
    path = tmp_path / "t.json"
    run_ranks(2, _add_up, 100, 4096, env={"AIACC_TIMELINE": str(path), "AIACC_ENGINE": "tcp"})
    files = [path, tmp_path / "t.rank1.json"]
    errors = capfd.readouterr().err
    for file in files:
        assert file.stat().st_size <= 4096
        assert _phases(json.loads(file.read_text()), "ALLREDUCE")
        assert errors.count(f"'{file}' ends here") == 1
    merged = tmp_path / "all.json"
    assert main(["--merge-timelines", str(merged), *map(str, files)]) == 0
    assert {event["pid"] for event in json.loads(merged.read_text())} == {0, 1}
