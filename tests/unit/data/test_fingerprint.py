"""Fingerprints: equal for equal datasets in every process, others for others."""

import functools
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from aiacc.data.fingerprint import fingerprint_of, key_of, named

ROOT = Path(__file__).resolve().parents[3]


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


def test_equal_datasets_have_equal_fingerprints():
    assert fingerprint_of(Files()) == fingerprint_of(Files(table={"y": [1, 2], "x": 1}))
    assert len(fingerprint_of(Files())) == 32


@pytest.mark.parametrize(
    "other",
    [
        Files("b"),
        Files(size=11),
        Files(transform=crop),
        Files(transform=functools.partial(crop, size=2)),
        Files(transform=functools.partial(crop, size=4)),
        Files(transform=lambda sample: sample),
        Files(transform=lambda sample: sample + 1),
        Files(table={"x": 1, "y": [2, 1]}),
        Files(table=np.arange(3)),
        Files(table=np.arange(3.0)),
        Files(table=torch.arange(3)),
        Files(table=torch.arange(3).flip(0)),
        Files(table=Path("x")),
        [1, 2, 3],
        [1, 2, 4],
    ],
)
def test_every_difference_makes_another(other):
    assert fingerprint_of(other) == fingerprint_of(other)
    assert fingerprint_of(other) != fingerprint_of(Files())
    assert fingerprint_of(other, "2") != fingerprint_of(other)


def test_all_of_the_differences_differ():
    bounds = [functools.partial(crop, size=size) for size in range(5)]
    assert len({fingerprint_of(Files(transform=one)) for one in bounds}) == 5
    closures = [adding(number) for number in range(5)]
    assert len({fingerprint_of(Files(transform=one)) for one in closures}) == 5


def test_another_process_finds_the_same():
    program = (
        "from tests.unit.data.test_fingerprint import Files, crop, fingerprint_of\n"
        "print(fingerprint_of(Files(transform=crop, table={'b', 'a', 'c'})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    expected = fingerprint_of(Files(transform=crop, table={"a", "b", "c"}))
    # In the other process the classes have the same names, for it imported them by those.
    assert done.stdout.split() == [expected]


def test_keys_are_those_of_one_sample():
    mine, other = named("mine"), named("mine", "2")
    names = [0, 1, 10, "0", "1", b"0", b"1"]
    keys = {key_of(fingerprint, name) for fingerprint in (mine, other) for name in names}
    assert len(keys) == 14
    assert {len(key) for key in keys} == {16}
