"""How a sample becomes bytes that say what they are, and comes back. Pure; no pickle.

A record is ``magic | u32 length of the description | description | buffers``. The description is
JSON: null, booleans, integers and strings stand for themselves, everything else is a list that
begins with its kind. Arrays and bytes are buffers at multiples of 64 bytes from the beginning of
the record, in the byte order of their dtype. Reading executes nothing of a record: what does not
parse is a `RecordError`.
"""

from __future__ import annotations

import importlib
import json
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

MAGIC = b"aiacc-r1"
#: Lists in lists in ... as deep as this.
MOST_NESTED = 32
_ALIGNMENT = 64
_PREFIX = struct.Struct("<8sI")
#: What an image may carry besides its pixels, an EXIF block for example.
_INFO = (type(None), bool, int, float, str, bytes, tuple)


#: What reading bytes that are no record raises, torch's errors among them.
_BROKEN = (
    *(ValueError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError),
    *(SyntaxError, struct.error),
)


class RecordError(ValueError):
    """A sample that no record can hold, or bytes that are no record."""


class CorruptRecordError(Exception):
    """A record that was found is not what was written. It has been forgotten."""


def encode(sample: Any) -> bytes:
    """The record of a sample.

    Args:
        sample: None, bool, int, float, complex, str, bytes, bytearray, NumPy arrays and scalars
            (not of objects), torch tensors (dense, in host memory, without gradient), PIL images
            (their pixels, palette and info), and lists, tuples and dicts of these. Subclasses are
            refused, because they would come back as something else; np.memmap alone comes back as
            an array.

    Raises:
        RecordError: The sample holds anything else. The text says where.
    """
    writer = _Writer()
    described = writer.describe(sample, "sample", 0)
    try:
        description = json.dumps(described, separators=(",", ":")).encode()
    except ValueError as error:  # an integer of thousands of digits
        raise RecordError(f"the sample's numbers cannot be written as text: {error}") from error
    head = _PREFIX.pack(MAGIC, len(description)) + description
    parts: list[bytes | memoryview] = [head]
    at = len(head)
    for buffer in writer.buffers:
        padding = -at % _ALIGNMENT
        parts += [bytes(padding), buffer]
        at += padding + buffer.nbytes
    return b"".join(parts)


def decode(record: bytearray) -> Any:
    """The sample of a record.

    Args:
        record: Whole record. Arrays and tensors of the sample are views of this memory, so nobody
            else may use it afterwards.

    Raises:
        RecordError: It is no record, or one that another version has written.
    """
    if len(record) < _PREFIX.size or record[: len(MAGIC)] != MAGIC:
        raise RecordError("no record of aiacc (it begins with other bytes)")
    begin = _PREFIX.size + _PREFIX.unpack_from(record)[1]
    if begin > len(record):
        raise RecordError(f"a record of {len(record)} bytes (expected {begin} or more)")
    try:
        description = json.loads(record[_PREFIX.size : begin])
        reader = _Reader(record, begin)
        sample = reader.build(description, 0)
    except RecordError:
        raise
    except RecursionError as error:
        raise RecordError("no record of aiacc (nested too deeply)") from error
    except _BROKEN as error:
        raise RecordError(f"no record of aiacc ({error})") from error
    if reader.end != len(record):
        raise RecordError(f"a record of {len(record)} bytes (expected {reader.end})")
    return sample


