"""Memory and disk alike: whole records or none, whatever happens, and at random against a model.

Memory and disk by themselves are a dict of records with a bound. A CachedDataset on both, neither
of which has room for everything, is its data set.
"""

import collections
import contextlib
import errno
import functools
import multiprocessing
import os
import random
import shutil
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from aiacc.data import CachedDataset
from aiacc.data import origin as origin_module
from aiacc.data.arena_file import PREFIX
from aiacc.data.layout import Layout
from aiacc.data.record import CorruptRecordError
from tests.unit.data.stores import (
    TIERS,
    assert_counted,
    bytes_in,
    content,
    die_before,
    failing,
    in_child,
    in_children,
    key,
    mapped,
    records,
)


@pytest.mark.parametrize(
    ("tier", "samples", "size", "least", "most"),
    [
        ("memory", 3000, 1000, 600, 1000),
        ("memory", 1, 1, 20, 64),  # as many as its index has
        ("disk", None, 3000, 180, 333),
    ],
)
def test_it_admits_until_it_is_full(tier, samples, size, least, most, tmp_path):
    store = TIERS[tier](tmp_path, samples=samples)
    admitted = [n for n in range(1500) if store.write(key(n), content(n, size))]
    assert admitted == list(range(len(admitted)))  # the first ones, and none of the others
    assert least < len(admitted) <= most
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


@pytest.mark.parametrize(("tier", "stores_of_a_record"), [("memory", 3), ("disk", 8)])
def test_a_writer_that_is_killed_at_any_point_leaves_it_whole(tier, stores_of_a_record, tmp_path):
    store = TIERS[tier](tmp_path)
    for number in range(10):
        store.write(key(number), content(number))
    most = 0

    def write_ten(begin):
        mine = TIERS[tier](tmp_path)
        for number in range(begin, begin + 10):
            mine.write(key(number), content(number))

    for step in range(1, 4 * stores_of_a_record):
        begin = 100 * step
        killed = in_child(die_before, step, functools.partial(write_ten, begin))
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

    def work(seed):
        chance = random.Random(seed)
        for _ in range(rounds):
            number = chance.randrange(200)
            found = store.read(key(number))
            assert found in (None, content(number))
            if found is None:
                store.write(key(number), content(number))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    store.close()


SIZE, SAMPLES = 120_000, 40


def _pipe(path, *_):
    path.unlink()
    os.mkfifo(path)  # whose writer nobody waits for


#: What may become of the file of a record, beside that of another one.
DAMAGES = [
    lambda path, _, chance: os.truncate(path, chance.randrange(path.stat().st_size)),
    lambda path, *_: path.write_bytes(path.read_bytes() + b"x"),
    lambda path, other, _: shutil.copy(other, path),
    lambda path, *_: os.truncate(path, 1 << 42),  # which takes no memory
    _pipe,
]


class Tier:
    """Memory or disk; ``there`` is what it should have."""

    def __init__(self, kind, folder, chance):
        self.kind, self.folder, self.chance = kind, folder, chance
        self.there = {}
        self.damaged = 0
        self.open()

    def open(self):
        self.store = TIERS[self.kind](self.folder, SIZE, 300)

    def close(self):
        self.store.close()

    def record(self, number):
        return content(number, 40 + 97 * number)

    def use(self):
        """Put a record, which is refused only where there is no room."""
        number = self.chance.randrange(SAMPLES)
        record = self.record(number)
        if self.store.write(key(number), record):
            self.there[number] = record
        else:
            assert number not in self.there
            assert self.store.failure is None
            assert self.kind == "disk" or self.store.used > SIZE // 3

    def check(self, numbers):
        for number in numbers:
            assert self.store.read(key(number)) == self.there.get(number), number
            assert (key(number) in self.store) == (number in self.there)
        assert self.kind == "disk" or self.store.used <= SIZE

    def after(self, event):
        """Others may have put something, and some events lose something: right or not there."""
        before = {*self.there}
        self.there.clear()
        for number in range(SAMPLES):
            try:
                found = self.store.read(key(number))
            except CorruptRecordError:
                found = self.store.read(key(number))
                assert found is None
                self.damaged -= 1
            assert found in (None, self.record(number))
            if found is not None:
                self.there[number] = bytes(found)
        assert event in LOSING or before <= {*self.there}
        assert self.damaged == 0 or self.kind == "memory"  # of whose bits many say nothing

    # Events, of which each leaves the store in use.

    def reopen(self, _):
        other = TIERS[self.kind](self.folder, SIZE, 300)
        self.close()
        self.store = other

    def the_last_one_leaves(self, _):
        self.close()
        if self.kind == "memory":
            self.there.clear()
        self.open()

    def bits_flip(self, _):
        arenas = [path for path in self.folder.glob(f"{PREFIX}*") if path.suffix == ""]
        for path in [*records(self.folder), *arenas]:
            if path.stat().st_size <= len(b"half"):
                continue
            self.damaged += path.suffix == ".rec"
            with mapped(path) as data:
                begin = 0
                if path.name.startswith(PREFIX):
                    layout = Layout.unpack(path.read_bytes())
                    begin = self.chance.choice([layout.index_at, layout.heap_at])
                for _ in range(20 if begin else 1):
                    data[self.chance.randrange(begin, len(data))] ^= 1 << self.chance.randrange(8)

    def records_are_damaged(self, _):
        files = sorted(self.folder.rglob("*.rec"))
        for number, path in enumerate(files[:-1:2]):
            DAMAGES[number % len(DAMAGES)](path, files[-1], self.chance)
            self.damaged += 1
        if self.kind != "memory":  # who comes next counts what has grown
            self.the_last_one_leaves(_)

    def records_are_removed(self, _):
        for path in records(self.folder)[::3]:
            path.unlink()

    def all_is_removed(self, _):
        shutil.rmtree(self.folder / "aiacc-cache", ignore_errors=True)
        self.the_last_one_leaves(_)

    def the_account_is_damaged(self, _):
        for account in self.folder.rglob("aiacc-cache/account"):
            account.write_bytes(self.chance.choice([b"", b"\0", b'{"version": 0}', b'{"versi']))
        if self.kind == "disk":  # which another version seems to use
            self.the_last_one_leaves(_)

    def calls_fail(self, patch):
        call, code = self.chance.choice(
            [("write", errno.ENOSPC), ("open", errno.EROFS), ("pwrite", errno.ENOSPC)]
        )
        with failing(patch, call, code=code):
            for _ in range(5):
                self.attempt()
        self.reopen(patch)

    def attempt(self):
        number = self.chance.randrange(SAMPLES)
        self.store.write(key(number), self.record(number))

    def another_comes_and_goes(self, _):
        assert in_child(self.come_and_go) == 0

    def another_is_killed(self, _):
        step = self.chance.randrange(1, 60)
        assert in_child(die_before, step, self.come_and_go) in (0, -signal.SIGKILL)

    def come_and_go(self):
        self.open()
        for _ in range(5):
            self.attempt()
        self.close()

    def halves_are_left(self, _):
        for path in self.folder.rglob("aiacc-cache/*/*"):
            if path.is_dir():
                (path / ".00.17-0.tmp").write_bytes(b"half")
        (self.folder / f"{PREFIX}dead").write_bytes(b"half")


