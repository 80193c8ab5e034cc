"""The node's memory: shared by processes, bounded, never torn, never left behind."""

import contextlib
import errno
import fcntl
import hashlib
import multiprocessing
import os
import random
import signal
import threading

import pytest

from aiacc.data import arena as module
from aiacc.data import arena_file
from aiacc.data.arena import Arena
from aiacc.data.arena_file import PREFIX, attach, sweep
from aiacc.data.layout import ALIGNMENT, plan
from aiacc.data.record import CorruptRecordError

FORK = multiprocessing.get_context("fork")


def key(number):
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def content(number, size=500):
    return random.Random(number).randbytes(size)


def open_arena(folder, size=10**6, samples=3000, evict="never"):
    return Arena(folder, "test", plan(size, samples, evict), evict)


@pytest.fixture
def arena(tmp_path):
    made = open_arena(tmp_path)
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_read(arena):
    assert arena.read(key(1)) is None
    assert arena.write(key(1), content(1))
    assert arena.write(key(1), content(1))
    assert arena.read(key(1)) == content(1)
    assert arena.read(key(2)) is None
    assert key(1) in arena
    assert arena.used == 512


def test_it_admits_until_it_is_full(arena):
    admitted = [number for number in range(1500) if arena.write(key(number), content(number, 1000))]
    assert admitted == list(range(len(admitted)))  # the first ones, and none of the others
    assert len(admitted) > 600
    assert arena.used <= 10**6
    for number in admitted:
        assert arena.read(key(number)) == content(number, 1000)


def test_what_is_fetched_ahead_passes_through_a_window(arena):
    stay = next(number for number in range(1500) if not arena.write(key(number), content(number)))
    for number in range(stay, stay + 1000):
        assert arena.write(key(number), content(number), may_go=True)
        assert arena.read(key(number)) == content(number)
    assert arena.read(key(stay)) is None
    assert arena.read(key(0)) == content(0)


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
    free = arena._layout.segments[1][1] - arena._layout.heap_at - 700 * 512
    assert arena.window == free
    assert free - 512 < len(there) * 512 <= free
    for number in range(3000, 3300):  # those who stay take it back
        assert arena.write(key(number), content(number))
    left = [number for number in there if key(number) in arena]
    assert 0 < len(left) < len(there) - 250
    assert all(arena.read(key(number)) == content(number) for number in left)


def test_lru_keeps_what_is_used(tmp_path):
    arena = open_arena(tmp_path, evict="lru")
    for number in range(4000):
        assert arena.write(key(number), content(number))
        assert arena.read(key(3)) in (content(3), None)
        assert number < 3 or arena.read(key(3)) == content(3)
    assert arena.used <= 10**6
    assert arena.read(key(100)) is None
    assert arena.read(key(3999)) == content(3999)
    arena.close()


def test_a_full_index_refuses(tmp_path):
    arena = open_arena(tmp_path, samples=1)
    admitted = sum(arena.write(key(number), b"x") for number in range(1000))
    assert 20 < admitted <= 64
    arena.close()


def test_without_bytes_it_counts_only(tmp_path):
    arena = open_arena(tmp_path, size=0)
    assert not arena.write(key(1), b"x", may_go=True)
    arena.count(3, 5)
    arena.count(3, 6)
    assert arena.counters()[3] == 11
    arena.close()


def test_a_flipped_bit_is_noticed_and_forgotten(arena):
    for number in range(20):
        arena.write(key(number), content(number))
    where = arena._file.map.find(content(7))
    os.pwrite(arena._file.descriptor, bytes([content(7)[100] ^ 1]), where + 100)
    with pytest.raises(CorruptRecordError):
        arena.read(key(7))
    assert arena.read(key(7)) is None
    assert arena.write(key(7), content(7))
    assert [arena.read(key(number)) for number in range(20)] == list(map(content, range(20)))


def test_flipped_bits_of_the_table_are_no_wrong_record(tmp_path):
    arena = open_arena(tmp_path, size=60_000, samples=20)
    layout = arena._file.layout
    for at in range(layout.segment_at(0) + 16, layout.segment_at(1)):
        for bit in range(8):
            arena._file.map[at] ^= 1 << bit
            arena.write(key(at), content(at, 10), may_go=True)
            with contextlib.suppress(CorruptRecordError):
                assert arena.read(key(at)) in (None, content(at, 10))
            arena._file.map[at] ^= 1 << bit
    arena.close()


