"""The shared directory with ranks as threads, and what earlier jobs may have left in it."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from aiacc.bootstrap.providers.shared_file import SharedFileProvider
from aiacc.bootstrap.records import Record
from aiacc.exceptions import BootstrapError

PATIENT_S = 30.0
SHORT_S = 0.3


def provider(rank, size, path, *, generation=0):
    return SharedFileProvider(rank=rank, size=size, path=str(path), generation=generation)


def gather(rank, size, path, *, timeout_s=PATIENT_S, payload=None, generation=0):
    body = f"from {rank}".encode() if payload is None else payload
    return provider(rank, size, path, generation=generation).all_gather(body, timeout_s=timeout_s)


def run_all(calls):
    """Outcome of each call: its result, or the text of its BootstrapError."""

    def outcome(call):
        try:
            return call()
        except BootstrapError as error:
            return str(error)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(outcome, calls))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "meet"


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_rank_gets_every_payload_and_nothing_is_left(size, path):
    results = run_all([lambda rank=rank: gather(rank, size, path) for rank in range(size)])
    assert results == [[f"from {rank}".encode() for rank in range(size)]] * size
    assert list(path.iterdir()) == []


def test_200_generations_of_several_exchanges(path):
    def body(rank):
        for generation in range(200):
            end = provider(rank, 2, path, generation=generation)
            for n in range(2):
                got = end.all_gather(b"%d/%d/%d" % (generation, n, rank), timeout_s=PATIENT_S)
                assert got == [b"%d/%d/%d" % (generation, n, other) for other in range(2)]
            end.close()
        return "done"

    assert run_all([lambda: body(0), lambda: body(1)]) == ["done", "done"]
    assert list(path.iterdir()) == []


def test_a_file_of_that_name(path):
    path.write_text("from mktemp")
    assert run_all([lambda: gather(0, 2, path), lambda: gather(1, 2, path)])[0][1] == b"from 1"
    assert path.read_text() == "from mktemp"


def leave_behind(path, rank, size, *, kind="entry", payload=b"old", seen=None):
    """What a rank of an earlier job left when it was killed."""
    folder = path / "aiacc-0-0"
    folder.mkdir(parents=True, exist_ok=True)
    record = Record(rank, size, 0, nonce=f"old{rank}", seen=seen or {"0": "old0", "1": "old1"})
    (folder / f"{kind}.{rank}").write_bytes(record.encode(payload))


@pytest.mark.parametrize("old_size", [2, 4])
def test_files_of_an_earlier_job_are_not_taken_for_ours(old_size, path):
    for rank in range(old_size):
        for kind in ("entry", "done", "failed"):
            leave_behind(path, rank, old_size, kind=kind)
    results = run_all([lambda: gather(0, 2, path), lambda: gather(1, 2, path)])
    assert results == [[b"from 0", b"from 1"]] * 2
    assert list(path.iterdir()) == []


def test_a_rank_of_an_earlier_job_does_not_count_as_present(path):
    leave_behind(path, 1, 2)
    with pytest.raises(BootstrapError, match="rank 1 of 2 did not come"):
        gather(0, 2, path, timeout_s=SHORT_S)


def test_files_that_are_no_entries(path):
    folder = path / "aiacc-0-0"
    folder.mkdir(parents=True)
    (folder / "entry.1").write_bytes(b"\xff\xfenonsense")
    (folder / "entry.7").write_bytes(b'{"rank": "x"}\n')
    (folder / "failed.1").write_bytes(b"")
    (folder / "notes.txt").write_text("hello")
    results = run_all([lambda: gather(0, 2, path), lambda: gather(1, 2, path)])
    assert results == [[b"from 0", b"from 1"]] * 2


def test_missing_ranks_are_named_on_every_rank_that_came(path):
    results = run_all(
        [lambda: gather(0, 4, path, timeout_s=SHORT_S), lambda: gather(2, 4, path)],
    )
    for text in results:
        assert "ranks 1 and 3 of 4 did not come" in text


def test_wrong_rank_count_fails_everywhere_with_both_numbers(path):
    results = run_all([lambda: gather(0, 3, path), lambda: gather(1, 2, path)])
    for text in results:
        assert "size 3" in text
        assert "size 2" in text


def test_duplicate_rank(path):
    results = run_all([lambda: gather(1, 3, path), lambda: gather(1, 3, path)])
    for text in results:
        assert "rank 1 came twice" in text


def test_another_version(path):
    def other():
        end = provider(1, 2, path)
        mine = Record(1, 2, 0, nonce="n", version=99)
        exchange = _Exchange(end._folder(), 1, 2, 0, b"")
        exchange._mine = dataclasses.replace(mine, nonce=exchange._mine.nonce)
        return exchange.run(Deadline(PATIENT_S))

    from aiacc.bootstrap.provider import Deadline
    from aiacc.bootstrap.providers.shared_file import _Exchange

    for text in run_all([lambda: gather(0, 2, path), other]):
        assert "bootstrap version" in text


def test_a_place_that_cannot_be_written():
    with pytest.raises(BootstrapError, match="rank 0 cannot use /proc/no"):
        gather(0, 2, "/proc/no/such/place", timeout_s=SHORT_S)