class _Writer:
    """Collects the buffers of one record, in their order."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []

    def describe(self, value: Any, where: str, depth: int) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if depth > MOST_NESTED:
            raise RecordError(f"{where} is nested in more than {MOST_NESTED} containers")
        describer = _DESCRIBERS.get(kind) or _foreign(value)
        if describer is None:
            raise RecordError(
                f"{where} is a {kind.__module__}.{kind.__qualname__} (expected numbers, str, "
                "bytes, arrays, tensors, images, and lists, tuples and dicts of them); let "
                "the dataset return these, and make the rest of them in transform="
            )
        return describer(self, value, where, depth)

    def add(self, array: Any) -> int:
        """Take the bytes of a contiguous array; returns how many these are."""
        flat: Any = (
            np.frombuffer(array, np.uint8) if isinstance(array, bytes | bytearray) else array
        )
        self.buffers.append(memoryview(flat.reshape(-1).view(np.uint8)))
        return self.buffers[-1].nbytes

    def items(self, values: Any, where: str, depth: int) -> list[Any]:
        return [
            self.describe(item, f"{where}[{number}]", depth + 1)
            for number, item in enumerate(values)
        ]


def _float(writer: _Writer, value: float, where: str, depth: int) -> list[Any]:
    del writer, where, depth
    return ["float", struct.pack("<d", value).hex()]  # every NaN comes back as it was


def _complex(writer: _Writer, value: complex, where: str, depth: int) -> list[Any]:
    del writer, where, depth
    return ["complex", struct.pack("<dd", value.real, value.imag).hex()]


def _bytes(writer: _Writer, value: bytes | bytearray, where: str, depth: int) -> list[Any]:
    del where, depth
    return [type(value).__name__, writer.add(value)]


def _sequence(writer: _Writer, value: Any, where: str, depth: int) -> list[Any]:
    return [type(value).__name__, writer.items(value, where, depth)]


def _dict(writer: _Writer, value: dict[Any, Any], where: str, depth: int) -> list[Any]:
    keys = writer.items(value.keys(), f"keys of {where}", depth)
    return [
        "dict",
        keys,
        [writer.describe(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()],
    ]


def _array(writer: _Writer, value: Any, where: str, depth: int) -> list[Any]:
    del depth
    kind = "array" if isinstance(value, np.ndarray) else "scalar"
    array = np.ascontiguousarray(value).reshape(np.shape(value))
    if array.dtype.hasobject:
        raise RecordError(
            f"{where} is an array of objects (expected numbers, or text of a fixed width); let "
            "the source give a list, or array.astype(str) or .astype(bytes)"
        )
    descr: Any = array.dtype.str if array.dtype.names is None else array.dtype.descr
    if np.dtype(descr) != array.dtype:
        raise RecordError(
            f"{where} is an array of {array.dtype}, a dtype that is not NumPy's own (expected "
            "one that is); view it as integers, and make it such a one in transform="
        )
    return [kind, descr, list(array.shape), writer.add(np.atleast_1d(array))]


def _tensor(writer: _Writer, value: Any, where: str, depth: int) -> list[Any]:
    del depth
    torch = sys.modules["torch"]
    is_dense = value.layout == torch.strided and not (value.is_quantized or value.is_nested)
    if not is_dense or value.device.type != "cpu":
        raise RecordError(
            f"{where} is a tensor of {value.layout} on {value.device} (expected a dense one in "
            "host memory); let the dataset return those, and move them in transform="
        )
    if value.requires_grad:
        raise RecordError(
            f"{where} is a tensor that requires a gradient (expected data); detach it"
        )
    plain = value.resolve_conj().resolve_neg().contiguous().reshape(-1)
    name = str(value.dtype).removeprefix("torch.")
    return ["tensor", name, list(value.shape), writer.add(plain.view(torch.uint8).numpy())]


def _image(writer: _Writer, value: Any, where: str, depth: int) -> list[Any]:
    size = writer.add(value.tobytes())
    palette = None
    if value.mode in ("P", "PA"):
        kind = value.palette.mode
        palette = (kind, bytes(value.palette.getdata()[1]))
        if value.palette.getdata()[0] not in (kind, f"{kind};L"):
            raise RecordError(f"{where} is an image with an unusual palette; convert it to RGB")
        palette = (value.palette.getdata()[0], palette[1])
    info = {key: item for key, item in value.info.items() if type(key) is str and _is_kept(item)}
    described = [writer.describe(one, f"{where}.info", depth + 1) for one in (palette, info)]
    return ["image", value.mode, list(value.size), size, *described]


def _is_kept(info: Any) -> bool:
    """Whether an image's info stays; a TIFF's resolution, in numbers of PIL's own, does not."""
    return type(info) in _INFO and (type(info) is not tuple or all(map(_is_kept, info)))


_Describer = Callable[[_Writer, Any, str, int], list[Any]]

_DESCRIBERS: dict[type, _Describer] = {
    float: _float,
    complex: _complex,
    bytes: _bytes,
    bytearray: _bytes,
    list: _sequence,
    tuple: _sequence,
    dict: _dict,
    np.ndarray: _array,
    np.memmap: _array,
}


