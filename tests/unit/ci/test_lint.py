"""The scripts of `make lint` notice what they are for: each rule, broken once."""

import pytest

from tests.support.programs import run_program


def _module(statement):
    return f"def later():\n    {statement}\n"


@pytest.mark.parametrize(
    ("path", "text", "line", "said"),
    [
        ("csrc/base/a.h", '\n#include "csrc/core/runtime.h"', 2, "base must not include"),
        ("csrc/planning/a.h", '#include "csrc/control/plane.h"', 1, "planning must not include"),
        ("csrc/other/a.h", "", 1, "csrc/other has no place"),
        ("csrc/engines/a.h", "#  include <torch/extension.h>", 1, "only csrc/bindings may"),
        ("csrc/core/a.h", "#include <mpi.h>", 1, "only csrc/engines may"),
        ("csrc/cuda/a.h", "#include <cuda_runtime.h>", 1, "only csrc/kernels may"),
        ("csrc/engines/a.h", "#include <nccl.h>", 1, "only csrc/kernels may"),
        ("csrc/core/a.h", '/*\n*/ auto x = std::getenv("X");', 2, "only csrc/base/env.cc"),
        ("csrc/base/a.h", "using std::getenv;", 1, "only csrc/base/env.cc"),
        ("csrc/core/negotiation/a.h", '#include "csrc/core/dispatch/lane.h"', 1, "no other stage"),
        ("csrc/core/execution/a.h", '#include "csrc/core/execution/gpu/a.h"', 1, "must not"),
        ("csrc/core/dispatch/a.h", '#include "csrc/core/runtime.h"', 1, "above the stages"),
        ("csrc/planning/a.h", "#include <chrono>", 1, "decisions are pure"),
        ("csrc/core/negotiation/a.h", '#include "csrc/base/log.h"', 1, "decisions are pure"),
        ("csrc/kernels/a.h", "#include <thread>", 1, "a kernel that uses threads"),
        ("csrc/kernels/lars.cc", "", 1, "this kernel uses no threads"),
        ("csrc/core/a.cc", "", 1, "list it in CMakeLists.txt"),
        ("tests/cpp/core/a_test.cc", "", 1, "list it in tests/cpp/CMakeLists.txt"),
        ("aiacc/a.py", "import aiacc.torch", 1, "aiacc must not import aiacc.torch"),
        ("aiacc/run/a.py", "from aiacc.torch import x", 1, "run must not import aiacc.torch.x"),
        ("aiacc/torch/ops/a.py", _module("import aiacc.torch.kfac"), 2, "it may import coll"),
        ("aiacc/optim/a.py", "import aiacc.kfac", 1, "it may import no other package"),
        ("aiacc/other/a.py", "", 1, "aiacc/other has no place"),
        ("aiacc/a.py", "import os\nos.environ", 2, "aiacc/config.py does"),
        ("aiacc/a.py", _module("from os import getenv"), 2, "aiacc/config.py does"),
        ("aiacc/a.py", "from aiacc._core import prepare", 1, "prepares a submission itself"),
        ("aiacc/a.py", _module("f = aiacc._core.prepare"), 2, "prepares a submission itself"),
    ],
)
def test_layering_notices(script, path, text, line, said):
    layering = script("check_layering")
    found = [found for found in layering.violations({path: text}) if said in "; ".join(found[2:])]
    assert [one[:2] for one in found] == [(path, line)]


def test_layering_notices_circles_and_large_folders(script):
    files = {
        "csrc/core/a.h": '#include "csrc/core/b.h"',
        "csrc/core/b.h": "",
        "csrc/core/b.cc": '#include "csrc/core/a.h"',
        "csrc/core/c.h": '#include "csrc/core/a.h"',
        "aiacc/a.py": "from aiacc import b",
        "aiacc/b.py": "try:\n    from aiacc.a import x\nfinally:\n    pass",
        "aiacc/c.py": "import aiacc.d",
        "aiacc/d.py": "if TYPE_CHECKING:\n    import aiacc.c\ndef later():\n    import aiacc.c",
        **{f"bench/{number}.{suffix}": "" for number in range(21) for suffix in ("cc", "h", "md")},
        **{f"bench/results/{number}.json": "" for number in range(30)},
        "CMakeLists.txt": "csrc/core/b.cc",
    }
    found = {path: what for path, _, what, _ in script("check_layering").violations(files)}
    circle = "includes itself through others"
    assert found.pop("csrc/core/a.h") == found.pop("csrc/core/b.h") == circle
    circle = "imports itself through others"
    assert found.pop("aiacc/a.py") == found.pop("aiacc/b.py") == circle
    assert found == {"bench": "21 units (expected at most 20)"}


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("core: fail what waits", ""),
        ("engines/mpi, tests: keep 'x:y' apart", ""),
        (".ci: run all", ""),
        ("core: " + "ä" * 66, ""),
        ("core: " + "x" * 67, "73 characters (expected at most 72)"),
        ("fail what waits", "not of the form"),
        ("core fails: what waits", "not of the form"),
        ("fixup! core: fail what waits", "not of the form"),
        ("core: fail what waits.", "not of the form"),
    ],
)
def test_subjects_of_commits(script, subject, problem):
    assert script("check_commits").problem_of(subject).startswith(problem)
    assert bool(script("check_commits").problem_of(subject)) == bool(problem)


def test_commits_are_those_since_the_rule_without_merges(script, tmp_path):
    commits = script("check_commits").commits
    assert commits(tmp_path, "2030-01-01") == []  # there is no history
    commit = (
        *("git", "-c", "user.name=a", "-c", "user.email=a", "-c", "commit.gpgsign=false"),
        *("commit", "-q", "--allow-empty", "-m"),
    )
    script_of_git = f"""
        export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
        git init -q . && GIT_COMMITTER_DATE=2029-06-01T12:00:00Z {" ".join(commit)} before
        export GIT_COMMITTER_DATE=2031-06-01T12:00:00Z
        {" ".join(commit)} one && git checkout -q -b side && {" ".join(commit)} two
        git checkout -q - && {" ".join(commit)} three
        git -c user.name=a -c user.email=a merge -q --no-ff -m merged side
    """
    run_program(["sh", "-ec", script_of_git], cwd=tmp_path, check=True)
    found = {subject for _, subject in commits(tmp_path, "2030-01-01T00:00:00+00:00")}
    assert found == {"one", "two", "three"}