class Origin:
    """Fails as often as it is told to."""

    failures = 0

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the store is away")
        chance = np.random.default_rng(index)
        return {"pixels": chance.integers(0, 256, 3000 + index, np.uint8), "label": index}


class Whole(Tier):
    """A data set behind both tiers."""

    def open(self):
        evict = self.chance.choice(["never", "lru"])
        self.origin = Origin()
        self.store = CachedDataset(
            self.origin,
            (self.folder, SIZE if evict == "never" else 170_000),
            (self.folder, 100_000),
            fingerprint="test",
            evict=evict,
            requests=self.chance.choice([1, 3]),
            retries=2,
        )

    def reopen(self, _):
        self.close()
        self.open()

    the_last_one_leaves = reopen

    def check(self, numbers):
        for index, sample in zip(numbers, self.store.__getitems__(numbers), strict=True):
            assert sample["label"] == index
            assert sample["pixels"].tobytes() == Origin()[index]["pixels"].tobytes()

    def use(self):
        self.check([self.chance.randrange(SAMPLES) for _ in range(6)])

    attempt = use

    def after(self, event):
        self.check(list(range(SAMPLES)))

    def the_origin_fails_for_a_while(self, _):
        self.origin.failures = 2
        self.after(_)
        self.origin.failures = 0

    def the_origin_fails(self, _):
        self.origin.failures = 10**9
        for index in range(SAMPLES):
            with contextlib.suppress(ConnectionError):  # of what no tier has
                self.check([index])
        self.all_is_removed(_)
        self.origin.failures = 10**9
        for index in range(SAMPLES):
            with pytest.raises(ConnectionError):
                self.check([index])
        self.origin.failures = 0


#: Names of methods, which both kinds of models have.
LOSING = [
    *("bits_flip", "records_are_damaged", "records_are_removed", "all_is_removed"),
    "the_account_is_damaged",  # as by another version, whose records are none of ours
]
EVENTS = [
    *LOSING,
    *("reopen", "the_last_one_leaves", "another_comes_and_goes", "another_is_killed"),
    *("calls_fail", "halves_are_left"),
]
OF_ORIGINS = ["the_origin_fails_for_a_while", "the_origin_fails"]


@pytest.mark.parametrize(("kind", "seed"), [("memory", 0), ("disk", 0), ("both", 1)])
def test_a_hundred_events(kind, seed, tmp_path, monkeypatch):
    monkeypatch.setattr(origin_module, "pause_before", lambda attempt, chance: 0)
    # What happens draws from its own: how much the rest draws depends on how threads are scheduled.
    events, chance = random.Random(seed), random.Random(seed)
    model = Whole(kind, tmp_path, chance) if kind == "both" else Tier(kind, tmp_path, chance)
    happened = collections.Counter()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nothing more is kept")
        for _ in range(100):
            for _ in range(1 if kind == "both" else 8):
                model.use()
            model.check(chance.sample(range(SAMPLES), 10))
            event = events.choice([*EVENTS, *(OF_ORIGINS if kind == "both" else [])])
            happened[event] += 1
            getattr(model, event)(monkeypatch)
            model.after(event)
    model.check(list(range(SAMPLES)))
    assert len(happened) == len(EVENTS) + 2 * (kind == "both")
    model.reopen(monkeypatch)  # which removes what the killed have left
    model.close()
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"aiacc-cache", *([f"{PREFIX}dead"] if kind == "disk" else [])}