def test_every_flipped_bit_of_index_and_heap_is_no_wrong_record(tmp_path):
    arena = open_arena(tmp_path, size=60_000, samples=20)
    chance = random.Random(0)
    for number in range(20):
        arena.write(key(number), content(number, 100))
    layout = arena._file.layout
    for _ in range(300):
        at = chance.choice(
            [
                chance.randrange(layout.index_at, layout.heap_at),
                chance.randrange(layout.heap_at, layout.heap_at + 20 * 128),
            ]
        )
        arena._file.map[at] ^= 1 << chance.randrange(8)
        for number in range(20):
            try:
                found = arena.read(key(number))
            except CorruptRecordError:
                continue
            assert found in (None, content(number, 100))
    arena.close()


def test_a_full_memory_admits_no_more(arena, monkeypatch):
    assert arena.write(key(1), content(1))

    def full(descriptor, data, at):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "pwrite", full)
    assert not arena.write(key(2), content(2))
    monkeypatch.undo()
    assert arena.failure.errno == errno.ENOSPC
    assert not arena.write(key(2), content(2))
    assert arena.read(key(1)) == content(1)


def _write_all(folder, begin, context_is_fork, arena):
    arena = arena if context_is_fork else open_arena(folder)
    for number in range(begin, 400, 2):
        arena.write(key(number), content(number))
        arena.count(0, 1)
    if not context_is_fork:
        arena.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_it(tmp_path, method):
    arena = open_arena(tmp_path)
    context = multiprocessing.get_context(method)
    forks = method == "fork"
    arguments = [(tmp_path, begin, forks, arena if forks else None) for begin in range(2)]
    children = [context.Process(target=_write_all, args=one) for one in arguments]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert [arena.read(key(number)) for number in range(400)] == list(map(content, range(400)))
    assert arena.counters()[0] == 400
    assert arena.used == 400 * 512
    arena.close()
    assert list(tmp_path.iterdir()) == []


def _die_in_the_middle(arena, begin, steps):
    """Write, and be gone before the so manieth store to the file or the map."""
    left = [steps]

    def counted(function):
        def call(*arguments):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return call

    module.os.pwrite = counted(os.pwrite)
    arena._put = counted(arena._put)
    module.Entry.pack = counted(module.Entry.pack)
    for number in range(begin, begin + 10):
        arena.write(key(number), content(number))


def test_writers_that_are_killed_leave_it_whole(arena):
    for number in range(10):
        arena.write(key(number), content(number))
    for steps in range(1, 10):
        begin = 100 * steps
        child = FORK.Process(target=_die_in_the_middle, args=(arena, begin, steps))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        complete = (steps - 1) // 3
        expected = [content(number) for number in range(begin, begin + complete)]
        found = [arena.read(key(number)) for number in range(begin, begin + 10)]
        assert found == expected + [None] * (10 - complete)
        assert arena.write(key(begin + 9), content(7))  # the lock is free
        assert arena.read(key(begin + 9)) == content(7)
    assert [arena.read(key(number)) for number in range(10)] == list(map(content, range(10)))


def _hold(folder, ready, go_on):
    arena = open_arena(folder)
    arena.write(key(1), content(1))
    ready.set()
    go_on.wait()
    arena.close()


def test_the_last_one_removes_it(tmp_path):
    ready, go_on = FORK.Event(), FORK.Event()
    child = FORK.Process(target=_hold, args=(tmp_path, ready, go_on))
    child.start()
    ready.wait()
    arena = open_arena(tmp_path)
    assert arena.read(key(1)) == content(1)
    assert sweep(tmp_path) == []
    arena.close()
    assert len(list(tmp_path.iterdir())) == 1
    go_on.set()
    child.join()
    assert list(tmp_path.iterdir()) == []


def test_that_of_another_user_is_not_joined(tmp_path, monkeypatch):
    ready, go_on = FORK.Event(), FORK.Event()
    child = FORK.Process(target=_hold, args=(tmp_path, ready, go_on))
    child.start()
    ready.wait()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(OSError, match=r"belongs to user \d+ .expected 12345.; remove it"):
        open_arena(tmp_path)
    go_on.set()
    child.join()


def test_what_a_killed_job_leaves_is_removed_by_the_next(tmp_path):
    ready = FORK.Event()
    child = FORK.Process(target=_hold, args=(tmp_path, ready, FORK.Event()))
    child.start()
    ready.wait()
    child.kill()
    child.join()
    (left,) = tmp_path.iterdir()
    assert left.name == f"{PREFIX}test"
    half = tmp_path / f"{PREFIX}other.17-0"
    half.write_bytes(b"half")
    (tmp_path / "others").write_bytes(b"not ours")
    fresh = open_arena(tmp_path)
    assert fresh.read(key(1)) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{PREFIX}test", "others"]
    fresh.close()
    assert [path.name for path in tmp_path.iterdir()] == ["others"]


