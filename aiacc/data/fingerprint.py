"""Which records belong to which dataset: fingerprints and keys.

A fingerprint is a hash of what a dataset is made of: its class, its length and its attributes, and
of theirs what they are made of. It is the same in every process and every job as long as that is
the same. It does not look into files: whoever changes these in place gives another ``version``.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import io
import itertools
import logging
import os
import sys
import types
import warnings
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np

#: Format of records, and what fingerprints are made of. Others' records are never read.
FORMAT = "aiacc-data-1"
#: Attributes of attributes of ... so far.
_DEEPEST = 64
_KEY_BYTES = 16
_SIMPLE = (str, int, float, bytes, enum.Enum, type(None))
#: Exactly these, whose text says everything.
_SCALARS = {str, int, float, bool, bytes, type(None)}
_ROWS = {list, tuple}
#: Locks and the like, which hold no data.
_WITHOUT_DATA = ("_contextvars.", "_multiprocessing.", "_queue.", "_thread.", "ssl.", "weakref.")
#: Random generators, of which every process has one in another state.
_WITH_STATES_OF_THEIR_OWN = ("random.", "numpy.random.", "torch._C.")


def fingerprint_of(dataset: Any, version: str = "") -> str:
    """32 hexadecimal digits for what ``dataset`` is made of, and ``version``."""
    if not isinstance(version, str):
        raise ValueError(f"version={version!r} (expected a string)")
    return _digest((FORMAT, version, *_parts(dataset, 0, {}))).hex()


def named(fingerprint: str, version: str = "") -> str:
    """The same for a fingerprint that the user chose."""
    return fingerprint_of(fingerprint, version)


def key_of(fingerprint: str, name: int | str | bytes) -> bytes:
    """16 bytes for one sample of a dataset: its index, or the name that it has."""
    kind = type(name).__name__.encode()
    data = name if isinstance(name, bytes) else str(name).encode(errors="surrogatepass")
    prefix = bytes.fromhex(fingerprint) + kind + b"\0"
    return hashlib.blake2b(prefix + data, digest_size=_KEY_BYTES).digest()


#: Objects that were met, by their id, and digests of what they are made of.
_Known: TypeAlias = dict[int, tuple[Any, bytes]]


def _digest(parts: Iterable[str | bytes]) -> bytes:
    found = hashlib.blake2b(digest_size=_KEY_BYTES)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.digest()


def _parts(value: Any, depth: int, known: _Known) -> Iterator[str | bytes]:
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}"
    if value is None or isinstance(value, bool | int | float | complex | str | range | enum.Enum):
        yield repr(value)
    elif isinstance(value, bytes | bytearray):
        yield bytes(value)
    elif isinstance(value, PurePath):
        yield str(value)
    elif isinstance(value, type | types.ModuleType):
        yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    elif isinstance(value, logging.Logger):
        yield value.name
    elif depth < _DEEPEST:
        if id(value) not in known:
            known[id(value)] = value, b"what this is a part of"
            known[id(value)] = value, _digest(_compound_parts(value, depth + 1, known))
        yield known[id(value)][1]


def _array_parts(array: Any, depth: int, known: _Known) -> Iterator[str | bytes]:
    yield f"{array.dtype} {array.shape}"
    if array.dtype.hasobject:
        yield from _parts(array.tolist(), depth, known)
    else:
        yield hashlib.blake2b(_octets(array)).digest()


def _octets(array: Any) -> Any:
    """The bytes of an array, without a copy if they lie one after the other."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8) if flat.nbytes else b""


def _mapped_parts(array: Any) -> Iterator[str | bytes]:
    """Which part of which file it is: it may be larger than memory, and files are not read."""
    whole = array
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    at = array.ctypes.data - whole.ctypes.data + whole.offset
    yield f"{array.filename} {at} {array.dtype} {array.shape} {array.strides}"


