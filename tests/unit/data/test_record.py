"""Records: everything comes back as it was, and nothing that is no record does."""

import math
import random
import struct
from collections import namedtuple
from pathlib import Path

import ml_dtypes
import numpy as np
import PIL.Image
import pytest
import torch

from aiacc.data.record import MOST_NESTED, RecordError, decode, encode


def same(one, other):
    """Equal in type and in every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray | np.generic):
        equal = one.dtype == other.dtype and one.shape == other.shape
        return equal and one.tobytes() == other.tobytes()
    if isinstance(one, torch.Tensor):
        equal = one.dtype == other.dtype and one.shape == other.shape
        flat = [x.resolve_conj().reshape(-1).contiguous().view(torch.uint8) for x in (one, other)]
        return equal and torch.equal(*flat)
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
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
    np.zeros((0, 3), np.uint8),
    np.array(2.5),
    np.array([True, False]),
    np.array(["a", "bcd"]),
    np.array([b"a", b"bcd"]),
    np.array(["2026-11-25"], "datetime64[s]"),
    np.array([(1, [2.0, 3.0])], [("x", "<i4"), ("y", "<f8", (2,))]),
    np.array([((1,),)], [("x", [("y", "<i8")])]),
    np.float16(1.5),
    np.int64(-7),
]
TENSORS = [
    torch.arange(6.0).reshape(2, 3).t(),
    torch.tensor(3),
    torch.tensor([True, False]),
    torch.zeros(0, 5, dtype=torch.bfloat16),
    torch.randn(3).to(torch.float8_e4m3fn),
    torch.randn(3, dtype=torch.complex64).conj(),
    torch.arange(8, dtype=torch.int16)[::3],
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
