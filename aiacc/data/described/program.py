"""What the code of a dataset is made of: the user's functions, classes and modules.

What is installed, Python's own library and packages, is known by its name and its version. All
other code is described: its instructions, its constants, and what it names elsewhere.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib.util
import inspect
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

#: Where packages are installed.
_PACKAGES = {"dist-packages", "site-packages"}
_STANDARD = Path(os.__file__).parent
#: Of a class or module, what says nothing of what it does, or is said otherwise.
_UNSAID = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__annotate__"),
    *("__annotate_func__", "__annotations_cache__", "__conditional_annotations__"),
    *("__firstlineno__", "__static_attributes__", "__slotnames__", "_abc_impl"),
    *("__parameters__", "__type_params__", "__warningregistry__"),
    *("__builtins__", "__cached__", "__file__", "__loader__", "__path__", "__spec__"),
}
#: What `functools.singledispatch` has found for classes that it was called with.
_OF_DISPATCH = ("_clear_cache", "cache_token", "dispatch_cache")
#: Modules that make classes into annotations.
_TYPING = ("annotationlib", "typing", "typing_extensions")
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
#: Flags of classes: whether they are made when a program runs, and cannot be changed. Those that
#: are not, or cannot, are written in C.
_HEAP_TYPE, _IMMUTABLE = 1 << 9, 1 << 8
_KIND_OF_TYPE = _HEAP_TYPE | _IMMUTABLE
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
#: Instructions that stand between those that belong together.
_NOTHING = ("CACHE", "EXTENDED_ARG", "NOP", "PUSH_NULL")


class Of(NamedTuple):
    """Another object that is a part, and how one gets to it."""

    value: Any
    where: str


Part: TypeAlias = str | bytes
#: What an object is made of, in an order.
Parts: TypeAlias = Iterator[Any]


def is_installed(value: Any) -> bool:
    """Whether a class, function or module is found by its name in what is installed."""
    if isinstance(value, types.ModuleType):
        return _is_module_installed(value.__name__)
    module = getattr(value, "__module__", None)
    if not (isinstance(module, str) and _is_module_installed(module)):
        return False
    is_c = isinstance(value, type) and value.__flags__ & _KIND_OF_TYPE != _HEAP_TYPE
    return is_c or by_name(module, value.__qualname__) is value


def installed_name(value: Any) -> str:
    """The name of something that is installed, and the version of its package."""
    is_module = isinstance(value, types.ModuleType)
    module = value.__name__ if is_module else value.__module__
    version = _version_of(module.partition(".")[0])
    return f"{module}.{'' if is_module else value.__qualname__} {version}"


def by_name(module: str, name: str) -> Any:
    """What a module has under a name, with dots or without; None if it has none."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def class_parts(kind: type) -> Parts:
    """Of a class: what it is derived from, and what its body has."""
    yield f"{kind.__module__}.{kind.__qualname__}"
    yield Of(type(kind), ".__class__")
    for base in kind.__bases__:
        yield Of(base, ".__bases__")
    yield from _annotations_of(kind)
    yield from _namespace_parts(vars(kind))


def _annotations_of(described: Any) -> Parts:
    """As texts, so without the code of classes that they name, and with the other objects there."""
    if sys.version_info >= (3, 14):  # they may name what is not there
        import annotationlib

        formats = annotationlib.Format.STRING, annotationlib.Format.FORWARDREF
        texts, found = (annotationlib.get_annotations(described, format=one) for one in formats)
    else:
        texts = found = inspect.get_annotations(described)
    for name, one in sorted(texts.items()):
        yield f"{name}: {re.sub(' at 0x[0-9a-f]+', '', inspect.formatannotation(one))}"
        for value in _objects_in(found.get(name)):
            yield Of(value, f" annotation {name}")


def _objects_in(annotation: Any) -> Iterator[Any]:
    """Of an annotation what is neither a text, a class nor made of these by typing."""
    kind = type(annotation)
    if kind in (types.GenericAlias, types.UnionType) or kind.__module__ in _TYPING:
        for name in ("__args__", "__metadata__"):  # the latter of Annotated
            for one in getattr(annotation, name, ()):
                yield from _objects_in(one)
    elif not isinstance(annotation, type | str):
        yield annotation


def module_parts(module: types.ModuleType) -> Parts:
    """Of a module of which nobody can say what of it is used."""
    yield module.__name__
    yield from _namespace_parts(vars(module))


