"""Records come back as they were; fingerprints are equal for equal datasets in every process."""

import array
import collections
import contextvars
import datetime
import functools
import gzip
import io
import itertools
import logging
import math
import multiprocessing
import queue
import random
import re
import sqlite3
import struct
import sys
import tarfile
import threading
import types
import typing
import weakref
import zipfile
from collections import namedtuple
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random

import fsspec
import h5py
import ml_dtypes
import numpy as np
import PIL.Image
import pytest
import torch

from aiacc.data import fingerprint
from aiacc.data.described import program
from aiacc.data.fingerprint import fingerprint_of, key_of, named
from aiacc.data.record import MOST_NESTED, RecordError, decode, encode
from tests.support.footprint import peak_bytes
from tests.support.programs import run_program


def same(one, other):
    """Equal in type and in every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        one, other = list(one.items()), list(other.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        bits = [x.resolve_conj().reshape(-1).contiguous().view(torch.uint8) for x in (one, other)]
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)
    if isinstance(one, float | complex):
        one, other = np.array(one), np.array(other)
    if isinstance(one, np.ndarray | np.generic):
        equal = one.dtype == other.dtype and one.shape == other.shape
        return equal and one.tobytes() == other.tobytes()
    return one == other


def again(sample):
    return decode(bytearray(encode(sample)))


PLAIN = [
    *(None, True, 0, -(10**30), 1.5, -0.0, math.nan, complex(-0.0, math.inf)),
    struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\xff")[0],  # a NaN with a payload
    *("", "häßlich \ud800", b"", b"\x00\xff" * 77, bytearray(b"abc"), [], (), {}),
    {"a": [1, (2.5, {"b": b"x"})], 3: None, (1, "x"): 2},
]
ARRAYS = [
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.arange(24, dtype=">i2").reshape(2, 3, 4)[:, ::2].T,
    *(np.zeros((0, 3), np.uint8), np.array(2.5), np.array([True, False]), np.array(["a", "bcd"])),
    *(np.array([b"a", b"bcd"]), np.array(["2026-11-25"], "datetime64[s]")),
    np.array([(1, [2.0, 3.0])], [("x", "<i4"), ("y", "<f8", (2,))]),
    *(np.array([((1,),)], [("x", [("y", "<i8")])]), np.float16(1.5), np.int64(-7)),
]
TENSORS = [
    *(torch.arange(6.0).reshape(2, 3).t(), torch.tensor(3), torch.tensor([True, False])),
    *(torch.zeros(0, 5, dtype=torch.bfloat16), torch.randn(3).to(torch.float8_e4m3fn)),
    *(torch.randn(3, dtype=torch.complex64).conj(), torch.arange(8, dtype=torch.int16)[::3]),
]


@pytest.mark.parametrize("sample", [*PLAIN, *ARRAYS, *TENSORS])
def test_comes_back_as_it_was(sample):
    assert same(again(sample), sample)
    assert same(again([sample, {"it": sample}]), [sample, {"it": sample}])


def test_arrays_can_be_written_begin_at_multiples_of_64_and_are_of_no_file(tmp_path):
    record = encode([b"x", np.full(3, 7.0)])
    assert record.index(np.full(3, 7.0).tobytes()) % 64 == 0
    mapped = np.memmap(tmp_path / "file", np.int32, "w+", shape=(3,))
    mapped[:] = (0, 1, 2)
    array, tensor = again((mapped, torch.arange(3, dtype=torch.int32)))
    assert same(array, np.arange(3, dtype=np.int32))
    array += 1
    tensor += 1
    assert array.tolist() == tensor.tolist() == [1, 2, 3]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK", "I;16", "F"])
def test_images_come_back(mode, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (13, 17, 3), np.uint8)
    image = PIL.Image.fromarray(pixels)
    image = image.convert("I").convert(mode) if mode == "I;16" else image.convert(mode)
    image.info = {"exif": b"Exif\0\0x", "dpi": (72, 72), "unknown": object()}
    found = again((image, 3))[0]
    assert (found.mode, found.size, found.tobytes()) == (image.mode, image.size, image.tobytes())
    assert found.info == {"exif": b"Exif\0\0x", "dpi": (72, 72)}
    assert found.convert("RGB").tobytes() == image.convert("RGB").tobytes()


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tiff"])
def test_a_file_of_an_image_comes_back_as_its_pixels(tmp_path, suffix):
    path = tmp_path / f"image{suffix}"
    PIL.Image.new("RGB", (9, 5), (200, 30, 77)).save(path, dpi=(72.5, 300))
    found, image = again(PIL.Image.open(path)), PIL.Image.open(path)
    assert found.tobytes() == image.tobytes()
    assert found.info.get("compression") == image.info.get("compression")
    assert suffix != ".tiff" or "dpi" not in found.info, "which no record holds"


Pair = namedtuple("Pair", "one other")


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"a": [1, {2}]}, r"sample\['a'\]\[1\] is a builtins.set"),
        (Pair(1, 2), "sample is a .*Pair"),
        (Path("x"), "let the dataset return these"),
        (np.array([object()]), "array of objects"),
        (np.array([b"x", b"longer"], object), r"array of objects.*\.astype\(bytes\)"),
        (np.ma.array([1]), "numpy.ma"),
        (np.zeros(3, ml_dtypes.bfloat16), "not NumPy's own"),
        (torch.nn.Parameter(torch.zeros(2)), "Parameter"),
        (torch.zeros(2, requires_grad=True), "requires a gradient"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.zeros(2, device="meta"), "on meta"),
        ([10**5000], "4300 digits"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused(sample, said):
    with pytest.raises(RecordError, match=said):
        encode(sample)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_and_a_list_in_itself_are_refused():
    with pytest.raises(RecordError, match="expected a dense one"):
        encode(torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]))
    endless = []
    endless.append(endless)
    with pytest.raises(RecordError, match=f"more than {MOST_NESTED}"):
        encode(endless)


def test_random_bytes_and_random_changes_are_no_records_or_others():
    chance = random.Random(1)
    whole = encode({"x": np.arange(20), "y": [torch.arange(3), 2.5, None, "text"]})
    refused = 0
    for _ in range(2000):
        record = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            record[chance.randrange(len(record))] = chance.randrange(256)
        if chance.random() < 0.3:
            del record[chance.randrange(len(record)) :]
        try:
            decode(record)
        except RecordError:
            refused += 1
    assert refused > 500


LIES = [
    *(b'["array","O",[1],8]', b'["array","<f8",[-1],8]', b'["array","<f8",[2],8]'),
    *(b'["bytes",1000000]', b'["tensor","load",[8],8]', b'["array",",,",[1],8]'),
    *(b'["__class__"]', b'["build",3]', b"[" * 100_000, b'{"a":1}', b"\xff"),
]


@pytest.mark.parametrize("description", LIES)
def test_descriptions_that_lie_are_refused(description):
    record = b"aiacc-r1" + struct.pack("<I", len(description)) + description + bytes(64)
    with pytest.raises(RecordError):
        decode(bytearray(record))


class Files:
    def __init__(self, folder="a", size=10, transform=None, table=None):
        self.folder, self.size, self.transform = folder, size, transform
        self.table = table if table is not None else {"x": 1, "y": [1, 2]}
        self.lock, self.me = threading.Lock(), self

    def __len__(self):
        return self.size


def crop(sample, size=3):
    return sample[:size]


def test_equal_datasets_have_equal_fingerprints_and_samples_keys_of_their_own(monkeypatch):
    assert fingerprint_of(Files()) == fingerprint_of(Files(table={"x": 1, "y": [1, 2]}))
    assert len(fingerprint_of(Files())) == 32
    own = [named("mine"), named("mine", "2"), fingerprint_of(Files())]
    monkeypatch.setattr(fingerprint, "FORMAT", "a new one")
    own += [named("mine"), fingerprint_of(Files())]
    names = [0, 1, 10, "0", "1", b"0", b"1"]
    keys = {key_of(one, name) for one in own for name in names}
    assert len(keys) == 35
    assert {len(key) for key in keys} == {16}


#: Built-in classes whose objects have no attributes, but those of subclasses do.
Labels, *SUBCLASSES, Pixels = (
    type(f"of_{base.__name__}", (base,), {}) for base in (dict, list, str, int, np.ndarray)
)


def having(value, size):
    value.size_of_crop = size
    return value


def after(value, method, *arguments):
    getattr(value, method)(*arguments)
    return value


def done(result):
    return after(Future(), "set_result", result)


def context(value):
    return after(contextvars.ContextVar("size", default=0), "set", value)


class Part(io.RawIOBase):
    """Of a file, from some byte on, as libraries make them."""

    def __init__(self, begin):
        self.name, self.begin = "/file", begin

    def readable(self):
        return True


class Connected:
    def __init__(self, address, connection):
        self.address, self.connection = address, connection

    def __getstate__(self):
        return {"address": self.address}


Unpicklable = type("Unpicklable", (Connected,), {"__getstate__": lambda self: {}[self]})
Reduced = type("Reduced", (Connected,), {"__reduce__": lambda self: (list, ([self.address],))})


def tree(is_crossed):
    """Two branches, each with a leaf that refers to its own branch, or to the first."""
    branches = [Files(), Files()]
    for branch in branches:
        branch.me = Files()
        branch.me.me = branches[0] if is_crossed else branch
    return branches


def nested(content, depth=5000):
    for _ in range(depth):
        content = [content]
    return content


T = typing.TypeVar("T")


class Sized(typing.Generic[T]):
    """What it is of, its methods find in its bases."""


def sized(kind=int, annotation=int):
    return types.new_class(
        "Images",
        (Sized[kind],),
        exec_body=lambda body: body.update(__annotations__={"image": annotation}),
    )


#: Values, or data sets, that differ in little, and in more than what a leaf below has.
ALIKE = [
    [
        *(Files(), Files("b"), Files(size=11), Files(transform=crop)),
        *(Files(transform=lambda sample: sample), Files(transform=lambda sample: sample + 1)),
        *(Files(table={"x": 1, "y": [2, 1]}), Files(table=Path("x"))),
        *(Files(table=np.arange(3)), Files(table=np.arange(3.0)), [1, 2, 3], [1, 2, 4]),
        *(Files(table=torch.arange(3)), Files(table=torch.arange(3).flip(0))),
    ],
    [
        torch.utils.data.Subset(torch.utils.data.TensorDataset(torch.arange(10)), range(at, at + 5))
        for at in (0, 5)
    ],
    [np.array(["a", "b"], object), np.array(["a", "c"], object)],
    *([array.array("i", [1, 2]), array.array("i", [1, 3])], [range(50), range(50, 100)]),
    [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.ones(3))],
    [type("Config", (dict,), {"__getattr__": dict.__getitem__})(size=size) for size in (1, 2)],
    *([{key: 3}, {key: 4}] for key in (1.5, (1, 2), ((1,), 2), np.int64(1), Path("a"), int, None)),
    [{frozenset([1]): 3}, {frozenset([1]): 4}, {frozenset([2]): 3}],
    [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    *([having(of(), 1), having(of(), 2)] for of in (Labels, *SUBCLASSES)),
    [having(np.arange(3).view(Pixels), size) for size in (1, 2)],
    [having(torch.arange(3), 1), having(torch.arange(3), 2), torch.arange(3)],
    [torch.eye(3).to_sparse(), 2 * torch.eye(3).to_sparse(), torch.eye(3)],
    *([nested(1), nested(2)], [tree(False), tree(True)], [slice(1, 2), slice(1, 3)]),
    *([weakref.ref(Labels), weakref.ref(Pixels)], [io.BytesIO(b"a"), io.BytesIO(b"b")]),
    [re.compile("a"), re.compile("b"), re.compile("a", re.IGNORECASE)],
    [gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(data))) for data in (b"a", b"b")],
    [io.TextIOWrapper(io.BufferedReader(Part(begin))) for begin in (1, 2)],
    [context(1), context(2), contextvars.ContextVar("size", default=2)],
    *([done(1), done(2)], [having(collections.Counter(), size) for size in (1, 2)]),
    [
        type("Sized", (), {"__annotations__": {"size": kind}})
        for kind in (int, list[int], Part | int)
    ],
    *([of(*two) for two in ((1, 2), (3, 2), (1, 4))] for of in (Connected, Unpicklable, Reduced)),
    [datetime.datetime(2024, 10, 27, 2, fold=fold) for fold in (0, 1)],
    [sized(typing.Literal[size]) for size in (64, 96)],
    [sized(annotation=typing.Annotated[int, Connected(size, 1)]) for size in (64, 96)],
    [sized(annotation=list[typing.Annotated[int, Connected(size, 1)]]) for size in (64, 96)],
    [sized(annotation=Connected(size, 1)) for size in (64, 96)],
    *([len, max], [torch.sin, torch.cos], ["a".upper, "b".upper]),
    [[(1, "a"), (2, "b")], [(1, "a"), (2, "c")], [(1, "a", 2, "b")], [1, "a", 2, "b"]],
    [[1], [True], [1.0], ["1"]],
]


@pytest.mark.parametrize("values", ALIKE, ids=lambda values: type(values[0]).__name__)
def test_what_is_alike_but_for_its_content_differs(values):
    subsets = [Files(table=[Files(table=value)]) for value in values]
    for sets in (values, subsets):
        found = {fingerprint_of(one) for one in sets}
        assert len(found) == len(values)
        assert found == {fingerprint_of(one) for one in sets}
        assert not found & {fingerprint_of(one, "2") for one in sets}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_scales_of_quantised_zeros_count():
    zeros, none, qint8 = torch.zeros(1, 2), torch.zeros(2), torch.qint8
    values = [
        *(torch.quantize_per_tensor(zeros, scale, at, qint8) for scale, at in ((1, 0), (2, 0))),
        *(torch.quantize_per_channel(zeros, none + scale, none, 1, qint8) for scale in (1, 2)),
    ]
    assert len({fingerprint_of(Files(table=value)) for value in values}) == 4


def test_open_files_are_their_names(tmp_path):
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_text("as long")
    for mode in ("r", "rb"):
        with paths[0].open(mode) as one, paths[0].open(mode) as again, paths[1].open(mode) as other:
            again.read(1)
            assert fingerprint_of(Files(table=one)) == fingerprint_of(Files(table=again))
            assert fingerprint_of(Files(table=one)) != fingerprint_of(Files(table=other))
    with tarfile.open(tmp_path / "tar", "w") as tar:
        for path in paths:
            tar.add(path, path.name)
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("x", "as long")
    one, other = map(zipfile.ZipFile, paths)
    with (
        tarfile.open(tmp_path / "tar") as tar,
        one,
        other,
        one.open("x") as x,
        other.open("x") as y,
    ):
        members = [x, y, *map(tar.extractfile, "ab")]
        assert len({fingerprint_of(Files(table=member)) for member in members}) == 4
    with paths[0].open() as one:
        paths[1].rename(paths[0])
        with pytest.raises(ValueError, match="no file that it reads has its name"):
            fingerprint_of(Files(table=one))


def test_neither_positions_and_locks_nor_states_of_generators_and_loggers_say_anything():
    files = [io.BytesIO(b"as long"), io.StringIO("as long")]
    locks = [multiprocessing.Lock(), queue.SimpleQueue(), threading.Event(), threading.local()]
    for make in (multiprocessing.Lock, ThreadPoolExecutor):
        assert len({fingerprint_of(Connected(1, make())) for _ in range(2)}) == 1
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


def test_relative_paths_are_what_they_lead_to(tmp_path, monkeypatch):
    roots = [make(folder) for folder in ("data", "./data") for make in (str, Path)]
    roots += [{"root": "data"}, {Path("data/train")}, b"data"]
    roots += [["1", "data/1"], [("data/1", 0)], *(np.array(["data/1"], kind) for kind in "SUO")]
    found, folders = [], set()
    for where in ("a", "b", "link", "elsewhere"):
        here = tmp_path / where
        here.mkdir()
        if where == "link":
            (here / "data").symlink_to("../a/data")
        elif where != "elsewhere":
            (here / "data").mkdir()
        monkeypatch.chdir(here)
        found.append([fingerprint_of(Files(root)) for root in roots])
        # What is nowhere here, or has a name that the user gave, is the same everywhere.
        (here / "mine").mkdir()
        same = Files("x/y", table=[Path("x"), "../data", "."])
        found[-1].append((fingerprint_of(same), named("mine")))
        folders.add(fingerprint_of(Files(Path())))
    a, b, link, elsewhere = found
    assert len(folders) == 4
    assert a == link
    assert a[-1] == b[-1] == elsewhere[-1]
    for here, there in itertools.combinations((a, b, elsewhere), 2):
        assert not set(here[:-1]) & set(there[:-1])


def test_what_was_found_out_in_between_says_nothing(monkeypatch):
    """By calls that change no result."""
    module = types.ModuleType("helpers_of_test")
    text = "import functools, warnings\n@functools.singledispatch\ndef f(x): warnings.warn('x')\n"
    exec(f"{text}@f.register\ndef of_int(x: int): return 1", vars(module))
    values = [module, module.f, functools.partial(module.f, 1)]
    before = [fingerprint_of(Files(transform=value)) for value in values]
    with pytest.warns(UserWarning, match="x"):
        module.f("x")
    assert module.f(True) == 1
    assert "__warningregistry__" in vars(module)
    assert before == [fingerprint_of(Files(transform=value)) for value in values]
    module.f.register(str, len)
    assert not set(before) & {fingerprint_of(Files(transform=value)) for value in values}


CODE = [
    *("f = lambda im: im.resize((64, 64))", "f = lambda im: im in {64, 65}", "f = lambda im: 64j"),
    *("f = lambda im: im.resize(width64=1)", "def f(im, *, size=64): ..."),
    *("f = lambda: 0; f.n = 64", "def f(im: [64]): ..."),
    "SIZE = 64\nf = lambda ims: [im.resize(SIZE) for im in ims]",
    "crop = lambda im: im[:64]\ndef f(im): return crop(im)",
    "def of(size): return lambda im: im[:size]\nf = of(64)",
    "import functools\n@functools.lru_cache\ndef f(im): return im[:64]",
    "class Base: size = 64\nclass Crop(Base): pass\nf = Crop()",
    "class Crop:\n  def __call__(self, im): return im[:64]\nf = Crop()",
    "class Crop:\n  @property\n  def size(self): return 64\nf = Crop()",
    "import helpers_of_test\ndef f(im): return helpers_of_test.crop(im) # 64",
    "def f(im):\n  from helpers_of_test import crop\n  return crop(im) # 64",
    "def f(im):\n  import helpers_of_test as h\n  return h.crop(im) # 64",
]


@pytest.mark.parametrize("text", CODE)
def test_code_and_what_it_names_count(text, monkeypatch):
    def found(size):
        text_of = {"helpers_of_test": "SIZE = 64\ndef crop(im): return im[:SIZE]", "user": text}
        for name, its_text in text_of.items():
            module = types.ModuleType(name)
            monkeypatch.setitem(sys.modules, name, module)
            exec(its_text.replace("64", size), vars(module))
        return fingerprint_of(Files(transform=module.f))

    assert found("64") == found("64") != found("96")


def test_a_package_that_says_no_version_has_that_of_its_installation(tmp_path, monkeypatch):
    found = []
    for version in ("1", "2"):
        place = tmp_path / version / "site-packages"
        info = place / f"crops_of_test-{version}.dist-info" / "METADATA"
        info.parent.mkdir(parents=True)
        info.write_text(f"Name: crops_of_test\nVersion: {version}\n")
        monkeypatch.syspath_prepend(place)
        module = types.ModuleType("crops_of_test")
        module.__file__ = str(place / "crops_of_test.py")
        exec("def crop(im): ...", vars(module))
        monkeypatch.setitem(sys.modules, "crops_of_test", module)
        program._version_of.cache_clear()
        found.append(fingerprint_of(Files(transform=module.crop)))
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ((number for number in range(3)), "a builtins.generator"),
        (memoryview(b"abc"), "a builtins.memoryview"),
        (torch.zeros(3, device="meta"), "a torch.Tensor"),
        (np.frompyfunc(lambda x: x + 1, 1, 1), "a numpy.ufunc"),
        (multiprocessing.Queue(), "a multiprocessing.connection.Connection"),
        (Future(), "a concurrent.futures._base.Future"),
        (after(queue.SimpleQueue(), "put", 1), "a _queue.SimpleQueue"),
        (Connected(1, (number for number in "ab")), "a builtins.generator"),
        (sqlite3.connect(":memory:"), "a sqlite3.Connection"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_described_is_refused(value, kind):
    with pytest.raises(ValueError, match=rf"dataset\.table\[0\].* is {kind}, .*fingerprint="):
        fingerprint_of(Files(table=[value]))


def test_a_handle_that_nobody_answers_for_says_nothing():
    handles = [sqlite3.connect(":memory:") for _ in range(2)]
    for holding in (lambda one: Connected(1, one), lambda one: having(threading.local(), one)):
        first, second = (fingerprint_of(Files(table=[holding(one)])) for one in handles)
        assert first == second
    for handle in handles:
        handle.close()


LEAVES = [
    *(done, context, lambda n: contextvars.ContextVar("size", default=n)),
    *(lambda n: having(threading.local(), n), lambda n: threading.Timer(1, print, [n])),
    *(lambda n: io.BufferedReader(Part(n)), lambda n: Connected(1, lambda: n)),
    *(int, float, str, np.int64, np.array, torch.tensor, lambda n: Path(str(n))),
    *(lambda n: 1j * n, lambda n: frozenset([n, -1]), lambda n: {Path(str(n)), "a"}),
    lambda n: np.ma.array([0] * 9, mask=[n >> k & 1 for k in range(9)]),
    *(lambda n: functools.partial(crop, size=n), lambda n: datetime.date.fromordinal(n + 1)),
    lambda n: torch.tensor([n + 1]).to_sparse(),
]
NODES = [
    *(list, tuple, lambda items: dict(enumerate(items)), lambda items: Files(table=items)),
    *(lambda items: {(1, frozenset([2])): items}, collections.deque),
    lambda items: having(Labels(), items),
    lambda items: lambda one: one + items,
]


def test_one_change_anywhere_is_another_fingerprint():
    def build(seed, changed=-1):
        chance, leaves = Random(seed), itertools.count()

        def value(depth):
            if depth and chance.random() < 0.7:
                return chance.choice(NODES)([value(depth - 1) for _ in range(chance.randrange(4))])
            number = next(leaves)
            return chance.choice(LEAVES)(2 * number + (number == changed))

        return fingerprint_of([value(5)]), next(leaves)

    for seed in range(40):
        found, count = build(seed)
        assert build(seed) == (found, count)
        assert len({found, *(build(seed, leaf)[0] for leaf in range(count))}) == count + 1


def test_a_handle_of_hdf5_is_its_file_whether_it_is_open_yet_or_not(tmp_path):
    for name in "ab":
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = np.arange(3)

    def opened(name, has_name=True):
        return Files(tmp_path / name if has_name else "", table=h5py.File(tmp_path / name))

    lazy = Files(tmp_path / "a")
    lazy.table = None
    assert fingerprint_of(opened("a")) == fingerprint_of(opened("a")) == fingerprint_of(lazy)
    assert fingerprint_of(opened("a", False)) != fingerprint_of(opened("b", False))
    closed = opened("a")
    closed.table.close()
    with pytest.raises(ValueError, match=r"dataset\.table is a h5py"):
        fingerprint_of(closed)


def test_depth_and_repetition_neither_hide_nor_cost_anything():
    def deep(bottom):
        for _ in range(25):  # of 2^25 paths
            bottom = [bottom, bottom]
        return bottom

    assert fingerprint_of(deep([1])) == fingerprint_of(deep([1]))
    assert fingerprint_of(deep([1])) != fingerprint_of(deep([2]))


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
    both = Files(table=[table, torch.from_numpy(table)])
    assert peak_bytes(lambda: fingerprint_of(both)) < len(table) // 2


class Named:
    """Its members of sets lie where their addresses say."""

    def __init__(self, name):
        self.name = name


def test_another_process_finds_the_same():
    program = (
        "from tests.unit.data.test_record import Files, Named, crop, fingerprint_of, fsspec\n"
        "store = fsspec.filesystem('memory')\n"
        "table = {'b', 'a', 'c', *map(Named, 'abcdefgh')}\n"
        "print(fingerprint_of(Files(store, transform=crop, table=table)))"
    )
    done = run_program([sys.executable, "-c", program], check=True)
    store = fsspec.filesystem("memory")  # which knows its process, but does not pickle that
    table = {"a", "b", "c", *map(Named, "hgfedcba")}
    # In the other process the classes have the same names, for it imported them by those.
    assert done.stdout.split() == [fingerprint_of(Files(store, transform=crop, table=table))]