def _foreign(value: Any) -> _Describer | None:
    """For kinds of packages that may not be there."""
    if isinstance(value, np.generic):
        return _array
    torch, pillow = sys.modules.get("torch"), sys.modules.get("PIL.Image")
    if torch is not None and type(value) is torch.Tensor:
        return _tensor
    if pillow is not None and isinstance(value, pillow.Image):
        return _image
    return None


class _Reader:
    """Takes the buffers of one record in their order."""

    def __init__(self, record: bytearray, begin: int) -> None:
        self._record = record
        #: Where the last buffer taken ends.
        self.end = begin

    def build(self, node: Any, depth: int) -> Any:
        if node is None or isinstance(node, bool | int | str):
            return node
        if depth > MOST_NESTED + 1 or not isinstance(node, list):
            raise RecordError("no record of aiacc (its description is none)")
        kind, *fields = node
        builder = getattr(self, f"_{kind}", None) if kind in _KINDS else None
        if builder is None:
            raise RecordError(f"a value of kind {kind!r} (expected {', '.join(sorted(_KINDS))})")
        return builder(depth, *fields)

    def take(self, size: int) -> int:
        """Where a buffer of ``size`` bytes begins."""
        begin = self.end + -self.end % _ALIGNMENT
        if size < 0 or begin + size > len(self._record):
            raise RecordError(f"a buffer of {size} bytes at {begin} of {len(self._record)}")
        self.end = begin + size
        return begin

    def _float(self, depth: int, text: str) -> float:
        del depth
        value: float = struct.unpack("<d", bytes.fromhex(text))[0]
        return value

    def _complex(self, depth: int, text: str) -> complex:
        del depth
        return complex(*struct.unpack("<dd", bytes.fromhex(text)))

    def _bytes(self, depth: int, size: int) -> bytes:
        return bytes(self._bytearray(depth, size))

    def _bytearray(self, depth: int, size: int) -> bytearray:
        del depth
        begin = self.take(size)
        return self._record[begin : begin + size]

    def _list(self, depth: int, items: list[Any]) -> list[Any]:
        return [self.build(item, depth + 1) for item in items]

    def _tuple(self, depth: int, items: list[Any]) -> tuple[Any, ...]:
        return tuple(self._list(depth, items))

    def _dict(self, depth: int, keys: list[Any], values: list[Any]) -> dict[Any, Any]:
        return dict(zip(self._list(depth, keys), self._list(depth, values), strict=True))

    def _array(self, depth: int, descr: Any, shape: list[int], size: int) -> Any:
        del depth
        if isinstance(descr, list):
            descr = [tuple(map(_tuples, field)) for field in descr]
        dtype = np.dtype(descr)
        if dtype.hasobject or dtype.itemsize * int(np.prod(shape, dtype=object)) != size:
            raise RecordError(f"an array of {shape} {dtype} in {size} bytes")
        return np.ndarray(shape, dtype, self._record, self.take(size))

    def _scalar(self, depth: int, descr: Any, shape: list[int], size: int) -> Any:
        return self._array(depth, descr, shape, size)[()]

    def _tensor(self, depth: int, name: str, shape: list[int], size: int) -> Any:
        torch = importlib.import_module("torch")
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype):
            raise RecordError(f"a tensor of {name!r} (expected a dtype of torch)")
        flat = self._array(depth, "|u1", [size], size)
        return torch.from_numpy(flat).view(dtype).reshape(shape)

    def _image(
        self, depth: int, mode: str, size: list[int], length: int, palette: Any, info: Any
    ) -> Any:
        pillow = importlib.import_module("PIL.Image")
        image = pillow.frombytes(mode, tuple(size), self._bytes(depth, length))
        palette = self.build(palette, depth + 1)
        if palette is not None:
            image.putpalette(palette[1], palette[0])
        image.info = self.build(info, depth + 1)
        return image


_KINDS = frozenset(
    (
        "float",
        "complex",
        "bytes",
        "bytearray",
        "list",
        "tuple",
        "dict",
        "array",
        "scalar",
        "tensor",
        "image",
    )
)


def _tuples(value: Any) -> Any:
    """JSON's lists are tuples in NumPy's descriptions of dtypes, but those of fields are not."""
    if not isinstance(value, list):
        return value
    if all(isinstance(item, list) for item in value):
        return [tuple(map(_tuples, item)) for item in value]
    return tuple(map(_tuples, value))
