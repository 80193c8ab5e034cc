"""What `aiaccrun --check-build` says of the frameworks."""

import pytest

from aiacc.run import check_build, programs


@pytest.mark.parametrize(
    ("brought_by", "version", "line"),
    [
        ("tensorflow-cpu", "2.21.0", "[X] aiacc.tensorflow tensorflow 2.21.0"),
        ("tensorflow", "2.18.0", "[X] aiacc.tensorflow tensorflow 2.18.0"),
        ("tensorflow", "2.15.1", "[ ] aiacc.tensorflow tensorflow 2.15.1 is too old (needs 2.16);"),
        (None, "", "[ ] aiacc.tensorflow tensorflow is not installed; pip install 'aiacc[tensor"),
    ],
)
def test_versions_of_tensorflow_and_none(monkeypatch, brought_by, version, line):
    monkeypatch.setattr(check_build, "find_spec", lambda name: brought_by)
    distributions = {"tensorflow": [brought_by]}
    monkeypatch.setattr(check_build.metadata, "packages_distributions", lambda: distributions)
    monkeypatch.setattr(check_build.metadata, "version", {brought_by: version}.__getitem__)
    assert check_build._frontend("aiacc.tensorflow").strip().startswith(line)


def test_an_mpirun_beside_the_interpreter_and_on_path_is_named_once(monkeypatch, tmp_path):
    for name in ("mpirun", "mpiexec"):
        (tmp_path / name).touch()
    monkeypatch.setattr(programs, "search_directories", lambda: [str(tmp_path), str(tmp_path)])
    monkeypatch.setattr(programs, "_identify", lambda program: program)
    assert list(programs.mpi_launchers()) == [str(tmp_path / "mpirun")]
