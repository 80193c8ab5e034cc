"""What an object is made of: text, bytes and other objects.

What cannot be described raises an error, and is never left out.
"""

from __future__ import annotations

import contextvars
import copyreg
import enum
import functools
import hashlib
import io
import itertools
import logging
import os
import pickle
import queue
import sys
import threading
import types
import weakref
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from aiacc.data.described import program
from aiacc.data.described.program import Of, Part, Parts

#: Exactly these, whose text says everything.
_SCALARS = {str, int, float, bool, bytes, type(None)}
_MORE_SCALARS = {complex, range, type(...), type(NotImplemented)}
#: Of functions and classes; they may have a name that nothing is found by.
_TYPE_VARIABLES = {"typing.ParamSpec", "typing.TypeVar", "typing.TypeVarTuple"}
_PATHS = {type(Path()), type(PurePath()), PurePosixPath, PureWindowsPath}
_ROWS = {list, tuple}
#: Exactly these, which hold no data.
_WITHOUT_DATA = {
    *("_multiprocessing.SemLock", "_thread.RLock", "_thread.lock", "ssl.SSLContext"),
    *(
        f"{module}.{name}"
        for module in ("threading", "multiprocessing.synchronize")
        for name in ("BoundedSemaphore", "Condition", "Event", "Lock", "RLock", "Semaphore")
    ),
    "multiprocessing.heap.BufferWrapper",  # of numbers in it, which are described by themselves
}
#: Attributes that every thread has, besides what it calls: they differ from process to process.
_OF_THREADS = vars(threading.Thread(name="blank")).keys() - {"_target", "_args", "_kwargs"}
#: Exactly these, which keep no results.
_POOLS = {
    *("concurrent.futures.process.ProcessPoolExecutor", "multiprocessing.pool.Pool"),
    *("concurrent.futures.thread.ThreadPoolExecutor", "multiprocessing.pool.ThreadPool"),
}
#: Exactly these read another file, and the attribute that has it.
_FILES_OVER = {
    **dict.fromkeys(("_io.BufferedRandom", "_io.BufferedReader", "_io.BufferedWriter"), "raw"),
    **{"_io.TextIOWrapper": "buffer", "tarfile.ExFileObject": "raw"},
    **{"bz2.BZ2File": "_fp", "gzip.GzipFile": "fileobj", "lzma.LZMAFile": "_fp"},
}
#: What wraps functions, and the attributes that have them.
_WRAPPERS: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__func__", "__self__"),
    functools.partial: ("func", "args", "keywords"),
    functools._lru_cache_wrapper: ("__wrapped__",),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
}
#: Attributes of an array in a file, which `_mapped_parts` describes.
_OF_MAPS = {"_mmap", "filename", "mode", "offset"}
#: Random generators, of which every process has one in another state.
_WITH_STATES_OF_THEIR_OWN = ("numpy.random._", "numpy.random.mtrand.", "random.", "torch._C.Gen")


@dataclass(frozen=True)
class Members:
    """Objects whose order says nothing."""

    items: Collection[Any]


@dataclass(frozen=True)
class Texts:
    """What is said otherwise, but for what relative paths among it lead to."""

    items: Iterable[Any]


