"""Functions of keys and iterables behind a cache, tf.data's among them."""

import numpy as np
import pytest
import tensorflow as tf
import torch

from aiacc.data import CachedIterable, CachedKeys
from aiacc.data.fingerprint import key_of
from aiacc.data.record import encode
from tests.unit.data.stores import mapped
from tests.unit.data.test_record import same


def test_keys_are_read_once(opened, tmp_path):
    asked = []

    def read(key):
        asked.append(key)
        return {"key": key, "pixels": np.full(3, len(str(key)))}

    on_both = {"kind": CachedKeys, "disk": (tmp_path / "disk", "1MB")}
    cached = opened(read, "images", **on_both)
    for _ in range(2):
        for key in ("a", b"a", 1, "1", "train/ä.jpg"):
            assert same(cached[key], {"key": key, "pixels": np.full(3, len(str(key)))})
    assert set(asked) == {"a", b"a", 1, "1", "train/ä.jpg"}
    assert cached.statistics().fetched == 5
    with pytest.raises(TypeError, match="expected an integer, a str or bytes"):
        cached[1.5]
    with pytest.raises(ValueError, match=r"fingerprint=.*expected a name"):
        CachedKeys(read, "")
    cached.close()
    assert opened(pytest.fail, "images", **on_both)["a"]["key"] == "a"
    assert opened(lambda key: 0, "images", version="2", **on_both)["a"] == 0


class Numbers(torch.utils.data.IterableDataset):
    """Divides its numbers among workers."""

    def __init__(self, length=10):
        self.length = length
        self.passes = []

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        self.passes.append([])
        for number in range(first, self.length, step):
            self.passes[-1].append(number)
            yield torch.tensor(number)


@pytest.fixture
def cached(opened):
    return opened(Numbers(), kind=CachedIterable)


def test_a_pass_that_was_left_is_taken_up_and_later_ones_read_nothing(cached):
    with pytest.raises(ValueError, match=r"a generator, .*pass the function"):
        CachedIterable(n for n in "abc")
    for number in cached:
        if number == 6:
            break
    for _ in range(3):
        assert [int(number) for number in cached] == list(range(10))
    assert cached.source.passes == [list(range(7)), list(range(10))]
    assert cached.statistics().memory_hits == 7 + 2 * 11  # with the mark of the end


def test_what_has_no_room_comes_from_the_source(opened):
    samples = [np.full(20_000, number) for number in range(20)]
    cached = opened(lambda: iter(samples), fingerprint="large", kind=CachedIterable)
    for _ in range(2):
        assert same(list(cached), samples)
    assert cached.statistics().memory_hits > 0
    assert cached.statistics().refused > 0


def test_a_damaged_record_comes_from_the_source(cached, tmp_path):
    list(cached)
    (path,) = tmp_path.glob("shm/*")
    with mapped(path) as data:
        data[data.find(encode(torch.tensor(5)))] ^= 1
    assert [int(number) for number in cached] == list(range(10))
    assert cached.statistics().corrupt == 1


def test_workers_have_passes_of_their_own(cached):
    loader = torch.utils.data.DataLoader(cached.for_torch(), batch_size=None, num_workers=2)
    for _ in range(2):
        assert sorted(int(number) for number in loader) == list(range(10))
    assert cached.statistics().fetched == 12


def test_parts_are_kept_apart(opened):
    of_both = {"kind": CachedIterable, "fingerprint": "parts"}
    parts = [opened([rank], part=f"{rank} of 2", **of_both) for rank in range(2)]
    for _ in range(2):
        assert [list(part) for part in parts] == [[0], [1]]


def test_other_samples_than_before_are_noticed(opened):
    order = [1, 2, 3]
    cached = opened(lambda: iter(order), fingerprint="order", kind=CachedIterable)
    assert list(cached) == order
    cached._cached._arena.forget(key_of(cached.fingerprint, "  0"))
    order.reverse()
    with pytest.warns(UserWarning, match="shuffle and augment behind the cache"):
        assert list(cached) == [3, 2, 3]


def test_tf_data(opened):
    reads = []

    def count(number):
        reads.append(int(number))
        return number

    numbers = tf.data.Dataset.range(6).map(
        lambda number: {
            "x": tf.fill([2, 2], tf.numpy_function(count, [number], tf.int64)),
            "name": tf.strings.as_string(number),
        }
    )
    with pytest.raises(ValueError, match="expected a name for it"):
        opened(numbers, kind=CachedIterable)
    cached = opened(numbers, fingerprint="numbers", kind=CachedIterable)
    signature = numbers.element_spec
    again = tf.data.Dataset.from_generator(lambda: iter(cached), output_signature=signature)
    for _ in range(2):
        found = list(again.shuffle(6, seed=1).batch(2).as_numpy_iterator())
        names = sorted(name for batch in found for name in batch["name"])
        assert names == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert all(batch["x"].shape == (2, 2, 2) for batch in found)
    assert len(reads) == 6


def test_tf_data_by_key(opened):
    asked = []

    def read(key):
        asked.append(key)
        return np.full(2, key[0])

    cached = opened(read, "keys", kind=CachedKeys)
    names = tf.data.Dataset.from_tensor_slices([b"abc", b"bcd"])
    images = names.map(lambda name: tf.numpy_function(cached.__getitem__, [name], tf.int64))
    for _ in range(2):
        assert [image.tolist() for image in images.as_numpy_iterator()] == [[97, 97], [98, 98]]
    assert set(asked) == {b"abc", b"bcd"}
    assert cached.statistics().memory_hits == 2
    cached = opened(lambda key: np.full(2, key), "numbers", kind=CachedKeys)
    numbers = tf.data.Dataset.range(2)
    images = numbers.map(lambda key: tf.numpy_function(cached.__getitem__, [key], tf.int64))
    assert [image.tolist() for image in images.as_numpy_iterator()] == [[0, 0], [1, 1]]
