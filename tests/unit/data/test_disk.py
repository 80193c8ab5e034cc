"""The disk tier: whole records or none, bounded, shared with other jobs, never a deleted origin."""

import errno
import json
import multiprocessing
import os
import random
import signal
import threading

import pytest

from aiacc.data import account
from aiacc.data import disk as module
from aiacc.data.account import Account, on_disk, sets_to_remove
from aiacc.data.disk import Disk, oldest
from aiacc.data.record import CorruptRecordError

FORK = multiprocessing.get_context("fork")
MINE, OTHER = "a" * 32, "b" * 32


def key(number):
    return number.to_bytes(2, "big") * 8


def content(number, size=3000):
    return random.Random(number).randbytes(size)


@pytest.fixture
def disk(tmp_path):
    made = Disk(tmp_path, MINE, 10**6, "never")
    assert made.failure is None
    yield made
    made.close()


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.suffix in (".rec", ".tmp"))


def test_what_is_written_is_read_also_by_the_next_job(disk, tmp_path):
    assert disk.read(key(1)) is None
    assert disk.write(key(1), content(1))
    assert disk.write(key(1), content(1))
    assert key(1) in disk
    assert key(2) not in disk
    assert disk.read(key(1)) == content(1)
    disk.close()
    later = Disk(tmp_path, MINE, 10**6, "never", sync=True)
    assert later.read(key(1)) == content(1)
    assert later.write(key(2), content(2))
    later.close()
    assert Account(tmp_path).used() == sum(on_disk(path.stat().st_size) for path in files(tmp_path))


def test_it_admits_until_it_is_full(disk, tmp_path):
    admitted = [number for number in range(300) if disk.write(key(number), content(number))]
    assert admitted == list(range(len(admitted)))
    assert 180 < len(admitted) < 250
    assert sum(path.stat().st_blocks * 512 for path in files(tmp_path)) <= 10**6
    assert disk.failure is None


def test_lru_keeps_what_is_used(tmp_path):
    disk = Disk(tmp_path, MINE, 100_000, "lru")
    for number in range(100):
        assert disk.write(key(number), content(number))
        assert disk.read(key(0)) == content(0)
        # Time goes on, whatever the resolution of the file system's clock.
        for age, path in enumerate(sorted(files(tmp_path), key=lambda path: path.stat().st_mtime)):
            os.utime(path, (1000 + age, 1000 + age))
        os.utime(disk._path(key(0)), (2000, 2000))
    assert len(files(tmp_path)) < 25
    assert disk.read(key(1)) is None
    assert not disk.write(key(200), bytes(200_000))
    disk.close()


def test_which_files_go():
    files_there = [(3.0, 10, "c"), (1.0, 20, "a"), (2.0, 5, "b")]
    assert oldest(files_there, 0) == []
    assert oldest(files_there, 20) == [("a", 20)]
    assert oldest(files_there, 21) == [("a", 20), ("b", 5)]
    assert len(oldest(files_there, 1000)) == 3


def test_which_sets_go():
    sets = {"a": 10, "b": 20, "c": 30}
    assert sets_to_remove(sets, {"a": 2.0, "b": 1.0}, 5) == ["b"]
    assert sets_to_remove(sets, {"a": 2.0, "b": 1.0}, 25) == ["b", "a"]
    assert sets_to_remove(sets, {}, 25) == []


def test_records_of_a_dataset_that_nobody_uses_make_room(tmp_path):
    before = Disk(tmp_path, OTHER, 100_000, "never")
    while before.write(key(len(files(tmp_path))), content(1)):
        pass
    mine = Disk(tmp_path, MINE, 100_000, "never")
    assert not mine.write(key(1), content(1))  # the other one is in use
    before.close()
    assert mine.write(key(1), content(1))
    assert len(files(tmp_path)) == 1
    mine.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "longer", "swapped"])
