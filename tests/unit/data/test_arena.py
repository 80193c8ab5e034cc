"""The node's memory beside what test_store_model.py says: its window, claims, counters and file."""

import contextlib
import fcntl
import os
import threading

import pytest

from aiacc.data import arena as module
from aiacc.data import arena_file
from aiacc.data.arena import Arena
from aiacc.data.arena_file import PREFIX, attach, sweep
from aiacc.data.layout import Layout, plan
from aiacc.data.record import CorruptRecordError
from tests.unit.data.stores import FORK, beside, content, in_children, key, mapped, open_arena


@pytest.fixture
def arena(tmp_path):
    made = open_arena(tmp_path)
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == []


def layout_of(arena) -> Layout:
    return Layout.unpack(arena.path.read_bytes())


def test_what_passes_through_has_the_room_that_nobody_stays_in(arena):
    """Memory of 1 MB for 1,900 records; 700 of them stay."""
    passing = range(700, 3000)
    for number in range(700):
        assert arena.write(key(number), content(number))
    for number in passing:
        assert arena.write(key(number), content(number), may_go=True, may_stay=False)
    assert all(arena.read(key(number)) == content(number) for number in range(700))
    there = [number for number in passing if key(number) in arena]
    assert there == list(passing)[-len(there) :]  # the last ones
    layout = layout_of(arena)
    free = layout.segments[1][1] - layout.heap_at - 700 * 512
    assert arena.window == free
    assert free - 512 < len(there) * 512 <= free
    for number in range(3000, 3300):  # those who stay take it back
        assert arena.write(key(number), content(number))
    left = [number for number in there if key(number) in arena]
    assert 0 < len(left) < len(there) - 250
    assert all(arena.read(key(number)) == content(number) for number in left)


def test_flipped_bits_of_the_table_are_no_wrong_record(tmp_path):
    """Those of index and heap: see test_store_model.py."""
    arena = open_arena(tmp_path, size=60_000, samples=20)
    layout = layout_of(arena)
    with mapped(arena.path) as data:
        for at in range(layout.segment_at(0) + 16, layout.segment_at(1)):
            for bit in range(8):
                data[at] ^= 1 << bit
                arena.write(key(at), content(at, 10), may_go=True)
                with contextlib.suppress(CorruptRecordError):
                    assert arena.read(key(at)) in (None, content(at, 10))
                data[at] ^= 1 << bit
    arena.close()


def _hold(ready, go_on, folder):
    arena = open_arena(folder)
    arena.write(key(1), content(1))
    ready.set()
    go_on.wait()
    arena.close()


