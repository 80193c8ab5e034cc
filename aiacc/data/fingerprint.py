"""Which records belong to which dataset: fingerprints and keys.

A fingerprint is a hash of what a dataset is made of: its class, its length and its attributes, and
of theirs what they are made of. It is the same in every process and every job as long as that is
the same. It does not look into files: whoever changes these in place gives another ``version``.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import os
import sys
import types
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import numpy as np

#: Format of records, and what fingerprints are made of. Others' records are never read.
FORMAT = "aiacc-data-1"
#: Attributes of attributes of ... so far.
_DEEPEST = 8
_KEY_BYTES = 16


def fingerprint_of(dataset: Any, version: str = "") -> str:
    """32 hexadecimal digits for what ``dataset`` is made of, and ``version``."""
    found = hashlib.blake2b(digest_size=_KEY_BYTES)
    for part in (FORMAT, version, *_parts(dataset, 0, set())):
        data = part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def named(fingerprint: str, version: str = "") -> str:
    """The same for a fingerprint that the user chose."""
    return fingerprint_of(fingerprint, version)


def key_of(fingerprint: str, name: int | str | bytes) -> bytes:
    """16 bytes for one sample of a dataset: its index, or the name that it has."""
    kind = type(name).__name__.encode()
    data = name if isinstance(name, bytes) else str(name).encode(errors="surrogatepass")
    prefix = bytes.fromhex(fingerprint) + kind + b"\0"
    return hashlib.blake2b(prefix + data, digest_size=_KEY_BYTES).digest()


def _parts(value: Any, depth: int, seen: set[int]) -> Iterator[str | bytes]:
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}"
    if value is None or isinstance(value, bool | int | float | complex | str | enum.Enum):
        yield repr(value)
    elif isinstance(value, bytes | bytearray):
        yield bytes(value)
    elif isinstance(value, PurePath):
        yield str(value)
    elif isinstance(value, type | types.ModuleType):
        yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    elif isinstance(value, np.ndarray | np.generic):
        yield from _array_parts(np.asarray(value))
    elif id(value) not in seen and depth < _DEEPEST:
        yield from _compound_parts(value, depth + 1, seen | {id(value)})


def _array_parts(array: Any) -> Iterator[str | bytes]:
    yield f"{array.dtype} {array.shape}"
    if not array.dtype.hasobject:
        yield hashlib.blake2b(np.ascontiguousarray(array).tobytes()).digest()


def _compound_parts(value: Any, depth: int, seen: set[int]) -> Iterator[str | bytes]:
    if isinstance(value, dict):
        # Sorted: dicts that are equal may have been filled in different orders.
        for key, item in sorted(_simple_keys(value), key=lambda pair: repr(pair[0])):
            yield repr(key)
            yield from _parts(item, depth, seen)
    elif isinstance(value, list | tuple):
        yield str(len(value))
        for item in value:
            yield from _parts(item, depth, seen)
    elif isinstance(value, set | frozenset):
        yield from sorted(repr(item) for item in value)
    elif isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            yield from _parts(part, depth, seen)
    elif isinstance(value, types.FunctionType):
        yield from _function_parts(value, depth, seen)
    elif isinstance(value, types.MethodType):
        yield value.__func__.__qualname__
        yield from _parts(value.__self__, depth, seen)
    elif type(value).__module__ == "torch" and hasattr(value, "untyped_storage"):
        yield from _tensor_parts(value)
    else:
        yield from _object_parts(value, depth, seen)


def _simple_keys(value: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    return ((key, item) for key, item in value.items() if isinstance(key, str | int | bytes))


def _tensor_parts(value: Any) -> Iterator[str | bytes]:
    yield f"{value.dtype} {tuple(value.shape)}"
    if value.device.type == "cpu" and str(value.layout) == "torch.strided":
        flat = value.detach().resolve_conj().contiguous().reshape(-1)
        octets = sys.modules["torch"].uint8
        yield hashlib.blake2b(flat.view(octets).numpy().tobytes()).digest()


def _function_parts(value: Any, depth: int, seen: set[int]) -> Iterator[str | bytes]:
    yield f"{value.__module__}.{value.__qualname__}"
    yield value.__code__.co_code
    constants = [one for one in value.__code__.co_consts if isinstance(one, str | int | float)]
    yield repr(constants)
    for cell in value.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not bound yet
            continue
        yield from _parts(content, depth, seen)


def _object_parts(value: Any, depth: int, seen: set[int]) -> Iterator[str | bytes]:
    if isinstance(value, os.PathLike):
        yield os.fsdecode(os.fspath(value))
    try:
        yield str(len(value))
    except Exception:  # no length, or none that it wants to tell
        yield "no length"
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    attributes.update(getattr(value, "__dict__", {}))
    for name in sorted(attributes):
        yield name
        yield from _parts(attributes[name], depth, seen)