def test_damaged_records_are_noticed_and_removed(disk, damage):
    disk.write(key(1), content(1))
    disk.write(key(2), content(2))
    path = disk._path(key(1))
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-100] ^= 16
    elif damage == "swapped":
        data = bytearray(disk._path(key(2)).read_bytes())
    else:
        data = {"cut": data[:-7], "empty": bytearray(), "longer": data + b"x"}[damage]
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError):
        disk.read(key(1))
    assert disk.read(key(1)) is None
    assert disk.write(key(1), content(1))
    assert (disk.read(key(1)), disk.read(key(2))) == (content(1), content(2))


@pytest.mark.parametrize("call", ["open", "write", "replace", "mkdir"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_fails_is_read_but_not_written(disk, tmp_path, monkeypatch, call, code):
    disk.write(key(1), content(1))

    def fails(*arguments, **keywords):
        raise OSError(code, os.strerror(code))

    if call == "mkdir":
        monkeypatch.setattr(type(tmp_path), "mkdir", fails)
    else:
        monkeypatch.setattr(module.os, call, fails)
    assert not disk.write(key(2), content(2))
    monkeypatch.undo()
    assert disk.failure.errno == code
    assert not disk.write(key(2), content(2))
    assert disk.read(key(1)) == content(1)
    assert len(files(tmp_path)) == 1  # no half of a record either
    assert Account(tmp_path).used() == on_disk(files(tmp_path)[0].stat().st_size)


def test_a_record_that_has_grown_takes_no_memory(disk):
    disk.write(key(1), content(1))
    os.truncate(disk._path(key(1)), 1 << 42)
    with pytest.raises(CorruptRecordError):
        disk.read(key(1))
    assert disk.read(key(1)) is None


def test_a_pipe_is_no_record(disk):
    disk.write(key(1), content(1))
    path = disk._path(key(1))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorruptRecordError):  # and does not wait for a writer
        disk.read(key(1))


@pytest.mark.parametrize("link", ["", "ab", "lock", "../account", "../" + OTHER, f"../{OTHER}/ab"])
def test_what_a_link_points_to_is_never_touched(tmp_path, link):
    target, place = tmp_path / "target", tmp_path / "aiacc-cache" / MINE
    for name in ("x.rec", ".x.tmp", "ab/x.rec", "ab/.x.tmp"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("precious")
    path = place / link
    path.parent.mkdir(parents=True, exist_ok=True)
    is_file = path.name in ("lock", "account")
    path.symlink_to(target / "x.rec" if is_file else target)
    disk = Disk(tmp_path, MINE, 20_000, "lru")
    if OTHER not in link:
        assert "symbolic link" in str(disk.failure)
    for number in range(20):
        disk.write(key(number), content(number))
    disk.close()
    left = [path for path in target.rglob("*") if path.is_file()]
    assert [path.read_text() for path in left] == ["precious"] * 4


def test_a_child_forked_meanwhile_does_not_keep_the_account(tmp_path):
    account = Account(tmp_path)
    account.folder.mkdir()
    with account._changed():
        child = multiprocessing.get_context("fork").Process(target=signal.pause)
        child.start()
    try:
        assert account.used() == 0
    finally:
        child.kill()
        child.join()
        child.close()


def test_a_folder_that_is_a_file_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    disk = Disk(tmp_path / "file", MINE, 10**6, "never")
    assert isinstance(disk.failure, OSError)
    assert not disk.write(key(1), content(1))
    assert disk.read(key(1)) is None
    disk.close()


def _die(folder, steps):
    disk = Disk(folder, MINE, 10**6, "never")
    left = [steps]

    def counted(function):
        def call(*arguments):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return call

    for name in ("open", "write", "close", "replace", "pwrite", "ftruncate"):
        setattr(os, name, counted(getattr(os, name)))
    disk.write(key(7), content(7))
    os._exit(0)


def test_writers_that_are_killed_leave_it_whole(tmp_path):
    codes, steps = [], 0
    while not codes or codes[-1]:
        steps += 1
        child = FORK.Process(target=_die, args=(tmp_path, steps))
        child.start()
        child.join()
        codes.append(child.exitcode)
        disk = Disk(tmp_path, MINE, 10**6, "never")
        assert disk.failure is None
        assert disk.read(key(7)) in (None, content(7))
        assert all(path.suffix == ".rec" for path in files(tmp_path))  # halves are gone
        assert disk._account.used() == sum(on_disk(p.stat().st_size) for p in files(tmp_path))
        for path in files(tmp_path):
            path.unlink()
        disk.close()
    assert len(codes) > 8
    assert set(codes[:-1]) == {-signal.SIGKILL}


def _fill(folder, name, begin):
    disk = Disk(folder, name, 200_000, "never")
    for number in range(begin, begin + 100):
        disk.write(key(number), content(number))
        assert disk.read(key(number)) in (None, content(number))
    disk.close()


def test_jobs_share_a_folder_within_its_bound(tmp_path):
    # In use to the end: a set whose jobs have all ended gives way to the others.
    both = [Disk(tmp_path, name, 200_000, "never") for name in (MINE, OTHER)]
    arguments = [(MINE, 0), (MINE, 50), (OTHER, 0)]
    jobs = [FORK.Process(target=_fill, args=(tmp_path, *one)) for one in arguments]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
        assert job.exitcode == 0
    assert 30 < len(files(tmp_path)) < 50
    assert sum(path.stat().st_blocks * 512 for path in files(tmp_path)) <= 200_000
    used = sum(on_disk(path.stat().st_size) for path in files(tmp_path))
    assert both[0]._account.used() == used  # also of records that two have written at a time
    for disk in both:
        disk.close()


DAMAGED = [b"", b"[" * 100_000, b"\x00garbage", b'{"version": 1, "se', b"[]", b'{"version":1}']


@pytest.mark.parametrize("account", DAMAGED)
def test_an_account_that_is_none_is_made_again(tmp_path, account):
    disk = Disk(tmp_path, MINE, 10**6, "never")
    disk.write(key(1), content(1))
    (tmp_path / "aiacc-cache" / "account").write_bytes(account)
    assert disk.write(key(2), content(2))
    assert disk.read(key(1)) == content(1)
    assert Account(tmp_path).used() == sum(on_disk(p.stat().st_size) for p in files(tmp_path))
    disk.close()


def test_a_leftover_of_another_version_is_replaced_unless_it_is_used(tmp_path):
    old = Disk(tmp_path, OTHER, 10**6, "never")
    old.write(key(1), content(1))
    (tmp_path / "aiacc-cache" / "account").write_text(json.dumps({"version": 0, "sets": {}}))
    while_used = Disk(tmp_path, MINE, 10**6, "never")
    assert "format 0 (expected 1)" in str(while_used.failure)
    assert old.read(key(1)) == content(1)
    old.close()
    mine = Disk(tmp_path, MINE, 10**6, "never")
    assert mine.failure is None
    assert mine.write(key(1), content(1))
    assert len(files(tmp_path)) == 1
    mine.close()


def test_the_origin_in_the_same_folder_is_never_touched(tmp_path):
    names = ["image.rec", ".x.tmp", "account", "lock", f"{OTHER}/lock", f"{OTHER}/aa/image.rec"]
    for name in [*names, *(f"aiacc-cache/{name}" for name in ("notes.rec", "mine/image.rec"))]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("origin")
    (tmp_path / "aiacc-cache" / "account").write_text(json.dumps({"version": 0}))
    for evict in ("never", "lru"):
        disk = Disk(tmp_path, MINE, 20_000, evict)
        for number in range(20):
            disk.write(key(number), content(number))
        disk.close()
    left = [
        path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"origin"
    ]
    assert len(left) == len(names) + 2


def test_others_have_the_account_while_a_set_is_counted(disk, tmp_path, monkeypatch):
    assert disk.write(key(1), content(1))
    disk.close()
    tidy, found = account._tidy, []

    def counting(place):
        other = Disk(tmp_path, OTHER, 10**6, "never")
        found.append((other.failure, other.write(key(2), content(2))))
        other.close()
        return tidy(place)

    monkeypatch.setattr(account, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(account, "_tidy", lambda p: counting(p) if p.name == MINE else tidy(p))
    later = Disk(tmp_path, MINE, 10**6, "never")
    assert found == [(None, True)]
    assert later.failure is None
    assert later._account.used() == sum(on_disk(p.stat().st_size) for p in files(tmp_path))
    later.close()


def test_who_comes_while_a_set_is_counted_waits_for_that(disk, tmp_path, monkeypatch):
    assert disk.write(key(1), content(1))
    disk.close()
    tidy, came, counted = account._tidy, threading.Event(), threading.Event()

    def counting(place):
        thread.start()
        assert came.wait(30)
        counted.set()
        return tidy(place)

    def come():
        second = Disk(tmp_path, MINE, 10**6, "never")
        found.extend([counted.is_set(), second.failure])
        second.close()

    found = []
    thread = threading.Thread(target=come)
    monkeypatch.setattr(account, "_tidy", counting)
    monkeypatch.setattr(account.time, "sleep", lambda seconds: came.set())
    first = Disk(tmp_path, MINE, 10**6, "never")
    thread.join(30)
    first.close()
    assert found == [True, None]


def test_others_have_the_account_while_a_set_is_removed(disk, tmp_path, monkeypatch):
    assert disk.write(key(1), content(1))
    disk.close()
    small = on_disk(3100)
    removed, rmtree = [], account.shutil.rmtree

    def removing(path, **options):
        removed.append(third.write(key(3), b"small"))
        rmtree(path, **options)

    third = Disk(tmp_path, "c" * 32, 2 * small, "never")
    monkeypatch.setattr(account, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(account.shutil, "rmtree", removing)
    other = Disk(tmp_path, OTHER, small, "never")
    assert other.write(key(2), content(2))
    assert removed == [True]
    assert third.failure is other.failure is None
    assert [path.name for path in tmp_path.glob("aiacc-cache/.*")] == []
    for one in (third, other):
        one.close()


def test_what_a_killed_job_was_removing_goes_with_the_next(disk, tmp_path, monkeypatch):
    assert disk.write(key(1), content(1))
    disk.close()
    monkeypatch.setattr(account.Account, "_sweep", lambda self: None)
    other = Disk(tmp_path, OTHER, on_disk(3100), "never")
    assert other.write(key(2), content(2))
    other.close()
    assert len(files(tmp_path)) == 2
    monkeypatch.undo()
    Disk(tmp_path, OTHER, 10**6, "never").close()
    assert len(files(tmp_path)) == 1


def test_a_paused_process_with_the_account_does_not_end_writing(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(account, "_PATIENCE_S", 0.0)
    with disk._account._changed():
        assert not disk.write(key(1), content(1))
        monkeypatch.undo()
        monkeypatch.setattr(account, "_NEXT_PATIENCE_S", 0.0)
        assert not disk.write(key(2), content(2))  # without waiting as long again
    assert disk.failure is None
    assert disk.write(key(1), content(1))


def test_a_corrupt_record_is_none_where_nothing_can_be_written(disk, tmp_path):
    assert disk.write(key(1), content(1))
    disk.close()
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    (tmp_path / "aiacc-cache" / "account").unlink()
    (tmp_path / "aiacc-cache" / "account").mkdir()
    reader = Disk(tmp_path, MINE, 10**6, "never")
    assert reader.failure is not None
    with pytest.raises(CorruptRecordError):
        reader.read(key(1))
