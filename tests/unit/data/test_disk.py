"""The disk, beside test_store_model.py: damage, other jobs, and what is not the cache's own."""

import errno
import functools
import json
import signal
import threading

import pytest

from aiacc.data import CachedDataset, account, sizes
from aiacc.data import disk as module
from aiacc.data.account import Account, on_disk, sets_to_remove
from aiacc.data.disk import Disk, oldest
from aiacc.data.record import CorruptRecordError
from tests.unit.data.stores import (
    FORK,
    MINE,
    OTHER,
    assert_counted,
    bytes_in,
    failing,
    in_children,
    key,
    open_disk,
    records,
)
from tests.unit.data.stores import content as random_bytes

content = functools.partial(random_bytes, size=3000)


@pytest.fixture
def disk(tmp_path):
    made = open_disk(tmp_path)
    assert made.failure is None
    yield made
    made.close()


@pytest.fixture
def left(tmp_path):
    """The file of a record that a job has left."""
    before = Disk(tmp_path, MINE, 10**6, "never", sync=True)
    assert before.write(key(1), content(1))
    before.close()
    return records(tmp_path)[0]


def account_of(folder):
    return folder / "aiacc-cache" / "account"


def test_what_goes_first():
    files = [(3.0, 10, "c"), (1.0, 20, "a"), (2.0, 5, "b")]
    assert oldest(files, 0) == []
    assert oldest(files, 20) == [("a", 20)]
    assert oldest(files, 21) == [("a", 20), ("b", 5)]
    assert len(oldest(files, 1000)) == 3
    sets = {"a": 10, "b": 20, "c": 30}
    assert sets_to_remove(sets, {"a": 2.0, "b": 1.0}, 5) == ["b"]
    assert sets_to_remove(sets, {"a": 2.0, "b": 1.0}, 25) == ["b", "a"]
    assert sets_to_remove(sets, {}, 25) == []


def test_records_of_a_dataset_that_nobody_uses_make_room(tmp_path):
    before = Disk(tmp_path, OTHER, 100_000, "never")
    while before.write(key(len(records(tmp_path))), content(1)):
        pass
    mine = open_disk(tmp_path, 100_000)
    assert not mine.write(key(1), content(1))  # the other one is in use
    before.close()
    assert mine.write(key(1), content(1))
    assert len(records(tmp_path)) == 1
    mine.close()


def test_a_corrupt_record_is_none_where_nothing_can_be_written(left, tmp_path):
    left.write_bytes(left.read_bytes()[:-1])
    account_of(tmp_path).unlink()
    account_of(tmp_path).mkdir()
    reader = open_disk(tmp_path)
    assert reader.failure is not None
    with pytest.raises(CorruptRecordError):
        reader.read(key(1))


