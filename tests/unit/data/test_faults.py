"""A hundred faults at random: samples stay those of the dataset, nothing hangs, nothing is left."""

import collections
import errno
import functools
import multiprocessing
import os
import random
import shutil
import signal
import warnings

import numpy as np
import pytest

from aiacc.data import CachedDataset
from aiacc.data import origin as origin_module
from aiacc.data.arena_file import PREFIX

FORK = multiprocessing.get_context("fork")
EVENTS = 100
SAMPLES = 40


class Origin:
    """Fails as often as it is told to."""

    def __init__(self):
        self.failures = 0

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the store is away")
        return dict(expected(index))


@functools.cache
def expected(index):
    chance = np.random.default_rng(index)
    return {"pixels": chance.integers(0, 256, 3000 + index, np.uint8), "label": index}


def is_right(sample, index):
    return (
        sample["label"] == index
        and sample["pixels"].tobytes() == expected(index)["pixels"].tobytes()
    )


class Job:
    """One that uses both tiers, neither of which has room for everything."""

    def __init__(self, folder, chance):
        self.folder, self.chance = folder, chance
        self.origin = Origin()
        (folder / "memory").mkdir()
        self.open()

    def open(self):
        evict = self.chance.choice(["never", "lru"])
        self.cached = CachedDataset(
            self.origin,
            (self.folder / "memory", "170kB" if evict == "lru" else "100kB"),
            (self.folder / "disk", "100kB"),
            fingerprint="faults",
            evict=evict,
            requests=self.chance.choice([1, 3]),
            retries=2,
        )
        self.file = self.cached._store._arena._file

    def read(self, count=6):
        indices = [self.chance.randrange(SAMPLES) for _ in range(count)]
        for index, sample in zip(indices, self.cached.__getitems__(indices), strict=True):
            assert is_right(sample, index), f"sample {index}"

    def records(self):
        return [path for path in (self.folder / "disk").rglob("*.rec") if path.is_file()]

    def flip_in_memory(self, _):
        layout = self.file.layout
        begin = self.chance.choice([layout.index_at, layout.heap_at])
        for _ in range(20):
            at = self.chance.randrange(begin, layout.size)
            self.file.map[at] ^= 1 << self.chance.randrange(8)
        self.read(SAMPLES)

    def flip_on_disk(self, _):
        for path in self.records():
            data = bytearray(path.read_bytes())
            if data:  # it was not cut to nothing
                data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
                path.write_bytes(data)
        self.read(SAMPLES)

    def cut_on_disk(self, _):
        for path in self.records()[::2]:
            os.truncate(path, self.chance.randrange(max(1, path.stat().st_size)))

    def remove_a_record(self, _):
        for path in self.records()[::3]:
            path.unlink()

    def remove_the_set(self, _):
        shutil.rmtree(self.folder / "disk", ignore_errors=True)
        self.read(SAMPLES)
        self.reopen(_)

    def damage_the_account(self, _):
        account = self.folder / "disk" / "aiacc-cache" / "account"
        if account.exists():
            account.write_bytes(self.chance.choice([b"", b"\0", b'{"version": 0}', b'{"versi']))

    def origin_fails_for_a_while(self, _):
        self.origin.failures = 2
        self.read(SAMPLES)
        self.origin.failures = 0

    def origin_fails(self, _):
        self.origin.failures = 10**9
        errors = 0
        for index in range(SAMPLES):
            try:
                assert is_right(self.cached[index], index)
            except ConnectionError:
                errors += 1
        self.origin.failures = 0
        assert errors

    def disk_is_full(self, patch):
        self.fail(patch, "write", errno.ENOSPC)

    def disk_is_read_only(self, patch):
        self.fail(patch, "open", errno.EROFS)

    def memory_is_full(self, patch):
        self.fail(patch, "pwrite", errno.ENOSPC)

    def fail(self, patch, call, code):
        def fails(*arguments, **keywords):
            raise OSError(code, os.strerror(code))

        with patch.context() as while_it_fails:
            while_it_fails.setattr(os, call, fails)
            self.read(SAMPLES)
        self.reopen(patch)

    def another_is_killed(self, _):
        child = FORK.Process(target=self.die, args=(self.chance.randrange(1, 60),))
        child.start()
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)

    def die(self, steps):
        left = [steps]

        def counted(function):
            def call(*arguments, **keywords):
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **keywords)

            return call

        for name in ("open", "write", "close", "replace", "pwrite", "ftruncate"):
            setattr(os, name, counted(getattr(os, name)))
        self.read(SAMPLES)
        os._exit(0)

    def another_comes_and_goes(self, _):
        child = FORK.Process(target=self.come_and_go)
        child.start()
        child.join()
        assert child.exitcode == 0

    def come_and_go(self):
        self.open()
        self.read(20)
        self.cached.close()

    def leave_halves(self, _):
        folder = self.folder / "disk" / "aiacc-cache"
        for path in folder.glob("*/*"):
            if path.is_dir():
                (path / ".00.17-0.tmp").write_bytes(b"half")
        (self.folder / "memory" / f"{PREFIX}dead").write_bytes(b"half")

    def reopen(self, _):
        self.cached.close()
        self.open()


EVENT_KINDS = [
    *(Job.flip_in_memory, Job.flip_on_disk, Job.cut_on_disk, Job.remove_a_record),
    *(Job.remove_the_set, Job.damage_the_account, Job.origin_fails_for_a_while, Job.origin_fails),
    *(Job.disk_is_full, Job.disk_is_read_only, Job.memory_is_full, Job.another_is_killed),
    *(Job.another_comes_and_goes, Job.leave_halves, Job.reopen),
]


@pytest.mark.parametrize("seed", [1])
def test_a_hundred_faults(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(origin_module, "pause_before", lambda attempt, chance: 0)
    # What happens draws from its own: how much the rest draws depends on how threads are scheduled.
    events = random.Random(seed)
    job = Job(tmp_path, random.Random(seed))
    happened = collections.Counter()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nothing more is kept")
        for _ in range(EVENTS):
            event = events.choice(EVENT_KINDS)
            happened[event.__name__] += 1
            event(job, monkeypatch)
            job.read()
    assert len(happened) == len(EVENT_KINDS)
    job.cached.close()
    assert [path.name for path in (tmp_path / "memory").iterdir()] in ([], [f"{PREFIX}dead"])
