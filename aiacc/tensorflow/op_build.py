"""Compiles the ops for the TensorFlow of this process, where it does not run the library.

A host compiles once: what was made is kept in the user's cache, and the ranks take turns.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

import aiacc
from aiacc import _core, config
from aiacc.tensorflow import op_build_plan
from aiacc.tensorflow.op_build_plan import Target

_PACKAGE = Path(_core.__file__).resolve().parent
#: What csrc has for it; CMake copies it (cmake/tensorflow.cmake).
SOURCES = _PACKAGE / "sources"
_CORE = _PACKAGE / "libaiacc_core.so"
_COMPILERS = ("c++", "g++", "clang++")
#: Many times what a compiler takes; on a busy machine it takes minutes.
_LIMIT_S = 1800.0
#: Others than the user may not write where code is loaded from.
_WRITABLE_BY_OTHERS = 0o022


def built(why: str) -> Path:
    """The library of ops for this TensorFlow, which is compiled unless a process has done so.

    Blocks: while it is compiled, here or by another process of this user. A process that ends
    meanwhile leaves nothing that others would wait for.

    Args:
        why: What the log says before it is compiled.

    Raises:
        ImportError: It cannot be compiled, or not be kept; the text has what the compiler said.
    """
    target = _target()
    try:
        folder = _private_folder(config.cache_folder())
        library = folder / op_build_plan.library_name(target, _sources())
        if not library.exists():
            with _locked(library.with_suffix(".lock")):
                if not library.exists():
                    _compile(target, library, why)
    except OSError as error:
        raise ImportError(
            f"the ops of aiacc for TensorFlow {target.tensorflow} cannot be kept: {error} "
            "(expected a folder of this user's that takes files and locks); set XDG_CACHE_HOME to "
            "another folder"
        ) from error
    return library


def _target() -> Target:
    return Target(
        tensorflow=tf.version.VERSION,
        commit=tf.version.GIT_VERSION,
        compile_flags=tuple(tf.sysconfig.get_compile_flags()),
        link_flags=tuple(tf.sysconfig.get_link_flags()),
        aiacc=aiacc.__version__,
        platform=" ".join([platform.machine(), *platform.libc_ver()]),
    )


def _sources() -> dict[str, bytes]:
    files = [path for path in SOURCES.rglob("*") if path.is_file()]
    missing = [name for name in op_build_plan.SOURCES if not (SOURCES / name).exists()]
    if missing:
        raise ImportError(
            f"{SOURCES / missing[0]} is missing (expected the sources of the ops in the package); "
            "build aiacc again: `make build` in its source folder, or `pip install "
            "--force-reinstall .`"
        )
    return {str(path.relative_to(SOURCES)): path.read_bytes() for path in files}


def _private_folder(folder: Path) -> Path:
    """``folder``, made for this user alone if it does not exist."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.geteuid() or state.st_mode & _WRITABLE_BY_OTHERS:
        raise ImportError(
            f"{folder} belongs to user {state.st_uid} and has mode {state.st_mode & 0o777:o} "
            f"(expected user {os.geteuid()} and nobody else who may write, because code is loaded "
            f"from there); chmod 700 {folder}, or set XDG_CACHE_HOME to another folder"
        )
    return folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the system ends the lock with the process."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:  # a child that was forked meanwhile has the file, too
            fcntl.flock(file, fcntl.LOCK_UN)


def _compiler(target: Target) -> list[str]:
    chosen = config.chosen_compiler()
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return command
    raise ImportError(op_build_plan.no_compiler_text(target, chosen[:1] or _COMPILERS))


def _compile(target: Target, library: Path, why: str) -> None:
    """Make ``library``: all of it or nothing."""
    compiler = _compiler(target)
    _core.log_warning(
        f"[tensorflow] {why}: compiling the ops for TensorFlow {target.tensorflow} with "
        f"{compiler[0]}, once for all jobs of this user, to {library}"
    )
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        output = Path(folder) / library.name
        command = op_build_plan.compile_command(compiler, target, SOURCES, _CORE, output)
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            problem = f"was not done after {_LIMIT_S:g} s"
            raise ImportError(op_build_plan.failure_text(target, command, problem, "")) from None
        if done.returncode != 0:
            problem = f"ended with exit code {done.returncode}"
            raise ImportError(op_build_plan.failure_text(target, command, problem, done.stdout))
        output.replace(library)
    _core.log_info(f"[tensorflow] compiled {library}")
