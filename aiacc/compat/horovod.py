"""Makes ``import horovod.torch as hvd`` and its like find aiacc, in scripts that shall not change.

Call `install` before anything imports horovod, or start the script by ``aiaccrun --as-horovod``, or
where mpirun, srun, torchrun or Kubernetes start ranks by ``python -m aiacc.compat.horovod``.
Every name below ``horovod`` stands for a module of aiacc, the very same object: a class that one
part of a program takes from ``horovod.torch`` and another from ``aiacc.torch`` is one class.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from aiacc.config import child_environment
from aiacc.run.command import as_horovod

#: The version of Horovod whose API this is.
VERSION = "0.28.1"

#: Horovod's modules and ours. What lies below a name on the left lies below that on the right too.
_MODULES = {
    "horovod.torch": "aiacc.torch",
    "horovod.tensorflow": "aiacc.tensorflow",
    "horovod.keras": "aiacc.keras",
    "horovod.keras.callbacks": "aiacc.tensorflow.keras.callbacks",
    "horovod.keras.elastic": "aiacc.tensorflow.keras.elastic",
    "horovod.common.basics": "aiacc.basics",
    "horovod.common.exceptions": "aiacc.exceptions",
    "horovod.common.process_sets": "aiacc.process_sets",
    "horovod.common.util": "aiacc.capabilities",
}

_WHAT_THERE_IS = (
    "aiacc stands in for horovod here, and has horovod.torch, horovod.tensorflow, horovod.keras "
    "and horovod.common only"
)

#: Horovod's packages that have no counterpart, and only hold the modules above.
_PACKAGES = ("horovod", "horovod.common")

_install_lock = threading.Lock()


def install() -> None:
    """From now on ``horovod`` is aiacc. May be called again.

    An installation of Horovod is left alone, and hidden from this process.

    Raises:
        ImportError: The real Horovod was imported before.
    """
    with _install_lock:
        if _installed():
            return
        loaded = sys.modules.get("horovod")
        if loaded is not None:
            raise ImportError(
                f"horovod is imported already, from {getattr(loaded, '__file__', None)} (expected "
                "not yet); call aiacc.compat.horovod.install() first, or start the script by "
                "`aiaccrun --as-horovod`"
            )
        # First, because the finder of paths would load the files of aiacc.torch a second time.
        sys.meta_path.insert(0, _Finder())


def counterpart(name: str) -> str | None:
    """Our name for Horovod's module ``name``, None if there is none. Pure."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        ours = _MODULES.get(".".join(parts[:end]))
        if ours is not None:
            return ".".join([ours, *parts[end:]])
    return None


def _installed() -> bool:
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


class _Finder(importlib.abc.MetaPathFinder):
    """Knows where everything below ``horovod`` is."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for ``horovod`` and what is below it; None for other names.

        Raises:
            ModuleNotFoundError: aiacc has nothing of that name. The real Horovod is not asked.
        """
        del path, target
        if fullname.partition(".")[0] != "horovod":
            return None
        if fullname in _PACKAGES:
            return importlib.machinery.ModuleSpec(fullname, _Package(), is_package=True)
        ours = counterpart(fullname)
        spec = importlib.util.find_spec(ours) if ours is not None else None
        if ours is None or spec is None:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: {_WHAT_THERE_IS}; write this import for aiacc, or "
                "run without --as-horovod",
                name=fullname,
            )
        packages = spec.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, _Alias(ours), is_package=packages)


class _Package(importlib.abc.Loader):
    """Makes a package that only holds a version and modules of ours."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the package."""
        module.__doc__ = "aiacc under Horovod's name."
        names: dict[str, Any] = {"__version__": VERSION}
        if module.__name__ == "horovod":
            names["run"] = run

        def refuse(name: str) -> NoReturn:
            raise AttributeError(
                f"module {module.__name__!r} has no attribute {name!r}: {_WHAT_THERE_IS}; for the "
                "API `import horovod.torch as hvd`",
                name=name,
                obj=module,
            )

        module.__dict__.update(names, __getattr__=refuse)


def run(func: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Run a function on several ranks.

    Raises:
        NotImplementedError: Always.
    """
    del func, args, kwargs
    raise NotImplementedError(
        "horovod.run is not available (expected a program that a launcher has started); call the "
        "function in a script, and start that by `aiaccrun --as-horovod -np N python script.py`"
    )


def interpreter(original: Sequence[str], arguments: Sequence[str], module: str) -> list[str]:
    """The options of the interpreter that runs ``-m module`` with ``arguments``. Pure.

    Args:
        original: ``sys.orig_argv``: "python", "-u", "-m", the module and the arguments.
        arguments: What follows the module.
        module: Its name.
    """
    *options, last = original[1 : len(original) - len(arguments)]
    if last == module:
        last = options.pop()  # "-m", or "-um"
    before = last.removesuffix(module).removesuffix("m")
    return [*options, *([before] if before != "-" else [])]


def main(arguments: Sequence[str]) -> NoReturn:
    """Turn this process into one that runs a script under Horovod's names; see `install`.

    The process stays the same one, whoever launched it; what it starts has the names, too.

    Args:
        arguments: What follows ``python``: a script, or ``-m module``, and its arguments.
    """
    if not arguments or sys.flags.ignore_environment:
        what = "python -E or -I ignores PYTHONPATH" if arguments else "no script"
        sys.stderr.write(
            f"aiacc.compat.horovod: {what} (expected a script, or -m and a module, and arguments, "
            "as in `mpirun -np 2 python -m aiacc.compat.horovod train.py --epochs 3`)\n"
        )
        sys.exit(2)
    options = interpreter(sys.orig_argv, arguments, "aiacc.compat.horovod")
    environment = child_environment(as_horovod(child_environment({})))
    os.execve(sys.executable, [sys.executable, *options, *arguments], environment)


if __name__ == "__main__":
    main(sys.argv[1:])


class _Alias(importlib.abc.Loader):
    """Gives a module of ours for one of Horovod's."""

    def __init__(self, ours: str) -> None:
        self._ours = ours
        self._spec: importlib.machinery.ModuleSpec | None = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Our module, imported if need be."""
        del spec
        module = importlib.import_module(self._ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it was."""
        # It ran when it was imported under its own name; the import system has just put the spec
        # of the other name on it.
        module.__spec__ = self._spec
