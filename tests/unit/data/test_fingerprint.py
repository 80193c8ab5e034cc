"""Fingerprints: equal for equal datasets in every process, others for others."""

import array
import collections
import datetime
import functools
import io
import logging
import multiprocessing
import queue
import re
import sys
import threading
import tracemalloc
from pathlib import Path
from random import Random

import fsspec
import numpy as np
import pytest
import torch

from aiacc.data.fingerprint import fingerprint_of, key_of, named
from tests.support.programs import run_program


class Files:
    def __init__(self, folder="a", size=10, transform=None, table=None):
        self.folder = folder
        self.size = size
        self.transform = transform
        self.table = table if table is not None else {"x": 1, "y": [1, 2]}
        self.lock = threading.Lock()
        self.me = self

    def __len__(self):
        return self.size


def adding(number):
    return lambda sample: sample + number


def crop(sample, size=3):
    return sample[:size]


def test_equal_datasets_have_equal_fingerprints_and_samples_keys_of_their_own():
    assert fingerprint_of(Files()) == fingerprint_of(Files(table={"y": [1, 2], "x": 1}))
    assert len(fingerprint_of(Files())) == 32
    mine, other = named("mine"), named("mine", "2")
    names = [0, 1, 10, "0", "1", b"0", b"1"]
    keys = {key_of(fingerprint, name) for fingerprint in (mine, other) for name in names}
    assert len(keys) == 14
    assert {len(key) for key in keys} == {16}


def named_alike(function):
    function.__qualname__ = "transform"
    return function


#: Values, or data sets, that differ in little.
ALIKE = [
    [
        *(Files(), Files("b"), Files(size=11), Files(transform=crop)),
        *(Files(transform=functools.partial(crop, size=size)) for size in range(5)),
        *(Files(transform=adding(number)) for number in range(5)),
        *(Files(transform=lambda sample: sample), Files(transform=lambda sample: sample + 1)),
        *(Files(table={"x": 1, "y": [2, 1]}), Files(table=Path("x"))),
        *(Files(table=np.arange(3)), Files(table=np.arange(3.0))),
        *(Files(table=torch.arange(3)), Files(table=torch.arange(3).flip(0))),
        *([1, 2, 3], [1, 2, 4]),
    ],
    [
        torch.utils.data.Subset(torch.utils.data.TensorDataset(torch.arange(10)), range(at, at + 5))
        for at in (0, 5)
    ],
    [range(50), range(50, 100)],
    [np.array(["a", "b"], object), np.array(["a", "c"], object)],
    [array.array("i", [1, 2]), array.array("i", [1, 3])],
    [collections.deque([1, 2]), collections.deque([1, 3])],
    [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)],
    [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.ones(3))],
    [{(1, 2): 3}, {(1, 2): 4}],
    [{1.5: 3}, {1.5: 4}],
    [slice(1, 2), slice(1, 3)],
    [re.compile("a"), re.compile("b"), re.compile("a", re.IGNORECASE)],
    [io.BytesIO(b"a"), io.BytesIO(b"b")],
    [len, max],
    [torch.sin, torch.cos],
    ["a".upper, "b".upper],
    [[(1, "a"), (2, "b")], [(1, "a"), (2, "c")], [(1, "a", 2, "b")], [1, "a", 2, "b"]],
    [[1], [True], [1.0], ["1"]],
    [named_alike(lambda text: text.upper()), named_alike(lambda text: text.lower())],
    [named_alike(lambda x, by=1: x + by), named_alike(lambda x, by=2: x + by)],
    [named_alike(lambda xs: (lambda x: x + 1)(xs)), named_alike(lambda xs: (lambda x: x + 2)(xs))],
]


@pytest.mark.parametrize("values", ALIKE, ids=lambda values: type(values[0]).__name__)
def test_what_is_alike_but_for_its_content_differs(values):
    subsets = [Files(table=[Files(table=value)]) for value in values]
    for sets in (values, subsets):
        found = {fingerprint_of(one) for one in sets}
        assert len(found) == len(values)
        assert found == {fingerprint_of(one) for one in sets}
        assert not found & {fingerprint_of(one, "2") for one in sets}


