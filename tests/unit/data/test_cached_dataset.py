"""The wrapper: bit-identical to the dataset, fetched once, whoever asks."""

import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from aiacc.data import CachedDataset, RecordError
from aiacc.data import origin as origin_module
from tests.unit.data.stores import FORK, failing, in_child, in_children, mapped
from tests.unit.data.test_record import same


def sample_of(index, size=100):
    image = np.random.default_rng(index).integers(0, 256, (size,), np.uint8)
    return {"image": torch.from_numpy(image), "label": index % 7, "name": f"sample {index}"}


class Origin:
    """Samples of several kinds; writes down each fetch, of every process, in a file."""

    def __init__(self, log, before=None, size=100):
        self.log = str(log)
        self.before = before
        self.size = size

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if self.before is not None:
            self.before()
        with open(self.log, "a") as log:  # noqa: PTH123
            log.write(f"{index}\n")
        return sample_of(index, self.size)


@pytest.fixture
def source(tmp_path):
    return Origin(tmp_path / "log")


@pytest.fixture
def cached(opened, source):
    return opened(source)


def fetches(source):
    return [int(line) for line in Path(source.log).read_text().split()]


def test_epochs_are_those_of_the_dataset_and_the_second_fetches_nothing(cached, source):
    expected = [source[index] for index in range(len(source))]
    Path(source.log).unlink()
    for _ in range(3):
        assert same([cached[index] for index in range(len(cached))], expected)
    # Three samples are fetched twice, to see whether they are augmented.
    assert sorted(fetches(source)) == sorted([*range(20), 0, 1, 2])
    found = cached.statistics()
    assert (found.samples, found.fetched, found.memory_hits) == (60, 20, 40)
    assert found.hit_ratio == pytest.approx(2 / 3)
    assert found.memory_bytes == 2 * found.fetched_bytes
    assert "40 from memory" in found.line()
    assert "disk" not in found.line()


def test_indices_are_those_of_the_dataset(cached):
    assert same(cached[-1], cached[19])
    assert same(cached[np.int64(3)], cached[3])
    assert same(cached[torch.tensor(3)], cached[3])
    assert len(list(cached)) == 20  # ends by IndexError
    with pytest.raises(IndexError, match="sample 20 of a dataset of 20"):
        cached[20]
    with pytest.raises(TypeError):
        cached["3"]


def test_transform_runs_after_the_cache(source, opened):
    seen = []

    def augment(sample):
        seen.append(sample["label"])
        sample["image"] += 1  # changes what it was given
        return sample["image"]

    cached = opened(source, transform=augment)
    first, second = cached[3], cached[3]
    assert same(first, second)
    assert same(first, source[3]["image"] + 1)
    assert seen == [3, 3]


class Augmented(Origin):
    def __getitem__(self, index):
        return super().__getitem__(index)["image"] + torch.rand(1)


def test_augmentation_inside_the_dataset_is_noticed(tmp_path, opened):
    cached = opened(Augmented(tmp_path / "log"))
    with pytest.warns(UserWarning, match="sample 4 of Augmented was another one"):
        kept = cached[4]
    assert same(cached[4], kept)


def test_other_samples_of_an_equal_fingerprint_are_told_by_one_fetch(tmp_path, opened):
    class Other(Origin):
        def __getitem__(self, index):
            return super().__getitem__(index + 1)

    of_all = {"fingerprint": "one", "disk": (tmp_path / "disk", "1MB")}
    sources = [Origin(tmp_path / "log"), Other(tmp_path / "other")]
    for _ in range(2):  # at the same time; and with what an earlier job has left on the disk
        caches = [opened(source, **of_all) for source in sources]
        caches[0].sampler()
        with pytest.raises(ValueError, match=r"sample 0 of Other is another one .*fingerprint="):
            caches[1].sampler()
        caches[0].sampler()
        assert fetches(sources[0]) == [0]
        Path(sources[0].log).unlink()
        for cached in caches:
            cached.close()
    augmented = opened(Augmented(tmp_path / "log"))
    augmented._store.count("compared", 3)
    augmented[0]
    augmented.sampler()  # which is no other dataset
    opened([]).sampler()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_share_what_they_have(cached, method):
    """One of the reasons for which torch has no such cache: a copy per worker."""
    workers = {"num_workers": 2, "multiprocessing_context": method, "persistent_workers": True}
    loader = DataLoader(cached, batch_size=5, **workers)
    for _ in range(2):
        labels = torch.cat([batch["label"] for batch in loader])
        assert labels.tolist() == [index % 7 for index in range(20)]
    assert (cached.statistics().fetched, cached.statistics().memory_hits) == (20, 20)


