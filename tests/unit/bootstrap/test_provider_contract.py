"""What every way to meet promises. Ranks are threads; real launchers: tests/parallel/launch."""

import dataclasses
import os

import pytest
import torch.distributed as dist

from aiacc.bootstrap.providers import shared_file
from aiacc.bootstrap.providers.shared_file import SharedFileProvider
from aiacc.bootstrap.providers.slurm import SlurmProvider
from aiacc.bootstrap.providers.store import StoreProvider
from aiacc.bootstrap.records import Record
from aiacc.bootstrap.rendezvous import RendezvousProvider
from aiacc.config import SlurmEnvironment
from aiacc.exceptions import BootstrapError
from tests.support.rendezvous import ENOUGH_S, PATIENT_S, SHORT_S, exchange, run_all

pytestmark = pytest.mark.usefixtures("nothing_left_open")


class Meeting:
    """Makes providers of one kind that meet each other; ``place`` is where."""

    def __init__(self, kind, port, folder):
        self.kind = kind
        self.address = f"127.0.0.1:{port}"
        self.path = folder / "meet"
        self.store = dist.HashStore() if kind == "store" else None

    def provider(self, rank, size, generation=0):
        told = {"rank": rank, "size": size, "generation": generation}
        if self.kind == "rendezvous":
            return RendezvousProvider(address=self.address, token="", **told)
        if self.kind == "file":
            return SharedFileProvider(path=str(self.path), **told)
        if self.kind == "slurm":
            task = SlurmEnvironment(rank, size, -1, -1, 812, 3, "one", "", "big", "ada")
            told = {"generation": generation, "local_rank": None, "local_size": None}
            return SlurmProvider(task, address=self.address, token="", **told)
        made = StoreProvider(self.store, rank, size)
        made.generation = generation  # as if it were in a process of its own
        return made

    def gather(self, rank, size, *payloads, timeout_s=PATIENT_S, generation=0):
        return exchange(self.provider(rank, size, generation), *payloads, timeout_s=timeout_s)


ALL = ["rendezvous", "file", "slurm", "store"]
#: Those that know who else came and for which job.
CAREFUL = ALL[:3]


@pytest.fixture(params=ALL)
def meeting(request, port, tmp_path):
    return Meeting(request.param, port, tmp_path)


careful = pytest.mark.parametrize("meeting", CAREFUL, indirect=True)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_rank_gets_every_payload_in_rank_order_and_nothing_is_left(meeting, size):
    rounds = [[bytes([rank, n]) for rank in range(size)] for n in range(4)]
    rounds.append([b"", os.urandom(1 << 20), b"\0x", *[b"y"] * size][:size])
    calls = [lambda r=r: meeting.gather(r, size, *(row[r] for row in rounds)) for r in range(size)]
    assert run_all(calls) == [rounds] * size
    assert not meeting.path.exists() or not list(meeting.path.iterdir())


@pytest.mark.parametrize("generations", [20, pytest.param(200, marks=pytest.mark.nightly)])
def test_a_fast_rank_may_begin_the_next_generation(meeting, generations):
    def body(rank):
        for number in range(generations):
            mine = [b"%d/%d/%d" % (number, n, rank) for n in range(2)]
            got = meeting.gather(rank, 2, *mine, generation=number)
            assert got == [[b"%d/%d/%d" % (number, n, other) for other in (0, 1)] for n in (0, 1)]
        return "done"

    assert run_all([lambda: body(0), lambda: body(1)]) == ["done", "done"]


def test_missing_ranks_are_named_on_every_rank_that_came(meeting):
    patience_s = ENOUGH_S if meeting.kind == "store" else PATIENT_S
    texts = run_all(
        [
            lambda: meeting.gather(0, 4, b"", timeout_s=ENOUGH_S),
            lambda: meeting.gather(2, 4, b"", timeout_s=patience_s),
        ]
    )
    for text in texts:
        assert "ranks 1 and 3 of 4 did not come" in text
        assert f"within {ENOUGH_S:g} s of rank " in text


@careful
@pytest.mark.parametrize(("zero_says", "one_says"), [(3, 2), (2, 3)])
def test_wrong_rank_count_fails_everywhere_with_both_numbers(meeting, zero_says, one_says):
    calls = [lambda: meeting.gather(0, zero_says, b""), lambda: meeting.gather(1, one_says, b"")]
    for text in run_all(calls):
        assert f"size {zero_says}" in text
        assert f"size {one_says}" in text


@careful
def test_a_rank_that_comes_twice_fails_everywhere(meeting):
    ranks = (1, 1) if meeting.kind == "file" else (0, 1, 1)
    for text in run_all([lambda rank=rank: meeting.gather(rank, 3, b"") for rank in ranks]):
        assert "rank 1 came twice" in text


def test_a_payload_beyond_the_limit_is_refused_and_closing_again_does_nothing(meeting):
    end = meeting.provider(1, 2)
    with pytest.raises(BootstrapError, match="1048577 bytes"):
        end.all_gather(bytes((1 << 20) + 1), timeout_s=PATIENT_S)
    end.close()
    end.close()


# --- what there is in a shared folder


@pytest.fixture
def files(tmp_path):
    return Meeting("file", 0, tmp_path)


def gather_both(files):
    return run_all([lambda rank=rank: files.gather(rank, 2, b"%d" % rank) for rank in range(2)])


BOTH = [[[b"0", b"1"]]] * 2


def test_a_file_of_that_name_is_left_alone(files):
    files.path.write_text("from mktemp")
    assert gather_both(files) == BOTH
    assert files.path.read_text() == "from mktemp"


def leave_behind(files, rank, size, kind="entry"):
    """What a rank of an earlier job left when it was killed."""
    folder = files.path / "aiacc-0-0"
    folder.mkdir(parents=True, exist_ok=True)
    record = Record(rank, size, 0, nonce=f"old{rank}", seen={"0": "old0", "1": "old1"})
    (folder / f"{kind}.{rank}").write_bytes(record.encode(b"old"))


@pytest.mark.parametrize("old_size", [2, 4])
def test_files_of_an_earlier_job_are_not_taken_for_ours_nor_what_is_no_entry(old_size, files):
    for rank in range(old_size):
        for kind in ("entry", "done", "failed"):
            leave_behind(files, rank, old_size, kind)
    assert gather_both(files) == BOTH
    assert list(files.path.iterdir()) == []
    folder = files.path / "aiacc-0-0"
    folder.mkdir(parents=True)
    (folder / "entry.1").write_bytes(b"\xff\xfenonsense")
    (folder / "entry.7").write_bytes(b'{"rank": "x"}\n')
    (folder / "failed.1").write_bytes(b"")
    (folder / "notes.txt").write_text("hello")
    assert gather_both(files) == BOTH


def test_a_rank_of_an_earlier_job_does_not_count_as_present(files):
    leave_behind(files, 1, 2)
    with pytest.raises(BootstrapError, match="rank 1 of 2 did not come"):
        files.gather(0, 2, b"", timeout_s=SHORT_S)
    files.path = "/proc/no/such/place"
    with pytest.raises(BootstrapError, match="rank 0 cannot use /proc/no"):
        files.gather(0, 2, b"", timeout_s=SHORT_S)


def test_a_rank_of_another_version_is_an_error_of_both(files, monkeypatch):
    def record(rank, *args, **options):
        made = Record(rank, *args, **options)
        return dataclasses.replace(made, version=99) if rank == 1 else made

    record.decode = Record.decode
    monkeypatch.setattr(shared_file, "Record", record)
    for text in gather_both(files):
        assert "bootstrap version" in text
