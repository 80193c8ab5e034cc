"""Memory and disk alike: whole records or none, bounded, shared by processes, never torn."""

import multiprocessing
import os
import random
import signal
import threading

import pytest

from tests.unit.data.stores import (
    TIERS,
    assert_counted,
    bytes_in,
    content,
    die_before,
    in_child,
    in_children,
    key,
    records,
)


@pytest.mark.parametrize(("tier", "at_least"), [("memory", 600), ("disk", 180)])
def test_it_admits_until_it_is_full(tier, at_least, tmp_path):
    store = TIERS[tier](tmp_path)
    size = 1000 if tier == "memory" else 3000
    admitted = [n for n in range(1500) if store.write(key(n), content(n, size))]
    assert admitted == list(range(len(admitted)))  # the first ones, and none of the others
    assert at_least < len(admitted) < 10**6 / size
    assert bytes_in(tmp_path) <= 10**6
    assert store.failure is None
    assert all(store.read(key(n)) == content(n, size) for n in admitted)
    store.close()


@pytest.mark.parametrize(
    ("tier", "room", "size", "count"), [("memory", 10**6, 500, 4000), ("disk", 10**5, 3000, 100)]
)
def test_lru_keeps_what_is_used(tier, room, size, count, tmp_path):
    store = TIERS[tier](tmp_path, room, evict="lru")
    for number in range(count):
        assert store.write(key(number), content(number, size))
        assert number < 3 or store.read(key(3)) == content(3, size)
        # Time goes on, whatever the resolution of the file system's clock.
        files = sorted(records(tmp_path), key=lambda path: path.stat().st_mtime)
        for age, path in enumerate(files):
            os.utime(path, (1000 + age, 1000 + age))
    assert bytes_in(tmp_path) <= room
    assert store.read(key(count // 4)) is None
    assert store.read(key(count - 1)) == content(count - 1, size)
    assert not store.write(key(count), bytes(2 * room))
    store.close()


def _write_ten(tier, folder, begin):
    store = TIERS[tier](folder)
    for number in range(begin, begin + 10):
        store.write(key(number), content(number))


@pytest.mark.parametrize(("tier", "stores_of_a_record"), [("memory", 3), ("disk", 8)])
def test_a_writer_that_is_killed_at_any_point_leaves_it_whole(tier, stores_of_a_record, tmp_path):
    store = TIERS[tier](tmp_path)
    for number in range(10):
        store.write(key(number), content(number))
    most = 0
    for step in range(1, 4 * stores_of_a_record):
        begin = 100 * step
        killed = in_child(die_before, step, lambda begin=begin: _write_ten(tier, tmp_path, begin))
        assert killed == -signal.SIGKILL
        found = [store.read(key(number)) for number in range(begin, begin + 10)]
        complete = sum(one is not None for one in found)
        most = max(most, complete)
        assert found == [content(begin + n) for n in range(complete)] + [None] * (10 - complete)
        assert store.write(key(begin + 9), content(7))  # the lock is free
        assert store.read(key(begin + 9)) == content(7)
        if tier == "disk":
            store.close()
            store = TIERS[tier](tmp_path)  # which counts anew, and removes halves
            assert_counted(tmp_path)
    assert most >= 2
    assert all(store.read(key(number)) == content(number) for number in range(10))
    store.close()


def _write_half(tier, folder, begin, store):
    store = store or TIERS[tier](folder)
    for number in range(begin, 200, 2):
        assert store.write(key(number), content(number))
        assert store.read(key(number)) == content(number)
    store.close()


@pytest.mark.parametrize(
    ("tier", "method"), [("memory", "fork"), ("memory", "spawn"), ("disk", "fork")]
)
def test_processes_share_it(tier, tmp_path, method):
    store = TIERS[tier](tmp_path)
    given = store if (method, tier) == ("fork", "memory") else None  # as its parent has it
    halves = [(tier, tmp_path, begin, given) for begin in range(2)]
    in_children(_write_half, *halves, context=multiprocessing.get_context(method))
    assert all(store.read(key(number)) == content(number) for number in range(200))
    if tier == "memory":
        assert store.used == 200 * 512
    else:
        assert_counted(tmp_path)
    store.close()


@pytest.mark.parametrize(("tier", "rounds"), [("memory", 2000), ("disk", 200)])
def test_threads_read_and_write_at_a_time(tier, rounds, tmp_path):
    store = TIERS[tier](tmp_path, 50_000, 400, "lru")
    wrong = []

    def work(seed):
        chance = random.Random(seed)
        for _ in range(rounds):
            number = chance.randrange(200)
            found = store.read(key(number))
            if found is None:
                store.write(key(number), content(number))
            elif found != content(number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert wrong == []