def test_ranks_of_a_node_share(cached, source, tmp_path):
    def read_all(begin):
        mine = CachedDataset(source, (tmp_path / "shm", "1MB"))
        for number in (*range(begin, 20), *range(begin)):
            assert same(mine[number], sample_of(number))
        mine.close()

    in_children(read_all, (0,), (10,))
    assert len(set(fetches(source))) == 20
    assert len(fetches(source)) <= 20 + 4  # two may compare a sample at the same time
    assert cached.statistics().fetched == 20


def test_requests_of_a_batch_are_in_flight_at_a_time(tmp_path, opened):
    together = threading.Barrier(8)
    source = Origin(tmp_path / "log", lambda: together.wait(60))
    cached = opened(source, fingerprint="together", requests=8)
    cached._store.count("compared", 3)  # nothing is fetched twice, which would break the barrier
    asked = [3, 1, 4, 1, 5, 9, 2, 6, 0]
    batch = cached.__getitems__(asked)
    assert [sample["name"] for sample in batch] == [f"sample {index}" for index in asked]
    (path,) = (tmp_path / "shm").iterdir()
    with mapped(path) as data:  # all of them are damaged
        for sample in {sample["name"]: sample for sample in batch}.values():
            at = data.find(sample["image"].numpy().tobytes())
            data[at : at + 2] = b"\x00\xff"
    assert same(cached.__getitems__(asked), batch)
    assert sorted(fetches(cached.dataset)) == sorted([*{*asked}] * 2)
    assert (cached.statistics().corrupt, cached.statistics().fetched) == (8, 16)


class Slow(Origin):
    """Answers in the process that has made it when it is told to."""

    def __init__(self, log):
        super().__init__(log, self.wait)
        self.entered, self.go_on, self.maker = threading.Event(), threading.Event(), os.getpid()

    def wait(self):
        if os.getpid() == self.maker:
            self.entered.set()
            self.go_on.wait()


def test_threads_that_want_the_same_sample_fetch_it_once(tmp_path, opened):
    source = Slow(tmp_path / "log")
    cached = opened(source, fingerprint="slow")
    cached._store.count("compared", 3)
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(cached.__getitem__, 5) for _ in range(3)]
        source.entered.wait()
        source.go_on.set()
    one, other, _ = (future.result() for future in found)
    assert same(one, other)
    one["image"] += 1
    assert not same(one, other)
    assert fetches(source) == [5]


def test_a_child_does_not_wait_for_threads_of_its_parent(tmp_path):
    source = Slow(tmp_path / "log")
    cached = CachedDataset(source, None, (tmp_path, "1MB"), fingerprint="slow")

    def reads_what_the_parent_was_fetching():
        assert not cached._store._fetching  # nobody here brings it
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(cached.__getitem__, [5] * 4))
        assert {sample["name"] for sample in found} == {"sample 5"}

    with ThreadPoolExecutor(1) as pool:
        pool.submit(cached.__getitem__, 5)
        source.entered.wait()
        child = FORK.Process(target=reads_what_the_parent_was_fetching)
        with cached._store._mutex:
            child.start()
        source.go_on.set()
    child.join(60)
    assert child.exitcode == 0
    child.close()
    cached.close()


