"""examples/cached_origin.py, unchanged."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

from aiacc.data.arena_file import PREFIX
from examples import cached_origin
from tests.support.ranks import run_example, run_ranks

SUMMARY = re.compile(r"^test accuracy ([\d.]+)%  on (\d) rank\(s\)$", re.MULTILINE)
LAST = re.compile(r"^epoch 3/3 .* (\d+) samples, (\d+) from memory", re.MULTILINE)


def arenas():
    return set(Path("/dev/shm").glob(f"{PREFIX}*"))


@pytest.mark.alone
@pytest.mark.parametrize(("launcher", "size"), [("python", 1), ("aiaccrun", 2)])
def test_it_learns_and_asks_the_store_once(launcher, size):
    before = arenas()
    ended = run_example(launcher, size, "cached_origin.py", "--epochs", "3", "--latency-ms", "1")
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    ((accuracy, ranks),) = SUMMARY.findall(ended.stdout)
    assert int(ranks) == size, said
    assert float(accuracy) > 60, said
    ((samples, hits),) = LAST.findall(ended.stdout)
    assert samples == hits, said
    assert "from the origin" not in ended.stdout.splitlines()[-2], said
    assert arenas() <= before


def _uncached():
    said = io.StringIO()
    sys.argv = ["cached_origin.py", "--uncached", "--epochs", "2", "--latency-ms", "0"]
    with contextlib.redirect_stdout(said):
        cached_origin.main()
    return said.getvalue()


def test_without_the_cache_it_learns_too():
    (said,) = run_ranks(1, _uncached)
    assert len(SUMMARY.findall(said)) == 1
    assert "from memory" not in said


@pytest.mark.parametrize("arguments", [["--epochs", "0"], ["--latency-ms", "-1"]])
def test_bad_options_are_named(arguments, capsys):
    with pytest.raises(SystemExit):
        cached_origin.parse(arguments)
    assert f"{arguments[0]} {arguments[1]}" in capsys.readouterr().err
