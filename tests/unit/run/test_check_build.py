"""What `aiaccrun --check-build` says of the frameworks."""

import pytest

from aiacc.run import check_build, programs


@pytest.fixture
def frontend(monkeypatch):
    """The line about TensorFlow, as one version of one distribution brings it."""

    def line(version, brought_by="tensorflow-cpu"):
        monkeypatch.setattr(check_build, "find_spec", lambda name: brought_by or None)
        metadata = check_build.metadata
        monkeypatch.setattr(
            metadata, "packages_distributions", lambda: {"tensorflow": [brought_by]}
        )
        monkeypatch.setattr(metadata, "version", {brought_by: version}.__getitem__)
        return check_build._frontend("aiacc.tensorflow")

    return line


def test_tensorflow_may_come_from_another_distribution(frontend):
    assert frontend("2.21.0") == "  [X] aiacc.tensorflow tensorflow 2.21.0"
    assert frontend("2.18.0", "tensorflow").startswith("  [X]")


def test_versions_that_are_too_old_and_none(frontend):
    assert "tensorflow 2.15.1 is too old (needs 2.16); pip" in frontend("2.15.1")
    line = frontend("", brought_by="")
    assert line.startswith("  [ ]")
    assert "tensorflow is not installed; pip install 'aiacc[tensorflow]'" in line


def test_an_mpirun_beside_the_interpreter_and_on_path_is_named_once(monkeypatch, tmp_path):
    for name in ("mpirun", "mpiexec"):
        (tmp_path / name).touch()
    monkeypatch.setattr(programs, "search_directories", lambda: [str(tmp_path), str(tmp_path)])
    monkeypatch.setattr(programs, "_identify", lambda program: program)
    assert list(programs.mpi_launchers()) == [str(tmp_path / "mpirun")]