def test_the_last_one_removes_it(tmp_path, monkeypatch):
    with beside(_hold, tmp_path):
        arena = open_arena(tmp_path)
        assert arena.read(key(1)) == content(1)
        assert sweep(tmp_path) == []
        arena.close()
        assert len(list(tmp_path.iterdir())) == 1
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(OSError, match=r"belongs to user \d+ .expected 12345.; remove it"):
            open_arena(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_job_leaves_is_removed_by_the_next(tmp_path):
    with beside(_hold, tmp_path) as child:
        child.kill()
        child.join()
    (left,) = tmp_path.iterdir()
    assert left.name == f"{PREFIX}test"
    (tmp_path / f"{PREFIX}other.17-0").write_bytes(b"half")
    (tmp_path / "others").write_bytes(b"not ours")
    fresh = open_arena(tmp_path)
    assert fresh.read(key(1)) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{PREFIX}test", "others"]
    fresh.close()
    assert [path.name for path in tmp_path.iterdir()] == ["others"]


def test_many_may_come_and_go(tmp_path):
    def come_and_go():
        for number in range(100):
            arena = open_arena(tmp_path, size=10_000, samples=10)
            arena.write(key(number), content(number, 50))
            assert arena.read(key(number)) in (content(number, 50), None)
            arena.close()

    in_children(come_and_go, *[()] * 3)
    assert list(tmp_path.iterdir()) == []


def test_a_process_has_one_descriptor_however_often_it_attaches(tmp_path):
    layout = plan(10_000, 10, "never")
    one, other = attach(tmp_path / "x", layout), attach(tmp_path / "x", layout)
    assert one is other
    one.release()
    assert (tmp_path / "x").exists()
    other.release()
    assert not (tmp_path / "x").exists()


def test_arenas_are_made_by_one_process_at_a_time(tmp_path, monkeypatch):
    """The index of each would need its memory, until all but one are thrown away."""
    create, turns = arena_file._create, []

    def creating(path, layout):
        descriptor = os.open(tmp_path, os.O_RDONLY)
        turns.append(arena_file.try_lock(descriptor, fcntl.LOCK_EX))
        os.close(descriptor)
        return create(path, layout)

    monkeypatch.setattr(arena_file, "_create", creating)
    open_arena(tmp_path).close()
    assert turns == [False]
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert arena_file.try_lock(descriptor, fcntl.LOCK_EX)  # nobody's afterwards
    monkeypatch.setattr(arena_file, "_PATIENCE_S", 0.0)
    open_arena(tmp_path).close()  # nor waited for when its owner is paused
    os.close(descriptor)


def _claim(ready, go_on, arena, order):
    with arena.claim(key(1), 60):
        ready.set()
        go_on.wait()
        order.put("first")


def test_one_process_has_a_claim(arena):
    order, ready, go_on = FORK.SimpleQueue(), FORK.Event(), FORK.Event()
    child = FORK.Process(target=_claim, args=(ready, go_on, arena, order))
    child.start()
    assert ready.wait(60)
    with arena.claim(key(2), 60) as free, arena.claim(key(1), 0) as other:  # no patience
        assert (free, other) == (True, False)
        go_on.set()
    with arena.claim(key(1), 60):
        assert order.get() == "first"
    child.join()


def test_a_claim_ends_with_its_process(arena):
    with beside(_claim, arena, None) as child:
        child.kill()
        with arena.claim(key(1), 60):
            child.join()


def locking(patch, answer):
    """Let ``answer(lock, byte, patience_s)`` take locks of arenas."""
    lock = Arena._lock
    patch.setattr(Arena, "_lock", lambda self, *wish: answer(lambda: lock(self, *wish), *wish))


def test_readers_do_not_wait_while_another_thread_waits_for_its_turn_to_write(arena, monkeypatch):
    assert arena.write(key(1), content(1))
    waiting, counted = threading.Event(), threading.Event()

    def locked(lock, byte, patience_s):  # as if a process that is paused had it
        waiting.set()
        return not counted.wait(30)

    locking(monkeypatch, locked)
    writer = threading.Thread(target=arena.write, args=(key(2), content(2)))
    writer.start()
    assert waiting.wait(30)
    assert arena.read(key(1)) == content(1)
    reader = threading.Thread(target=arena.count, args=(0, 1))
    reader.start()
    reader.join(10)
    waited = reader.is_alive()
    counted.set()
    writer.join(30)
    reader.join(30)
    assert not waited
    assert arena.counters()[0] == 1


def test_a_paused_writer_is_waited_for_once(arena, monkeypatch):
    waited = []

    def locked(lock, byte, patience_s):
        waited.append(patience_s)
        return len(waited) > 2 and lock()

    locking(monkeypatch, locked)
    assert [arena.write(key(number), content(number)) for number in range(4)] == [0, 0, 1, 1]
    assert waited == [5.0, 0.1, 0.1, 5.0]


@pytest.mark.parametrize("evict", ["never", "lru"])
def test_what_takes_no_more_memory_is_written_where_none_is_left(tmp_path, monkeypatch, evict):
    arena = open_arena(tmp_path, samples=300, evict=evict)

    def write(number):
        return arena.write(key(number), content(number, 9000), may_go=True)

    assert write(0)
    monkeypatch.setattr(module, "leaves_room", lambda descriptor, size: False)
    assert not write(1)
    assert arena.failure is None  # there may be room again
    monkeypatch.undo()
    assert all(write(number) for number in range(200))
    monkeypatch.setattr(module, "leaves_room", lambda descriptor, size: False)
    assert write(400)
    assert arena.read(key(400)) == content(400, 9000)
    arena.close()


def test_processes_without_counters_of_their_own_share_some(arena, monkeypatch):
    monkeypatch.setattr(module, "_SHARED_ROW", 2)
    monkeypatch.setattr(module, "_COUNTING_S", 60.0)
    everybody = FORK.Barrier(5)

    def count():
        for _ in range(50):
            arena.count(3, 2)
        everybody.wait(60)  # who ends gives his row back

    in_children(count, *[()] * 5)
    assert arena.counters()[3] == 5 * 50 * 2
