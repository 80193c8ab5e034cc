"""What `import aiacc` says where its compiled part is missing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aiacc import _core

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path):
    """A source folder as git leaves it."""
    shutil.copytree(ROOT / "aiacc", tmp_path / "aiacc", ignore=shutil.ignore_patterns("*.so"))
    (tmp_path / "CMakeLists.txt").touch()
    return tmp_path


def _last_line(folder, before=""):
    """Of what Python prints that finds no installed package."""
    program = f"import sys; sys.path[:] = [{str(folder)!r}] + sys.path\n{before}\nimport aiacc"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_a_clone_that_was_not_built(clone):
    line = _last_line(clone)
    assert line.startswith("ImportError: aiacc is imported from its source folder")
    assert str(clone) in line
    assert "run `make build`" in line


#: As an editable installation of another source folder has it.
FINDER = """
from importlib import util
class Finder:
    def find_spec(name, path=None, target=None):
        return util.spec_from_file_location(name, {path!r}) if name == "aiacc._core" else None
sys.meta_path.append(Finder)
"""


def test_the_python_of_another_source_folder(clone):
    core = Path(_core.__file__)
    line = _last_line(clone, FINDER.format(path=str(core)))
    assert line.startswith("ImportError: aiacc is imported from its source folder")
    assert str(clone) in line
    assert f"this Python has {core}, which belongs to another aiacc" in line
    assert "run `make build`" in line


def test_a_build_for_another_python(clone):
    (clone / "aiacc" / "_core.cpython-27-x86_64-linux-gnu.so").touch()
    line = _last_line(clone)
    assert "_core.cpython-27-x86_64-linux-gnu.so, which is for another Python" in line


def test_an_incomplete_installation(clone):
    (clone / "CMakeLists.txt").unlink()
    assert "install aiacc again" in _last_line(clone)
