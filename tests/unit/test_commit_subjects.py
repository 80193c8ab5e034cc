"""`make lint` looks at the subjects of new commits: .ci/check_commits.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULE = "2030-01-01T00:00:00+00:00"
BEFORE, AFTER = "2029-06-01T12:00:00+00:00", "2031-06-01T12:00:00+00:00"


def git(repository, *arguments, date=AFTER):
    """Runs git with nobody's settings."""
    person = {"NAME": "a", "EMAIL": "a@example.org", "DATE": date}
    environment = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        **{
            f"GIT_{who}_{key}": value
            for who in ("AUTHOR", "COMMITTER")
            for key, value in person.items()
        },
    }
    subprocess.run(["git", *arguments], cwd=repository, env=environment, check=True)


def commit(repository, subject, date=AFTER):
    git(repository, "commit", "-q", "--allow-empty", "-m", subject, date=date)


def check(repository):
    return subprocess.run(
        [
            sys.executable,
            ROOT / ".ci/check_commits.py",
            "--repository",
            repository,
            "--since",
            RULE,
        ],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def repository(tmp_path):
    path = tmp_path / "origin"
    path.mkdir()
    git(path, "init", "-q")
    commit(path, "what was before the rule, " + "long " * 20, date=BEFORE)
    return path


@pytest.mark.parametrize(
    "subject",
    [
        "core: fail what waits",
        "engines/mpi, tests: keep 'x:y' apart",
        ".ci: run all",
        "core: " + "ä" * 66,
    ],
)
def test_subjects_that_are_fine(repository, subject):
    commit(repository, subject)
    done = check(repository)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("core: " + "x" * 67, "73 characters (expected at most 72)"),
        ("fail what waits", "not of the form"),
        ("core fails: what waits", "not of the form"),
        ("fixup! core: fail what waits", "not of the form"),
        ("core: fail what waits.", "not of the form"),
    ],
)
def test_subjects_that_are_refused(repository, subject, problem):
    commit(repository, subject)
    commit(repository, "core: fail what waits")
    done = check(repository)
    assert done.returncode == 1
    assert subject in done.stderr
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_merges_are_left_alone(repository):
    git(repository, "checkout", "-q", "-b", "side")
    commit(repository, "core: fail what waits")
    git(repository, "checkout", "-q", "-")
    git(repository, "merge", "-q", "--no-ff", "-m", "Merge branch 'side' " + "x" * 72, "side")
    assert check(repository).returncode == 0


def test_a_shallow_clone_checks_what_it_has(repository, tmp_path):
    commit(repository, "x" * 80)
    commit(repository, "y" * 80)
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", "clone")
    done = check(tmp_path / "clone")
    assert done.returncode == 1
    assert "y" * 80 in done.stderr
    assert "x" * 80 not in done.stderr


def test_without_history_there_is_nothing_to_check(tmp_path):
    assert check(tmp_path).returncode == 0
    git(tmp_path, "init", "-q")
    assert check(tmp_path).returncode == 0
