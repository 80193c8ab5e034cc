"""What `make wheel` and `make wheel-check` decide."""

from pathlib import Path

import pytest

NAME = "aiacc-0.1.0-cp312-cp312-manylinux_2_35_x86_64.whl"
FILES = [
    "aiacc/_core.cpython-312-x86_64-linux-gnu.so",
    "aiacc/libaiacc_core.so",
    "aiacc/libaiacc_tensorflow.so",
]


@pytest.mark.parametrize(
    ("files", "name", "problem"),
    [
        (FILES, NAME.replace("manylinux_2_35", "linux"), "not a manylinux wheel"),
        (FILES, NAME.replace("cp312", "cp313"), "no aiacc/_core.cpython-313-"),
        (FILES[:2], NAME, "no aiacc/libaiacc_tensorflow.so"),
        ([*FILES, "aiacc.libs/libmpi.so.12"], NAME, "copied aiacc.libs/libmpi.so.12"),
    ],
)
def test_a_wheel_that_must_not_leave(script, files, name, problem):
    problems = script("wheels").problems
    assert problems(FILES, NAME) == []
    (found,) = problems(files, name)
    assert problem in found


def test_the_python_of_a_wheel(script):
    version_of = script("wheel_check").version_of
    assert version_of(Path(NAME)) == "3.12"
    with pytest.raises(ValueError, match="for no version of CPython"):
        version_of(Path("aiacc-0.1.0-py3-none-any.whl"))


def test_a_checked_environment_with_a_compiler_is_refused(script, tmp_path):
    path = tmp_path / "venv" / "bin"
    path.mkdir(parents=True)
    without_compiler = script("wheel_check").without_compiler
    assert without_compiler(tmp_path)["PATH"] == str(path)
    (path / "g++").touch(mode=0o755)
    with pytest.raises(RuntimeError, match=r"has g\+\+ \(expected no compiler\)"):
        without_compiler(tmp_path)


def test_interpreters_that_cannot_compile_are_left_out(script, tmp_path):
    broken = tmp_path / "python3.13"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    works = tmp_path / "python3.12"
    works.write_text("#!/bin/sh\necho 3.12\n")
    works.chmod(0o755)
    assert script("wheels").interpreters([str(broken), str(works)]) == {"3.12": str(works)}