def test_open_files_are_their_names(tmp_path):
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_text("as long")
    for mode in ("r", "rb"):
        with paths[0].open(mode) as one, paths[0].open(mode) as again, paths[1].open(mode) as other:
            again.read(1)
            assert fingerprint_of(Files(table=one)) == fingerprint_of(Files(table=again))
            assert fingerprint_of(Files(table=one)) != fingerprint_of(Files(table=other))


def test_neither_positions_and_locks_nor_states_of_generators_and_loggers_say_anything():
    files = [io.BytesIO(b"as long"), io.StringIO("as long")]
    locks = [multiprocessing.Lock(), queue.SimpleQueue(), threading.Event(), threading.local()]
    for one in (*files, *locks):
        before = fingerprint_of(Files(table=one))
        if one in files:
            one.read(1)
        assert fingerprint_of(Files(table=one)) == before
    made = []
    for seed in range(2):
        tools = [np.random.default_rng(seed), torch.Generator().manual_seed(seed), Random(seed)]
        made.append(fingerprint_of(Files(table=[*tools, logging.getLogger("files")])))
        logging.getLogger("files.another")
    assert made[0] == made[1]
    with pytest.warns(UserWarning, match=r"a builtins\.generator .*fingerprint="):
        fingerprint_of(Files(table=(number for number in range(3))))


def test_depth_and_repetition_neither_hide_nor_cost_anything():
    def deep(bottom):
        for _ in range(25):  # of 2^25 paths
            bottom = [bottom, bottom]
        return bottom

    assert fingerprint_of(deep([1])) == fingerprint_of(deep([1]))
    assert fingerprint_of(deep([1])) != fingerprint_of(deep([2]))


class Connected:
    def __init__(self, address, connection):
        self.address = address
        self.connection = connection

    def __getstate__(self):
        return {"address": self.address}


class Unpicklable(Connected):
    def __getstate__(self):
        raise TypeError


def test_what_an_object_pickles_is_what_it_is():
    assert fingerprint_of(Connected("a", 1)) == fingerprint_of(Connected("a", 2))
    assert fingerprint_of(Connected("a", 1)) != fingerprint_of(Connected("b", 1))
    assert fingerprint_of(Unpicklable("a", 1)) != fingerprint_of(Unpicklable("b", 1))


def test_a_mapped_file_is_its_name_and_not_read(tmp_path):
    path, other = tmp_path / "tokens", tmp_path / "others"
    for one in (path, other):
        np.arange(12, dtype=np.int16).tofile(one)
    tokens = np.memmap(path, np.int16, "r")
    found = fingerprint_of(Files(table=tokens))
    assert fingerprint_of(Files(table=np.memmap(path, np.int16, "r"))) == found
    parts = [tokens[1:], tokens[:-1], tokens[::-1], tokens.reshape(3, 4), tokens.view(np.uint16)]
    parts += [tokens[2:][3:], np.memmap(other, np.int16, "r"), np.array(tokens)]
    assert len({found, *(fingerprint_of(Files(table=part)) for part in parts)}) == 9
    from_there = np.memmap(path, np.int16, "r", offset=10)
    assert fingerprint_of(Files(table=from_there)) == fingerprint_of(Files(table=tokens[2:][3:]))
    np.zeros(12, np.int16).tofile(path)
    assert fingerprint_of(Files(table=tokens)) == found
    mine = np.memmap(path, np.int16, "c")  # whose changes are in no file
    before = fingerprint_of(Files(table=mine))
    mine[0] = 5
    assert fingerprint_of(Files(table=mine)) != before


def test_an_array_is_not_copied():
    table = np.zeros(1_000_000, np.uint8)
    tracemalloc.start()
    try:
        fingerprint_of(Files(table=[table, torch.from_numpy(table)]))
        assert tracemalloc.get_traced_memory()[1] < len(table) // 2
    finally:
        tracemalloc.stop()


def test_another_process_finds_the_same():
    program = (
        "from tests.unit.data.test_fingerprint import Files, crop, fingerprint_of, fsspec\n"
        "store = fsspec.filesystem('memory')\n"
        "print(fingerprint_of(Files(store, transform=crop, table={'b', 'a', 'c'})))"
    )
    done = run_program([sys.executable, "-c", program], check=True)
    store = fsspec.filesystem("memory")  # which knows its process, but does not pickle that
    expected = fingerprint_of(Files(store, transform=crop, table={"a", "b", "c"}))
    # In the other process the classes have the same names, for it imported them by those.
    assert done.stdout.split() == [expected]