def _namespace_parts(names: Mapping[str, Any]) -> Parts:
    for name in sorted(names):
        if name not in _UNSAID and not isinstance(names[name], _DESCRIPTORS):
            yield name
            yield Of(names[name], f".{name}")


def function_parts(function: types.FunctionType) -> Parts:
    """Of a function: code, defaults, what it encloses and what its code names."""
    yield f"{function.__module__}.{function.__qualname__}"
    if is_installed(function):
        yield installed_name(function)
        return
    # Not by its own name, which decorators give to others.
    is_users = not _is_module_installed(str(function.__globals__.get("__name__")))
    yield from code_parts(function.__code__, function.__globals__ if is_users else {})
    yield Of(function.__defaults__, ".__defaults__")
    yield Of(function.__kwdefaults__, ".__kwdefaults__")
    yield from _annotations_of(function)
    found_out = _OF_DISPATCH if function.__globals__ is vars(functools) else ()
    attributes = vars(function).items()
    yield Of({name: one for name, one in attributes if name not in found_out}, "")
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name in found_out:
            continue
        try:
            content = cell.cell_contents
        except ValueError:  # not bound yet
            yield "unbound"
        else:
            yield Of(content, f" closure {name}")


def code_parts(code: types.CodeType, scope: dict[str, Any]) -> Parts:
    """Of code: what it does, and what it names in the module around it.

    Args:
        code: Of a function.
        scope: The global names.
    """
    yield code.co_code
    yield getattr(code, "co_exceptiontable", b"")
    yield repr((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags))
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_parts(constant, scope)
        else:
            yield Of(constant, " constant")
    yield from _named_parts(code, scope)


def _named_parts(code: types.CodeType, scope: dict[str, Any]) -> Parts:
    """The globals that code names, and what it imports itself."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _NOTHING]
    said = set()
    for at, step in enumerate(steps):
        if step.opname in _GLOBALS and step.argval in scope:
            value, name = scope[step.argval], str(step.argval)
            for following in steps[at + 1 :]:  # a.b.c, as long as these are modules
                is_inside = following.opname in _ATTRIBUTES and _is_users_module(value)
                if not (is_inside and hasattr(value, following.argval)):
                    break
                value, name = getattr(value, following.argval), f"{name}.{following.argval}"
            if name not in said:
                said.add(name)
                yield name
                yield Of(value, f" global {name}")
        elif step.opname == "IMPORT_NAME":
            level, names = steps[at - 2].argval, steps[at - 1].argval
            yield from _imported_parts(step.argval, scope, names, level)


def _imported_parts(
    name: str, scope: dict[str, Any], names: tuple[str, ...] | None, level: int
) -> Parts:
    """What a statement in a function imports, now as it will when the function is called."""
    if level == 0 and _is_module_installed(name):
        return
    try:
        module = __import__(name, scope, None, names or (), level)
    except ImportError:
        yield "absent"
        return
    if not names:
        yield Of(module, f" import {name}")
    for one in names or ():
        yield Of(getattr(module, one, None), f" import {name}.{one}")


def _is_users_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and not is_installed(value)


def is_standard(value: Any) -> bool:
    """Whether a function or class belongs to Python's own library."""
    return str(value.__module__).partition(".")[0] in sys.stdlib_module_names


@functools.cache
def _version_of(package: str) -> str:
    """As it says itself, or else as it was installed; "" of what has none, as Python's own."""
    version = getattr(sys.modules.get(package), "__version__", "")
    if not version:
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version(package)
    return str(version)


@functools.cache
def _is_module_installed(name: str) -> bool:
    """Whether a module belongs to Python, to a package or to aiacc, or is no Python code."""
    package = name.partition(".")[0]
    if package == "aiacc" or package in sys.builtin_module_names:
        return True
    if package == "__main__":
        return False
    files = [file for file in (_file_of(name), _file_of(package)) if file is not None]
    return any(map(_is_file_installed, files)) or (package in sys.stdlib_module_names and not files)


def _is_file_installed(file: str) -> bool:
    path = Path(file)
    is_code = path.suffix in (".py", ".pyc", ".ipynb")
    return not is_code or path.is_relative_to(_STANDARD) or bool(_PACKAGES & set(path.parts))


def _file_of(name: str) -> str | None:
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__file__", None)
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return None if found is None else found.origin
