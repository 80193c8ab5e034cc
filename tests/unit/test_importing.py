"""`import aiacc` brings no framework, and says why where its compiled part cannot be loaded."""

import shutil
import sys
from pathlib import Path

import pytest

from aiacc import _core, unbuilt
from tests.support.programs import ROOT, run_program

FRAMEWORKS = ("torch", "tensorflow", "keras", "tf_keras", "jax", "mxnet", "mpi4py")
ALONE = (
    *("aiacc", "aiacc.array", "aiacc.bootstrap", "aiacc.compression.explain", "aiacc.data"),
    *("aiacc.kfac.placement", "aiacc.run.main"),
)


@pytest.mark.parametrize("module", ALONE)
def test_importing_aiacc_imports_no_framework(module):
    program = f"import sys, {module}\nprint(*(set({FRAMEWORKS!r}) & set(sys.modules)))"
    assert run_program([sys.executable, "-c", program], check=True).stdout.split() == []


@pytest.fixture
def clone(tmp_path):
    """A source folder as git leaves it."""
    shutil.copytree(ROOT / "aiacc", tmp_path / "aiacc", ignore=shutil.ignore_patterns("*.so"))
    (tmp_path / "CMakeLists.txt").touch()
    return tmp_path


def _lines(folder, before=""):
    """What Python prints that finds no installed package."""
    program = f"import sys; sys.path[:] = [{str(folder)!r}] + sys.path\n{before}\nimport aiacc"
    done = run_program([sys.executable, "-S", "-c", program], cwd=folder)
    assert done.returncode == 1
    return done.stderr.splitlines()


#: As an editable installation of another source folder has it.
FINDER = """
from importlib import util
class Finder:
    def find_spec(name, path=None, target=None):
        return util.spec_from_file_location(name, {path!r}) if name == "aiacc._core" else None
sys.meta_path.append(Finder)
"""


CORE = Path(_core.__file__)


@pytest.mark.parametrize(
    ("before", "texts"),
    [("", []), (FINDER.format(path=str(CORE)), [f"this Python has {CORE}, which belongs"])],
)
def test_a_clone_that_was_not_built(clone, before, texts):
    line = _lines(clone, before)[-1]
    assert line.startswith("ImportError: aiacc is imported from its source folder")
    assert all(text in line for text in [str(clone), "run `make build`", *texts])


def test_a_build_for_another_python_and_an_incomplete_installation(clone):
    (clone / "CMakeLists.txt").unlink()
    assert "install aiacc again" in _lines(clone)[-1]
    (clone / "aiacc" / "_core.cpython-27-x86_64-linux-gnu.so").touch()
    line = _lines(clone)[-1]
    assert "_core.cpython-27-x86_64-linux-gnu.so, which is for another Python" in line


@pytest.mark.parametrize("library", [None, "not a library"])
@pytest.mark.parametrize("installed", [False, True])
def test_a_core_whose_library_cannot_be_loaded(clone, library, installed):
    core = clone / "aiacc" / CORE.name
    shutil.copy(CORE, core)
    if library is not None:
        (clone / "aiacc" / "libaiacc_core.so").write_text(library)
    if installed:
        (clone / "CMakeLists.txt").unlink()
    lines = _lines(clone)
    cause = "file too short" if library else "cannot open shared object file"
    assert lines[-1].startswith(f"ImportError: {core} cannot be loaded: ")
    assert "libaiacc_core.so: " + cause in lines[-1]
    assert "(expected libaiacc_core.so of the same build beside it)" in lines[-1]
    remedy = "install aiacc again" if installed else f"run `make build` in {clone}"
    assert remedy in lines[-1]
    assert any(line.startswith("ImportError: ") and cause in line for line in lines[:-1])


def test_a_core_for_which_there_is_no_room():
    text = "/a/_core.so: failed to map segment from shared object"
    with pytest.raises(ImportError, match=r"failed to map.*\(ulimit -v\)"):
        unbuilt.explain(ImportError(text, path="/a/_core.so"))