def name_of(kind: type) -> str:
    """Of a class, with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"


def text_of(value: Any) -> tuple[str, Part] | None:
    """The kind of a value and a text that says everything; None if there is none."""
    kind = type(value)
    if kind is str or kind is bytes:
        return kind.__name__, value
    if kind is int:
        return "int", hex(value)
    if kind in _SCALARS or kind in _MORE_SCALARS:
        return kind.__name__, repr(value)
    if kind in _PATHS:
        return kind.__name__, str(value)
    if issubclass(kind, type | types.ModuleType) and program.is_installed(value):
        return "installed", program.installed_name(value)
    return None


def parts_of(value: Any) -> Parts:
    """What an object is made of that is more than a text.

    Raises:
        Exception: Nothing says what it holds.
    """
    if issubclass(type(value), type):  # which list[int] only says to be
        yield from program.class_parts(value)
    elif isinstance(value, types.ModuleType):
        yield from program.module_parts(value)
    else:
        yield Of(type(value), ".__class__")
        for of in _KINDS:
            if (parts := of(value)) is not None:
                yield from parts
                return
        if isinstance(value, set | frozenset):
            yield from _with_attributes(value, Members(value))
        else:
            yield from _object_parts(value)


def _plain_parts(value: Any) -> Parts | None:
    """Of containers and other values of Python's own, but not of subclasses."""
    kind = type(value)
    if kind is bytearray:
        return iter([bytes(value)])
    if kind is dict or kind is types.MappingProxyType:
        return _dict_parts(value)
    if kind in _ROWS:
        if _is_plain(value):  # millions of names and labels
            flat = itertools.chain.from_iterable(
                one if type(one) in _ROWS else (one,) for one in value
            )
            return iter([str(len(value)), repr(list(value)), Texts(flat)])
        return _row_parts(value)
    if isinstance(value, enum.Enum):
        return _with_attributes(value, Of(value._value_, ".value"))
    if isinstance(value, weakref.ref):
        return _with_attributes(value, Of(value(), "()"))
    if name_of(kind) in _TYPE_VARIABLES:
        limits = ("__bound__", "__constraints__")
        return iter([value.__name__, *(Of(getattr(value, one, None), one) for one in limits)])
    if isinstance(value, logging.Logger) and program.is_installed(kind):
        return iter([value.name])
    return None


def _dict_parts(value: Any) -> Parts:
    """In their order, which who reads them by number sees."""
    for key, item in value.items():
        yield Of(key, f" key {key!r:.40}")
        yield Of(item, f"[{key!r:.40}]")


def _row_parts(value: Any) -> Parts:
    yield str(len(value))
    for number, item in enumerate(value):
        yield Of(item, f"[{number}]")


def _is_plain(values: Collection[Any]) -> bool:
    """Whether their text says everything: scalars, or lists and tuples of scalars."""
    kinds = set(map(type, values))
    if kinds <= _ROWS:
        kinds = set(map(type, itertools.chain.from_iterable(values)))
    return kinds <= _SCALARS


def _attribute_parts(
    value: Any, bases: Iterable[type] | None = None, handles: bool = True
) -> Parts:
    """Of its slots those of all classes, or of some of them, and the other attributes.

    Without ``handles``, for which nobody wants to answer, those that cannot be described.
    """
    bases = type(value).__mro__ if bases is None else bases
    slots = [name for base in bases for name in _slots_of(base)]
    attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    attributes.update(getattr(value, "__dict__", {}))
    if isinstance(value, np.memmap):
        attributes = {name: attributes[name] for name in attributes if name not in _OF_MAPS}
    files = {name: file for name, item in attributes.items() if (file := _filename_of(item))}
    paths = [one for one in attributes.values() if files and type(one) in {str, *_PATHS}]
    said = {str(Path(one).absolute()) for one in paths}
    for name in sorted(attributes):
        if not handles and _is_handle(attributes[name]):
            continue
        yield name
        # A file that is opened by a name which is an attribute, too, may be open yet or not.
        yield Of(None if files.get(name) in said else attributes[name], f".{name}")


def _with_attributes(value: Any, *parts: Part | Of | Members) -> Parts:
    yield from parts
    yield from _attribute_parts(value)


def _slots_of(kind: type) -> Iterator[str]:
    """Names of slots as attributes."""
    slots = vars(kind).get("__slots__", ())
    for name in [slots] if isinstance(slots, str) else slots:
        if name.startswith("__") and not name.endswith("__"):
            yield f"_{kind.__name__.lstrip('_')}{name}"
        elif name not in ("__dict__", "__weakref__"):
            yield name


def _array_parts(array: Any) -> Parts | None:
    if not isinstance(array, np.ndarray | np.generic):
        return None
    is_file = isinstance(array, np.memmap) and array.filename is not None and array.mode != "c"
    parts = _mapped_parts(array) if is_file else _content_parts(np.asarray(array))
    return itertools.chain(parts, _attribute_parts(array))


def _content_parts(array: Any) -> Parts:
    yield f"{array.dtype!r} {array.shape}"
    if array.dtype.hasobject:
        yield Of(array.tolist(), ".tolist()")
    else:
        yield hashlib.blake2b(_octets(array)).digest()
    if array.dtype.kind in "SU":
        yield Texts(array.reshape(-1).tolist())


