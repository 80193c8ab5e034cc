"""How the ops are compiled for one TensorFlow, and what the result is called. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Of what is shipped in `aiacc/sources`; the others are included.
SOURCES = (
    "csrc/bindings/tensorflow/broadcasts.cc",
    "csrc/bindings/tensorflow/collective_kernel.cc",
    "csrc/bindings/tensorflow/constants.cc",
    "csrc/bindings/tensorflow/cpp_kernels.cc",
    "csrc/bindings/tensorflow/node_calls.cc",
    "csrc/bindings/tensorflow/op_specs.cc",
)
#: Lines of a compiler's output that an error shows.
_SHOWN_LINES = 30


@dataclass(frozen=True)
class Target:
    """What a library of ops fits."""

    tensorflow: str
    #: Commit that this TensorFlow was built from: nightly builds share their version.
    commit: str
    #: What it wants its extensions to be compiled with.
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    aiacc: str
    #: Processor and C library of the host.
    platform: str


def library_name(target: Target, sources: Mapping[str, bytes]) -> str:
    """File name of the ops for a target: another one for all that they do not fit.

    Args:
        target: What they are compiled for.
        sources: Contents of all files that are compiled or included, by name.
    """
    # Where TensorFlow is installed does not matter: it is loaded by then.
    flags = [flag for flag in target.compile_flags if not flag.startswith("-I")]
    parts = [target.tensorflow, target.commit, target.aiacc, target.platform, *flags]
    for name in sorted(sources):
        parts += [name, hashlib.sha256(sources[name]).hexdigest()]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"ops-tensorflow-{target.tensorflow}-{digest[:16]}.so"


def compile_command(
    compiler: Sequence[str], target: Target, sources: Path, core: Path, output: Path
) -> list[str]:
    """The command that compiles and links the ops.

    Args:
        compiler: Command of the compiler.
        target: What they are compiled for.
        sources: Folder of the sources.
        core: libaiacc_core.so. The result needs it by that name, so it gets the one that the
            process has loaded.
        output: File to write.
    """
    return [
        *compiler,
        *("-shared", "-fPIC", "-O2", "-DNDEBUG", "-w", "-std=c++17"),
        *target.compile_flags,
        f"-I{sources}",
        *(str(sources / name) for name in SOURCES),
        str(core),
        *target.link_flags,
        *("-o", str(output)),
    ]


def failure_text(target: Target, command: Sequence[str], problem: str, output: str) -> str:
    """What to say when the command fails."""
    lines = output.strip().splitlines()
    shown = "\n".join(lines[:_SHOWN_LINES])
    if len(lines) > _SHOWN_LINES:
        shown += f"\n... and {len(lines) - _SHOWN_LINES} more lines"
    return (
        f"the ops of aiacc do not compile for TensorFlow {target.tensorflow}: {command[0]} "
        f"{problem} (expected g++ 9 or clang++ 10, or newer). Set CXX to another compiler, or "
        "install TensorFlow 2.16 to 2.21, which need none. What it said:\n"
        f"{shown or '(nothing)'}\nThe command was: {' '.join(command)}"
    )


def no_compiler_text(target: Target, searched: Sequence[str]) -> str:
    """What to say when there is no compiler."""
    return (
        f"the ops of aiacc have to be compiled for TensorFlow {target.tensorflow}, and there is no "
        f"compiler (expected {', '.join(searched)} on PATH, or its path in CXX): apt-get install "
        "g++, or install TensorFlow 2.16 to 2.21, which need none"
    )