def test_an_origin_that_fails_for_a_while_is_asked_again(tmp_path, monkeypatch, opened):
    pauses = [origin_module.pause_before(attempt, 0) for attempt in range(1, 10)]
    assert (pauses[:3], pauses[-1]) == ([0.1, 0.2, 0.4], 10)
    assert origin_module.pause_before(1, 1) == 0.05
    pauses = []
    monkeypatch.setattr(origin_module, "pause_before", lambda n, chance: pauses.append(n) or 0)
    errors = [ConnectionError("reset"), TimeoutError("late")]

    def fail():
        if errors:
            raise errors.pop()

    cached = opened(Origin(tmp_path / "log", fail), fingerprint="failing")
    assert same(cached[3], sample_of(3))
    assert cached.statistics().retries == 2
    errors += [ConnectionError(f"failure {n}") for n in range(4)]
    with pytest.raises(ConnectionError, match="failure 0"):
        cached[4]
    assert cached.statistics().failures == 1
    for error in (KeyError("a defect"), FileNotFoundError("gone")):
        errors[:] = [error]
        with pytest.raises(type(error), match=error.args[0]):
            cached[4]
    assert pauses == [1, 2, 1, 2, 3]
    assert same(cached[4], sample_of(4))


@pytest.mark.parametrize(
    ("folder", "temporary"), [(None, "/tmp"), ("absent", "/tmp"), ("absent", "/nowhere")]
)
def test_without_memory_everything_is_fetched(source, tmp_path, folder, temporary, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", temporary)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cached = CachedDataset(source, folder and (tmp_path / folder, "1MB"))
    said = [str(one.message) for one in caught]
    assert len(said) == bool(folder)
    assert all(text.startswith("no memory of the node is used: ") for text in said)
    assert [cached[1]["label"] for _ in range(3)] == [1, 1, 1]
    assert in_child(cached.__getitem__, 1) == 0
    assert (cached.statistics().fetched, cached.statistics().refused) == (4, 4)
    cached.close()


@pytest.mark.parametrize(("memory", "evict"), [(8, "never"), ("1MB", "lru")])
def test_memory_too_small_for_any_sample_is_a_warning(tmp_path, memory, evict, opened):
    cached = opened(Origin(tmp_path / "log", size=100_000), memory=memory, evict=evict)
    with pytest.warns(UserWarning, match=r"sample of 100\d{3} bytes .* takes records of at most"):
        cached[0]
    cached[1]  # says nothing more
    with pytest.raises(RecordError, match="transform="):  # which no record holds
        opened([{1, 2}])[0]


def test_a_full_file_system_in_memory_is_a_warning(cached, source, monkeypatch):
    cached[0]
    said = "nothing more is kept in memory: .*No space"
    with failing(monkeypatch, "pwrite"), pytest.warns(UserWarning, match=said) as caught:
        assert [cached[index]["label"] for index in range(7)] == list(range(7))
    assert len(caught) == 1
    assert cached.statistics().memory_failures == 1
    assert [cached[index]["label"] for index in range(7)] == list(range(7))
    assert cached.statistics().refused == 12


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield 1


@pytest.mark.parametrize(
    ("source", "arguments", "said"),
    [
        ([1], {"memory": "8 apples"}, "memory='8 apples'"),
        ([1], {"requests": 0}, "requests=0 .expected a whole number, 1 or more"),
        ([1], {"fingerprint": ""}, "fingerprint=''"),
        ([1], {"retry_on": (OSError, 3)}, "retry_on=.*3.* .expected a tuple of classes"),
        *(
            (one, {}, "expected a map-style.*CachedIterable")
            for one in (iter([1]), Stream(), {1}, Origin)
        ),
    ],
)
def test_bad_arguments_are_named(source, arguments, said):
    with pytest.raises(ValueError, match=said):
        CachedDataset(source, **arguments)


def test_a_cache_that_was_closed_says_so_and_everything_ends_by_itself(cached, source, tmp_path):
    cached.close()
    for use in (lambda: cached[0], cached.statistics):
        with pytest.raises(ValueError, match="this cache was closed"):
            use()
    other = CachedDataset(source, (tmp_path / "shm", "1MB"))
    other[0]
    del other  # warnings are errors
    assert list((tmp_path / "shm").iterdir()) == []
