"""libaiacc_core.so: one core for all front-ends of a process."""

import shutil
import sys
from pathlib import Path

import pytest

import aiacc
from aiacc import _core
from tests.support.programs import run_program

MODULE = Path(_core.__file__)
LIBRARY = MODULE.with_name("libaiacc_core.so")


def _tool(*command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    return run_program(command, check=True).stdout


def _symbols(path, *flags):
    """By name, with the letter that nm gives them."""
    lines = _tool("nm", "-C", *flags, str(path)).splitlines()
    return {line[19:]: line[17] for line in lines if len(line) > 19}


def test_the_module_has_no_core_of_its_own_and_finds_the_library_beside_it():
    module = _symbols(MODULE, "-D")
    library = _symbols(LIBRARY, "-D")
    for symbol in ("aiacc::Runtime::instance()", "typeinfo for aiacc::Error"):
        assert module[symbol] == "U"
        assert library[symbol] in "TVDR"
    # Functions that are not exported would be in the whole table.
    assert not any(name.startswith("aiacc::Negotiator::") for name in _symbols(MODULE))
    dynamic = _tool("readelf", "-d", str(MODULE))
    assert "Shared library: [libaiacc_core.so]" in dynamic
    assert "runpath: [$ORIGIN]" in dynamic
    assert "SONAME" in _tool("readelf", "-d", str(LIBRARY))


@pytest.mark.parametrize("plugin", sorted(MODULE.parent.glob("libaiacc_mpi_*.so")))
def test_plugins_need_nothing_of_the_core(plugin):
    assert "libaiacc_core" not in _tool("readelf", "-d", str(plugin))
    symbols = _symbols(plugin, "-D").items()
    assert [name for name, kind in symbols if name.startswith("aiacc::") and kind in "UTV"] == []


def test_the_library_of_ops_needs_nothing_of_cpp_from_tensorflow_and_has_no_core_of_its_own():
    library = MODULE.with_name("libaiacc_tensorflow.so")
    needed = _symbols(library, "-D", "--undefined-only")
    assert "TF_NewAsyncKernelBuilder" in needed
    assert [name for name in needed if "tensorflow::" in name or "absl" in name] == []
    assert _symbols(library, "-D", "--defined-only") == {}
    assert library.stat().st_size < 2**20


def test_what_the_library_shows():
    shown = {name for name, letter in _symbols(LIBRARY, "-D").items() if letter not in "Uw"}
    header = Path(aiacc.get_include(), "aiacc", "c_api.h").read_text()
    functions = {name for name in shown if name.startswith("aiacc_")}
    assert functions == {name for name in functions if f" {name}(" in header.replace("*", " ")}
    assert "aiacc_submit" in functions
    ours = ("aiacc::", "typeinfo", "vtable")
    assert [name for name in shown - functions if not name.startswith(ours)] == []


#: Starts the runtime, then asks a copy of the library that was loaded from another path.
COPY = """
import ctypes, sys
import aiacc
if sys.argv[2] == "init":
    aiacc.init()
copy = ctypes.CDLL(sys.argv[1])
copy.aiacc_last_error.restype = ctypes.c_char_p
assert copy.aiacc_is_initialized() == 0
assert copy.aiacc_rank(ctypes.byref(ctypes.c_int32())) == 7
print(copy.aiacc_last_error().decode())
"""


def test_a_second_copy_refuses(tmp_path):
    copy = shutil.copy(LIBRARY, tmp_path)
    refused = f"{copy} has not been initialized, but {LIBRARY} has"
    for init, said in (("", "aiacc has not been initialized"), ("init", refused)):
        done = run_program([sys.executable, "-c", COPY, copy, init], check=True)
        assert said in done.stdout


def test_one_library_by_any_path(tmp_path):
    link = tmp_path / "libaiacc_core.so"
    link.symlink_to(LIBRARY)
    program = (
        "import ctypes, sys, aiacc; aiacc.init()\n"
        "print(*(ctypes.CDLL(path).aiacc_is_initialized() for path in sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, link, "libaiacc_core.so"]
    assert run_program(command, check=True).stdout.split() == ["1", "1"]
