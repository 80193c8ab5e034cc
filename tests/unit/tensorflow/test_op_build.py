"""The library of ops that is compiled for one TensorFlow: its name, its place, what goes wrong."""

import dataclasses
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aiacc.tensorflow import op_build
from aiacc.tensorflow.op_build_plan import (
    Target,
    compile_command,
    failure_text,
    library_name,
    no_compiler_text,
)

TARGET = Target(
    tensorflow="2.30.0",
    commit="v2.30.0-1-gabc",
    compile_flags=("-I/tf/include", "-D_GLIBCXX_USE_CXX11_ABI=1"),
    link_flags=("-L/tf", "-l:libtensorflow_framework.so.2"),
    aiacc="0.1.0",
    platform="x86_64 glibc 2.36",
)
SOURCES = {"a.cc": b"int a;", "b.h": b"int b;"}


@pytest.mark.parametrize(
    ("change", "sources", "same"),
    [
        ({"tensorflow": "2.30.1"}, SOURCES, False),
        ({"commit": "v2.30.0-2-gdef"}, SOURCES, False),
        ({"compile_flags": ("-I/tf/include", "-D_GLIBCXX_USE_CXX11_ABI=0")}, SOURCES, False),
        ({"aiacc": "0.2.0"}, SOURCES, False),
        ({"platform": "aarch64 glibc 2.36"}, SOURCES, False),
        ({}, {**SOURCES, "b.h": b"int c;"}, False),
        ({}, {"a.cc": b"int a;"}, False),
        ({}, {"a.cc": b"int b;", "b.h": b""}, False),
        # The same TensorFlow elsewhere, and files in another order.
        ({"compile_flags": ("-I/other", TARGET.compile_flags[1])}, SOURCES, True),
        ({"link_flags": ("-L/other",)}, dict(reversed(SOURCES.items())), True),
    ],
)
def test_another_target_or_source_has_another_name(change, sources, same):
    name = library_name(TARGET, SOURCES)
    assert name.startswith("ops-tensorflow-2.30.0-")
    assert (library_name(dataclasses.replace(TARGET, **change), sources) == name) == same


def test_the_command_links_the_core_by_its_file():
    command = compile_command(
        ["g++", "-m64"], TARGET, Path("/s"), Path("/p/libaiacc_core.so"), Path("/o.so")
    )
    assert command[:2] == ["g++", "-m64"]
    assert "/p/libaiacc_core.so" in command
    assert "/s/csrc/bindings/tensorflow/cpp_kernels.cc" in command
    assert {"-I/s", *TARGET.compile_flags, *TARGET.link_flags} <= set(command)
    assert not [word for word in command if "rpath" in word]
    assert command[-2:] == ["-o", "/o.so"]


def test_errors_are_short_and_say_what_to_do():
    output = "\n".join(f"error {i}" for i in range(100))
    text = failure_text(TARGET, ["g++", "x.cc"], "ended with exit code 1", output)
    assert "TensorFlow 2.30.0: g++ ended with exit code 1 (expected" in text
    assert "error 29\n... and 70 more lines" in text
    assert "g++ x.cc" in text
    assert "expected c++, g++ on PATH" in no_compiler_text(TARGET, ["c++", "g++"])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "aiacc"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Makes a compiler of a line of shell; $output is what it shall write."""

    def make(line):
        script = tmp_path / "compiler"
        script.write_text(
            f"#!/bin/sh\necho called >>{shlex.quote(str(tmp_path / 'calls'))}\n"
            f"for output; do :; done\n{line}\n"
        )
        script.chmod(0o700)
        monkeypatch.setenv("CXX", str(script))
        return tmp_path / "calls"

    return make


def test_who_comes_at_the_same_time_waits(folder, compiler):
    calls = compiler('echo library >"$output"')
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(op_build.built, ["a test"] * 8))
    (library,) = found
    assert library.read_text() == "library\n"
    assert calls.read_text() == "called\n"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_compiler_that_fails_leaves_nothing(folder, compiler):
    compiler('echo half >"$output"; echo no such header >&2; exit 3')
    with pytest.raises(ImportError, match=r"exit code 3 \(expected(.|\n)*no such header"):
        op_build.built("a test")
    assert [path.suffix for path in folder.iterdir()] == [".lock"]
    compiler('echo library >"$output"')
    assert op_build.built("a test").exists()


def test_without_a_compiler(folder, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++ -m64")
    with pytest.raises(ImportError, match=r"no compiler \(expected /nowhere/g\+\+ on PATH"):
        op_build.built("a test")
    assert list(folder.glob("*.so")) == []


def test_a_folder_that_others_may_write_is_refused(folder, compiler):
    calls = compiler("exit 1")
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(ImportError, match=r"mode 777 \(expected user \d+ and nobody else"):
        op_build.built("a test")
    assert not calls.exists()


def test_a_place_that_takes_no_folder_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ImportError, match=r"/file'.*set XDG_CACHE_HOME"):
        op_build.built("a test")


def test_sources_are_shipped():
    for path in op_build.SOURCES.rglob("*.*"):
        original = Path(op_build.__file__).parents[2] / path.relative_to(op_build.SOURCES)
        assert path.read_bytes() == original.read_bytes(), "build again: CMake copies them"
    included = {
        line.split('"')[1]
        for path in op_build.SOURCES.rglob("*.*")
        for line in path.read_text().splitlines()
        if line.startswith('#include "csrc/')
    }
    assert included
    assert [name for name in included if not (op_build.SOURCES / name).exists()] == []
