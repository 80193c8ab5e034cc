"""Checks the subjects of commits: `folder: imperative subject`, at most 72 characters.

Commits from before the rule are left alone. They are told by their date and not by an id, so that
the check works in a shallow clone; without git or a repository there is nothing to check.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SINCE = "2026-11-22T18:00:00+00:00"
LIMIT = 72
FORM = re.compile(r"[\w./-]+(, [\w./-]+)*: \S.*[^.\s]")


def main() -> int:
    """Check the commits of HEAD; 1 if a subject breaks the rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=ROOT)
    parser.add_argument("--since", default=SINCE, help="date of the oldest commit to check")
    options = parser.parse_args()

    found = [
        f"{commit} {subject!r}: {problem}"
        for commit, subject in commits(options.repository, options.since)
        if (problem := problem_of(subject))
    ]
    for line in found:
        sys.stderr.write(f"{line}; reword it by git rebase -i or git commit --amend\n")
    return 1 if found else 0


def commits(repository: Path, since: str) -> list[tuple[str, str]]:
    """Ids and subjects, without merges; none where there is no history to read."""
    command = ["git", "log", "--no-merges", f"--since={since}", "--format=%h %s"]
    try:
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in done.stdout.splitlines()]


def problem_of(subject: str) -> str:
    """What is wrong with a subject, or ""."""
    if len(subject) > LIMIT:
        return f"{len(subject)} characters (expected at most {LIMIT})"
    if not FORM.fullmatch(subject):
        return "not of the form `folder: imperative subject` without a full stop"
    return ""


if __name__ == "__main__":
    sys.exit(main())