def _compound_parts(value: Any, depth: int, known: _Known) -> Iterator[str | bytes]:
    if isinstance(value, np.memmap) and value.filename is not None and value.mode != "c":
        yield from _mapped_parts(value)
    elif isinstance(value, np.ndarray | np.generic):
        yield from _array_parts(np.asarray(value), depth, known)
    elif isinstance(value, io.BytesIO | io.StringIO):
        yield value.getvalue()
    elif isinstance(value, dict):
        # Sorted: dicts that are equal may have been filled in different orders.
        for key, item in sorted(_simple_items(value), key=lambda pair: repr(pair[0])):
            yield repr(key)
            yield from _parts(item, depth, known)
    elif isinstance(value, list | tuple | deque):
        yield str(len(value))
        if _is_plain(value):  # millions of names and labels
            yield repr(list(value))
        else:
            for item in value:
                yield from _parts(item, depth, known)
    elif isinstance(value, set | frozenset):
        yield from sorted(repr(item) for item in value)
    elif isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            yield from _parts(part, depth, known)
    elif isinstance(value, types.FunctionType):
        yield from _function_parts(value, depth, known)
    elif isinstance(value, types.MethodType):
        yield from _parts(value.__func__, depth, known)
        yield from _parts(value.__self__, depth, known)
    elif isinstance(value, types.BuiltinFunctionType):
        yield f"{value.__module__}.{value.__qualname__}"
        yield from _parts(value.__self__, depth, known)
    elif (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
        yield from _tensor_parts(value)
    else:
        yield from _object_parts(value, depth, known)


def _is_plain(values: Collection[Any]) -> bool:
    """Whether their text says everything: scalars, or lists and tuples of scalars."""
    kinds = set(map(type, values))
    if kinds <= _ROWS:
        kinds = set(map(type, itertools.chain.from_iterable(values)))
    return kinds <= _SCALARS


def _simple_items(value: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Those whose keys have a text that is the same in every process."""
    for key, item in value.items():
        if isinstance(key, _SIMPLE) or (type(key) is tuple and set(map(type, key)) <= _SCALARS):
            yield key, item


def _tensor_parts(value: Any) -> Iterator[str | bytes]:
    yield f"{value.dtype} {tuple(value.shape)}"
    if value.device.type == "cpu" and str(value.layout) == "torch.strided":
        flat = value.detach().resolve_conj().contiguous().reshape(-1)
        octets = sys.modules["torch"].uint8
        yield hashlib.blake2b(flat.view(octets).numpy()).digest()


def _function_parts(value: Any, depth: int, known: _Known) -> Iterator[str | bytes]:
    yield f"{value.__module__}.{value.__qualname__}"
    yield from _code_parts(value.__code__)
    for defaults in (value.__defaults__, value.__kwdefaults__):
        yield from _parts(defaults, depth, known)
    for cell in value.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not bound yet
            continue
        yield from _parts(content, depth, known)


def _code_parts(code: types.CodeType) -> Iterator[str | bytes]:
    yield code.co_code
    yield repr(code.co_names)
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    yield repr([one for one in code.co_consts if isinstance(one, str | bytes | int | float)])
    for one in inner:
        yield from _code_parts(one)


def _object_parts(value: Any, depth: int, known: _Known) -> Iterator[str | bytes]:
    if isinstance(value, os.PathLike):
        yield os.fsdecode(os.fspath(value))
    if isinstance(value, io.IOBase) and isinstance(name := getattr(value, "name", None), str):
        yield name  # not its position, which changes
        return
    try:
        yield str(len(value))
    except Exception:  # no length, or none that it wants to tell
        yield "no length"
    kind = type(value)
    pickled = _as_pickled(value) if _says_how_to_pickle(kind) else []
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
    attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    attributes.update(getattr(value, "__dict__", {}))
    if not pickled and attributes:
        for name in sorted(attributes):
            yield name
            yield from _parts(attributes[name], depth, known)
    elif not f"{kind.__module__}.".startswith(_WITH_STATES_OF_THEIR_OWN):
        pickled = pickled or _as_pickled(value)
        for part in pickled:
            yield from _parts(part, depth, known)
        if not pickled and not f"{kind.__module__}.".startswith(_WITHOUT_DATA):
            warnings.warn(
                f"a {kind.__module__}.{kind.__qualname__} in the dataset says nothing of what it "
                "holds (expected attributes, or that it can be pickled): datasets that differ in "
                "it alone are taken for equal, and would get each other's samples; name the "
                "dataset by fingerprint=, or open the handle when it is first used",
                stacklevel=2,
            )


def _says_how_to_pickle(kind: type) -> bool:
    """Whether a class leaves out by itself what is no data: connections, numbers of processes."""
    names = ("__reduce__", "__reduce_ex__", "__getstate__")
    return any(getattr(kind, name, None) is not getattr(object, name, None) for name in names)


def _as_pickled(value: Any) -> list[Any]:
    """What an object would be pickled as; nothing of what cannot be: a lock, a file."""
    try:
        registered = copyreg.dispatch_table.get(type(value))  # as of regular expressions
        reduced = value.__reduce_ex__(2) if registered is None else registered(value)
        if isinstance(reduced, str):
            return [reduced]
        return [list(part) if isinstance(part, Iterator) else part for part in reduced]
    except Exception:
        return []