def _octets(array: Any) -> Any:
    """The bytes of an array, without a copy if they lie one after the other."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8) if flat.nbytes else b""


def _mapped_parts(array: Any) -> Parts:
    """Which part of which file it is: it may be larger than memory, and files are not read."""
    whole = array
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    at = array.ctypes.data - whole.ctypes.data + whole.offset
    yield f"{array.filename} {at} {array.dtype!r} {array.shape} {array.strides}"


def _tensor_parts(value: Any) -> Parts | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(value, torch.layout | torch.memory_format | torch.qscheme):
        return iter([str(value)])
    if not isinstance(value, torch.Tensor):
        return None
    if value.is_quantized:
        of_channels = value.qscheme() in (
            torch.per_channel_affine,
            torch.per_channel_affine_float_qparams,
        )
        scales = ("q_per_channel_scales", "q_per_channel_zero_points", "q_per_channel_axis")
        said = scales if of_channels else ("q_scale", "q_zero_point")
        numbers = [getattr(value, name)() for name in ("int_repr", *said)]
        return _with_attributes(value, str(value.dtype), Of(numbers, ".int_repr()"))
    is_dense = value.layout == torch.strided and not value.is_nested
    return _dense_parts(value, torch) if is_dense else _pickled_parts(value)


def _dense_parts(value: Any, torch: Any) -> Parts:
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise ValueError("its memory is not its own")
    dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,), dense.storage_offset())
    yield f"{value.dtype} {tuple(value.shape)}"
    yield hashlib.blake2b(flat.view(torch.uint8).numpy()).digest()
    yield from _attribute_parts(value)


def _code_parts(value: Any) -> Parts | None:
    """Of functions of every kind."""
    if isinstance(value, types.FunctionType):
        return program.function_parts(value)
    if isinstance(value, types.CodeType):
        return program.code_parts(value, {})
    if isinstance(value, types.BuiltinFunctionType):
        name = f"{value.__module__}.{value.__qualname__}"
        return _with_attributes(value, name, Of(value.__self__, ".__self__"))
    for kind, names in _WRAPPERS.items():
        if isinstance(value, kind):
            return _with_attributes(value, *(Of(getattr(value, one), f".{one}") for one in names))
    return None


def _file_parts(value: Any) -> Parts | None:
    """An open file is its name, and how it is read; not its position, which changes.

    Files of other classes than Python's own are described as other objects.
    """
    if isinstance(value, io.BytesIO | io.StringIO):
        return _with_attributes(value, Of(value.getvalue(), ""))
    if any(value is one for one in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)):
        return iter(["written"])
    if isinstance(value, io.FileIO):
        if (name := _name_of_file(value)) is None:
            raise ValueError("no file that it reads has its name")
        return _with_attributes(value, name, value.mode)
    if (over := _FILES_OVER.get(name_of(type(value)))) is not None:
        how = [getattr(value, one, None) for one in ("mode", "encoding", "errors")]
        return iter([Of(getattr(value, over), f".{over}"), repr(how)])
    if not _is_of_hdf5(value):
        return None
    if (name := _filename_of(value)) is None:
        raise ValueError("it is closed, or in no file")
    return iter([name, str(value.name)])


def _filename_of(value: Any) -> str | None:
    """The name of an open file, or of that which an open object of HDF5 is in."""
    while (over := _FILES_OVER.get(name_of(type(value)))) in ("raw", "buffer"):
        try:
            value = getattr(value, over)
        except ValueError:  # it was detached
            return None
    if type(value) is io.FileIO:
        return _name_of_file(value)
    if _is_of_hdf5(value) and value and Path(value.file.filename).exists():
        return str(Path(value.file.filename).absolute())
    return None


def _name_of_file(file: io.FileIO) -> str | None:
    """Its whole name; None if it has a number instead, or if its name is that of another file."""
    if isinstance(file.name, int):
        return None
    name = Path(os.fsdecode(file.name)).absolute()
    try:
        if file.closed or os.path.samestat(os.fstat(file.fileno()), name.stat()):
            return str(name)
    except OSError:  # it was removed
        pass
    return None


def _shared_parts(value: Any) -> Parts | None:
    """Of what threads and contexts hold, as far as it is seen from here."""
    if isinstance(value, contextvars.ContextVar):
        default = contextvars.Context().run(_content_of, value)
        return iter([value.name, Of(default, " default"), Of(_content_of(value), ".get()")])
    if isinstance(value, threading.local):
        return _attribute_parts(value, handles=False)
    if isinstance(value, threading.Thread):
        attributes = vars(value).items()
        return _dict_parts({name: one for name, one in attributes if name not in _OF_THREADS})
    if isinstance(value, Future):
        if not value.done():
            raise ValueError("it is not done; wait for its result first")
        error = value.exception()
        return iter([Of(error, ".exception()"), Of(error or value.result(), ".result()")])
    if name_of(type(value)).startswith("multiprocessing.connection."):
        raise ValueError("nobody knows what comes through it")
    if isinstance(value, queue.SimpleQueue):
        if not value.empty():
            raise ValueError("it is not empty, and cannot be looked into")
        return _attribute_parts(value)
    if name_of(type(value)) in _POOLS:
        return _dict_parts({name: vars(value).get(name) for name in ("_initializer", "_initargs")})
    return None


def _content_of(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:
        return NotImplemented


def _is_of_hdf5(value: Any) -> bool:
    h5py = sys.modules.get("h5py")
    return h5py is not None and isinstance(value, h5py.HLObject)


def _object_parts(value: Any) -> Parts:
    kind = type(value)
    if name_of(kind) in _WITHOUT_DATA or name_of(kind).startswith(_WITH_STATES_OF_THEIR_OWN):
        return
    if isinstance(value, os.PathLike):
        yield Of(os.fspath(value), ".__fspath__()")
    try:
        yield str(len(value))
    except Exception:  # no length, or none that it wants to tell
        yield "no length"
    own = [getattr(kind, one, None) for one in ("__reduce__", "__reduce_ex__", "__getstate__")]
    standard = [
        getattr(object, one, None) for one in ("__reduce__", "__reduce_ex__", "__getstate__")
    ]
    says_how = any(one is not other for one, other in zip(own, standard, strict=True))
    if not (says_how or kind in copyreg.dispatch_table or _has_hidden_state(kind)):
        yield from _attribute_parts(value)
        return
    try:
        pickled = list(_pickled_parts(value))
    except Exception:
        if _has_hidden_state(kind):
            raise
        yield from _attribute_parts(value)
        return
    yield from pickled
    # A package knows what to pickle. A user's class may leave out a function that cannot be, and
    # Python's own what was added; of a handle (of LMDB) that is left out nothing is known.
    has_more = program.is_standard(kind) and kind.__dictoffset__ != 0
    if has_more or not program.is_installed(kind):
        others = [base for base in kind.__mro__ if not program.is_standard(base)]
        yield from _attribute_parts(value, others, handles=False)


def _is_handle(value: Any) -> bool:
    """Whether nothing says what an object holds, whose class is a package's, in C.

    It is outside of Python. What Python's own classes hold, such as a generator, is not.
    """
    kind = type(value)
    is_outside = program.is_installed(kind) and kind.__module__ != "builtins"
    if not (is_outside and _has_hidden_state(kind)):
        return False
    try:
        if any(of(value) is not None for of in _KINDS):
            return False
        list(_pickled_parts(value))
    except Exception:
        return True
    return False


def _has_hidden_state(kind: type) -> bool:
    """Whether objects have more memory than their attributes need: their class is written in C."""
    slots = sum(len(list(_slots_of(base))) for base in kind.__mro__)
    pointers = slots + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    pointer_bytes = np.dtype(np.intp).itemsize
    return kind.__itemsize__ > 0 or kind.__basicsize__ > object.__basicsize__ + (
        pointers * pointer_bytes
    )


def _pickled_parts(value: Any) -> Parts:
    """What an object would be pickled as. Raises what pickling it raises."""
    registered = copyreg.dispatch_table.get(type(value))  # as of regular expressions
    reduced = value.__reduce_ex__(4) if registered is None else registered(value)
    if isinstance(reduced, str):
        module = pickle.whichmodule(value, reduced)  # type: ignore[attr-defined]
        if program.by_name(module, reduced) is not value:
            raise ValueError(f"{module}.{reduced} is another one")
        return iter([f"{module}.{reduced}"])
    # An empty dict of attributes may be there, or not yet.
    parts = [None if type(part) is dict and not part else part for part in reduced]
    return iter([Of(list(one) if isinstance(one, Iterator) else one, "") for one in parts])


#: What describes objects of some kinds; None of those of others.
_KINDS = (_plain_parts, _array_parts, _tensor_parts, _code_parts, _file_parts, _shared_parts)
