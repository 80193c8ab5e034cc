"""The shared directory: what earlier jobs and others may have left in it."""

import dataclasses

import pytest

from aiacc.bootstrap.providers import shared_file
from aiacc.bootstrap.providers.shared_file import SharedFileProvider
from aiacc.bootstrap.records import Record
from aiacc.exceptions import BootstrapError
from tests.support.rendezvous import PATIENT_S, SHORT_S, run_all


def gather(rank, path, *, timeout_s=PATIENT_S):
    end = SharedFileProvider(rank=rank, size=2, path=str(path), generation=0)
    return end.all_gather(f"from {rank}".encode(), timeout_s=timeout_s)


def gather_both(path):
    return run_all([lambda: gather(0, path), lambda: gather(1, path)])


BOTH = [[b"from 0", b"from 1"]] * 2


@pytest.fixture
def path(tmp_path):
    return tmp_path / "meet"


def test_a_file_of_that_name_is_left_alone(path):
    path.write_text("from mktemp")
    assert gather_both(path) == BOTH
    assert path.read_text() == "from mktemp"


def leave_behind(path, rank, size, kind="entry"):
    """What a rank of an earlier job left when it was killed."""
    folder = path / "aiacc-0-0"
    folder.mkdir(parents=True, exist_ok=True)
    record = Record(rank, size, 0, nonce=f"old{rank}", seen={"0": "old0", "1": "old1"})
    (folder / f"{kind}.{rank}").write_bytes(record.encode(b"old"))


@pytest.mark.parametrize("old_size", [2, 4])
def test_files_of_an_earlier_job_are_not_taken_for_ours(old_size, path):
    for rank in range(old_size):
        for kind in ("entry", "done", "failed"):
            leave_behind(path, rank, old_size, kind)
    assert gather_both(path) == BOTH
    assert list(path.iterdir()) == []


def test_a_rank_of_an_earlier_job_does_not_count_as_present(path):
    leave_behind(path, 1, 2)
    with pytest.raises(BootstrapError, match="rank 1 of 2 did not come"):
        gather(0, path, timeout_s=SHORT_S)


def test_files_that_are_no_entries_are_passed_over(path):
    folder = path / "aiacc-0-0"
    folder.mkdir(parents=True)
    (folder / "entry.1").write_bytes(b"\xff\xfenonsense")
    (folder / "entry.7").write_bytes(b'{"rank": "x"}\n')
    (folder / "failed.1").write_bytes(b"")
    (folder / "notes.txt").write_text("hello")
    assert gather_both(path) == BOTH


def test_a_rank_of_another_version_is_an_error_of_both(path, monkeypatch):
    def record(rank, *args, **options):
        made = Record(rank, *args, **options)
        return dataclasses.replace(made, version=99) if rank == 1 else made

    record.decode = Record.decode
    monkeypatch.setattr(shared_file, "Record", record)
    for text in gather_both(path):
        assert "bootstrap version" in text


def test_a_place_that_cannot_be_written():
    with pytest.raises(BootstrapError, match="rank 0 cannot use /proc/no"):
        gather(0, "/proc/no/such/place", timeout_s=SHORT_S)