def _come_and_go(folder, rounds):
    for number in range(rounds):
        arena = open_arena(folder, size=10_000, samples=10)
        arena.write(key(number), content(number, 50))
        assert arena.read(key(number)) in (content(number, 50), None)
        arena.close()


def test_many_may_come_and_go(tmp_path):
    children = [FORK.Process(target=_come_and_go, args=(tmp_path, 100)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_process_has_one_descriptor_however_often_it_attaches(tmp_path):
    layout = plan(10_000, 10, "never")
    one, other = attach(tmp_path / "x", layout), attach(tmp_path / "x", layout)
    assert one is other
    one.release()
    assert (tmp_path / "x").exists()
    other.release()
    assert not (tmp_path / "x").exists()


def _claim(arena, order, ready, go_on):
    with arena.claim(key(1), 60):
        ready.set()
        go_on.wait()
        order.put("first")


def test_one_process_has_a_claim(arena):
    order, ready, go_on = FORK.SimpleQueue(), FORK.Event(), FORK.Event()
    child = FORK.Process(target=_claim, args=(arena, order, ready, go_on))
    child.start()
    ready.wait()
    with arena.claim(key(2), 60) as free, arena.claim(key(1), 0) as other:  # no patience
        assert (free, other) == (True, False)
        go_on.set()
    with arena.claim(key(1), 60):
        assert order.get() == "first"
    child.join()


def test_a_claim_ends_with_its_process(arena):
    ready = FORK.Event()
    child = FORK.Process(target=_claim, args=(arena, None, ready, FORK.Event()))
    child.start()
    ready.wait()
    child.kill()
    with arena.claim(key(1), 60):
        child.join()


def test_threads_read_and_write_at_a_time(tmp_path):
    arena = open_arena(tmp_path, size=50_000, evict="lru", samples=400)
    wrong = []

    def work(seed):
        chance = random.Random(seed)
        for _ in range(2000):
            number = chance.randrange(200)
            found = arena.read(key(number))
            if found is None:
                arena.write(key(number), content(number))
            elif found != content(number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arena.close()
    assert wrong == []


def test_records_begin_at_multiples(arena):
    arena.write(key(1), b"x")
    arena.write(key(2), content(2))
    assert (arena._file.map.find(content(2)) - arena._file.layout.heap_at) == ALIGNMENT


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


def test_readers_do_not_wait_while_another_thread_waits_for_its_turn_to_write(arena, monkeypatch):
    assert arena.write(key(1), content(1))
    waiting, counted = threading.Event(), threading.Event()

    def locked(byte, patience_s):  # as if a process that is paused had it
        waiting.set()
        return not counted.wait(30)

    monkeypatch.setattr(arena, "_lock", locked)
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


@pytest.mark.parametrize("evict", ["never", "lru"])
def test_what_takes_no_more_memory_is_written_where_none_is_left(tmp_path, monkeypatch, evict):
    arena = open_arena(tmp_path, size=1_000_000, samples=300, evict=evict)
    assert arena.write(key(0), content(0, 9000), may_go=True)
    monkeypatch.setattr(module, "leaves_room", lambda descriptor, size: False)
    assert not arena.write(key(1), content(1, 9000), may_go=True)
    assert arena.failure is None  # there may be room again
    monkeypatch.undo()
    for number in range(200):
        assert arena.write(key(number), content(number, 9000), may_go=True)
    monkeypatch.setattr(module, "leaves_room", lambda descriptor, size: False)
    assert arena.write(key(400), content(400, 9000), may_go=True)
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

    processes = [FORK.Process(target=count) for _ in range(5)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 5
    assert arena.counters()[3] == 5 * 50 * 2


def test_a_paused_writer_is_waited_for_once(arena, monkeypatch):
    waited, lock = [], arena._lock

    def locked(byte, patience_s):
        waited.append(patience_s)
        return len(waited) > 2 and lock(byte, patience_s)

    monkeypatch.setattr(arena, "_lock", locked)
    assert [arena.write(key(number), content(number)) for number in range(4)] == [0, 0, 1, 1]
    assert waited == [5.0, 0.1, 0.1, 5.0]