@pytest.mark.parametrize("call", ["open", "write", "replace", "mkdir"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_fails_is_read_but_not_written(disk, tmp_path, monkeypatch, call, code):
    disk.write(key(1), content(1))
    owner = type(tmp_path) if call == "mkdir" else module.os
    with failing(monkeypatch, call, code=code, module=owner):
        assert not disk.write(key(2), content(2))
    assert disk.failure.errno == code
    assert not disk.write(key(2), content(2))
    assert disk.read(key(1)) == content(1)
    assert len(records(tmp_path)) == 1  # no half of a record either
    assert_counted(tmp_path)


@pytest.mark.parametrize("evict", ["never", "lru"])
def test_what_others_need_of_the_file_system_in_memory_stays_free(tmp_path, monkeypatch, evict):
    disk = open_disk(tmp_path, evict=evict)
    assert disk.write(key(1), content(1))
    with monkeypatch.context() as full:
        full.setattr(module, "leaves_room", lambda *_: bytes_in(tmp_path) < 5000)
        assert disk.write(key(2), content(2))
        assert disk.write(key(3), content(3)) == (evict == "lru")
    assert len(records(tmp_path)) == (1 if evict == "lru" else 2)
    assert disk.write(key(4), content(4))  # there is room again
    assert_counted(tmp_path)
    disk.close()
    monkeypatch.setattr(sizes, "SHARED_MEMORY", tmp_path)
    with pytest.warns(UserWarning, match=r"disk=\d+ is cut to \d+ bytes: .* a folder on a disk"):
        CachedDataset([1], None, disk=(tmp_path, 1 << 60)).close()


def test_a_folder_that_is_a_file_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    disk = open_disk(tmp_path / "file")
    assert isinstance(disk.failure, OSError)
    assert not disk.write(key(1), content(1))
    assert disk.read(key(1)) is None
    disk.close()


def _write_twenty(folder, evict):
    disk = open_disk(folder, 20_000, evict=evict)
    for number in range(20):
        disk.write(key(number), content(number))
    disk.close()
    return disk.failure


@pytest.mark.parametrize("link", ["", "ab", "lock", "../account", "../" + OTHER, f"../{OTHER}/ab"])
def test_what_a_link_points_to_is_never_touched(tmp_path, link):
    target, place = tmp_path / "target", tmp_path / "aiacc-cache" / MINE
    for name in ("x.rec", ".x.tmp", "ab/x.rec", "ab/.x.tmp"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("precious")
    path = place / link
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target / "x.rec" if path.name in ("lock", "account") else target)
    failure = _write_twenty(tmp_path, "lru")
    assert OTHER in link or "symbolic link" in str(failure)
    files = [path for path in target.rglob("*") if path.is_file()]
    assert [path.read_text() for path in files] == ["precious"] * 4


def test_the_origin_in_the_same_folder_is_never_touched(tmp_path):
    names = ["image.rec", ".x.tmp", "account", "lock", f"{OTHER}/lock", f"{OTHER}/aa/image.rec"]
    names += ["aiacc-cache/notes.rec", "aiacc-cache/mine/image.rec"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("origin")
    account_of(tmp_path).write_text(json.dumps({"version": 0}))
    for evict in ("never", "lru"):
        _write_twenty(tmp_path, evict)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.read_bytes() == b"origin" for path in files) == len(names)


def test_a_child_forked_meanwhile_does_not_keep_the_account(tmp_path):
    held = Account(tmp_path)
    held.folder.mkdir()
    with held._changed():
        child = FORK.Process(target=signal.pause)
        child.start()
    try:
        assert held.used() == 0
    finally:
        child.kill()
        child.join()
        child.close()


def test_jobs_share_a_folder_within_its_bound(tmp_path):
    def fill(name, begin):
        disk = Disk(tmp_path, name, 200_000, "never")
        for number in range(begin, begin + 100):
            disk.write(key(number), content(number))
            assert disk.read(key(number)) in (None, content(number))
        disk.close()

    # In use to the end: a set whose jobs have all ended gives way to the others.
    both = [Disk(tmp_path, name, 200_000, "never") for name in (MINE, OTHER)]
    in_children(fill, (MINE, 0), (MINE, 50), (OTHER, 0))
    assert 30 < len(records(tmp_path)) < 50
    assert bytes_in(tmp_path) <= 200_000
    assert_counted(tmp_path)  # also of records that two have written at a time
    for disk in both:
        disk.close()


DAMAGED = [b"", b"[" * 100_000, b"\x00garbage", b'{"version": 1, "se', b"[]", b'{"version":1}']


@pytest.mark.parametrize("data", DAMAGED)
def test_an_account_that_is_none_is_made_again(disk, tmp_path, data):
    disk.write(key(1), content(1))
    account_of(tmp_path).write_bytes(data)
    assert disk.write(key(2), content(2))
    assert disk.read(key(1)) == content(1)
    assert_counted(tmp_path)


def test_a_leftover_of_another_version_is_replaced_unless_it_is_used(tmp_path):
    old = Disk(tmp_path, OTHER, 10**6, "never")
    old.write(key(1), content(1))
    account_of(tmp_path).write_text(json.dumps({"version": 0, "sets": {}}))
    while_used = open_disk(tmp_path)
    assert "format 0 (expected 1)" in str(while_used.failure)
    assert old.read(key(1)) == content(1)
    old.close()
    mine = open_disk(tmp_path)
    assert mine.failure is None
    assert mine.write(key(1), content(1))
    assert len(records(tmp_path)) == 1
    mine.close()


@pytest.mark.usefixtures("left")
class TestBesideOthers:
    """What others may do while a job counts, removes or holds what one before has left."""

    def test_they_have_the_account_while_a_set_is_counted(self, tmp_path, monkeypatch):
        tidy, found = account._tidy, []

        def counting(place):
            if place.name == MINE:
                other = Disk(tmp_path, OTHER, 10**6, "never")
                found.append((other.failure, other.write(key(2), content(2))))
                other.close()
            return tidy(place)

        monkeypatch.setattr(account, "_PATIENCE_S", 0.0)
        monkeypatch.setattr(account, "_tidy", counting)
        later = open_disk(tmp_path)
        assert found == [(None, True)]
        assert later.failure is None
        assert_counted(tmp_path)
        later.close()

    def test_who_comes_while_a_set_is_counted_waits_for_that(self, tmp_path, monkeypatch):
        tidy, came, counted = account._tidy, threading.Event(), threading.Event()

        def counting(place):
            thread.start()
            assert came.wait(30)
            counted.set()
            return tidy(place)

        def come():
            second = open_disk(tmp_path)
            found.extend([counted.is_set(), second.failure])
            second.close()

        found = []
        thread = threading.Thread(target=come)
        monkeypatch.setattr(account, "_tidy", counting)
        monkeypatch.setattr(account.time, "sleep", lambda seconds: came.set())
        first = open_disk(tmp_path)
        thread.join(30)
        first.close()
        assert found == [True, None]

    def test_they_have_the_account_while_a_set_is_removed(self, tmp_path, monkeypatch):
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

    def test_what_a_killed_job_was_removing_goes_with_the_next(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Account, "_sweep", lambda self: None)
        other = Disk(tmp_path, OTHER, on_disk(3100), "never")
        assert other.write(key(2), content(2))
        other.close()
        assert len(records(tmp_path)) == 2
        monkeypatch.undo()
        Disk(tmp_path, OTHER, 10**6, "never").close()
        assert len(records(tmp_path)) == 1

    def test_a_paused_process_with_the_account_does_not_end_writing(self, tmp_path, monkeypatch):
        disk = open_disk(tmp_path)
        assert account._PATIENCE_S == 5.0
        monkeypatch.setattr(account, "_PATIENCE_S", 0.0)
        with disk._account._changed():
            assert not disk.write(key(2), content(2))
            monkeypatch.setattr(account, "_PATIENCE_S", 10**6)  # not as long again
            monkeypatch.setattr(account, "_NEXT_PATIENCE_S", 0.0)
            assert not disk.write(key(3), content(3))
        assert disk.failure is None
        assert disk.write(key(2), content(2))
        disk.close()
