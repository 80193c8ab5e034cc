"""torch's own tests for process groups, on "aiacc" and on "gloo": `make torch-tests`.

torch ships them in `torch.testing._internal.distributed.distributed_test`. When that module is
imported, it leaves out what the backend that it is told of cannot do. Here it is imported as for
"gloo" and as for "mpi", so that every test is there that applies to one of these on a CPU; then it
is told the name of the backend that is to be tested. Tests of small groups ask for more ranks than
the others.

    python -m tests.compat.torch_distributed_tests    # writes RESULTS
"""

from __future__ import annotations

import collections
import importlib.util
import json
import logging
import os
import sys
import tempfile
import types
import unittest
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from tests.support.programs import run_program
from tests.support.ranks import rank_environment

RESULTS = Path(__file__).with_suffix(".json")
MODULE = "torch.testing._internal.distributed.distributed_test"
#: Whose rules for what can be tested count, the first one's first.
STAND_INS = ("gloo", "mpi")
#: Numbers of ranks; the second one is for tests that the first is too small for.
RANKS = (4, 8)
TOO_SMALL = "Skipped due to small world size."
#: What these are about is gloo's alone.
GLOOS_ALONE = {"test_monitored_barrier": "torch calls monitored_barrier for gloo alone"}
#: Seconds after which torch's harness ends the ranks of a test.
LIMIT_S = "60"

Outcomes = dict[str, dict[str, str]]


class _Name(str):
    """A backend's name which equals that of the first stand-in, too, for tests that ask late."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == STAND_INS[0] or str.__eq__(self, other)

    __hash__ = str.__hash__


def load(backend: str) -> type[unittest.TestCase]:
    """The tests as a class, to be run on ``backend``."""
    first, *others = modules = [_import_as(stand_in) for stand_in in STAND_INS]
    sys.modules[MODULE] = first  # where pickle looks for its classes
    os.environ["BACKEND"] = backend
    for module in modules:
        module.BACKEND = _Name(backend)
    tests = dict(vars(first.DistributedTest._DistTestBase))
    for other in others:
        for name, test in vars(other.DistributedTest._DistTestBase).items():
            if _is_left_out(tests[name]) and not _is_left_out(test):
                tests[name] = test

    class Tests(first.TestDistBackend, first.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # torch starts new interpreters, which takes longer than most of the tests.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def _check_return_codes(self, fn, elapsed_time):
            """As torch's, which looks at the first rank alone if none has failed in the test."""
            super()._check_return_codes(fn, elapsed_time)
            codes = [process.exitcode for process in self.processes]
            assert len(set(codes)) == 1, f"the ranks ended with exit codes {codes}"

    for name, test in tests.items():
        if name.startswith("test_"):
            setattr(Tests, name, test)
    return Tests


def _import_as(stand_in: str) -> types.ModuleType:
    os.environ["BACKEND"] = stand_in
    spec = importlib.util.find_spec(MODULE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"{MODULE}.{stand_in}"] = module
    spec.loader.exec_module(module)
    return module


def _is_left_out(test: Any) -> bool:
    return bool(getattr(test, "__unittest_skip__", False))


class _Result(unittest.TestResult):
    """What became of every test, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: Outcomes = {}

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        self._note(test, "passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._note(test, "not applicable", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._note(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure  # noqa: N815

    def _note(self, test: unittest.TestCase, outcome: str, reason: str) -> None:
        self.outcomes[test.id().rpartition(".")[2]] = {"outcome": outcome, "reason": reason}


def _run_here(backend: str, ranks: str, target: str, names: list[str]) -> None:
    """Run the named tests, or all, in forks of this process; write what became of them."""
    os.environ["WORLD_SIZE"] = ranks
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = LIMIT_S
    torch.set_num_threads(1)
    if backend == "aiacc":
        import aiacc.torch  # noqa: F401 - registers the backend
    tests = load(backend)
    logging.disable(logging.INFO)
    result = _Result()
    names = names or unittest.defaultTestLoader.getTestCaseNames(tests)
    unittest.TestSuite(tests(name) for name in names).run(result)
    Path(target).write_text(json.dumps(result.outcomes))


def run(backend: str, ranks: int, names: Iterable[str] = (), limit_s: float = 900) -> Outcomes:
    """Run the named tests, or all, in a process of their own, and tell what became of them.

    Raises:
        AssertionError: The process ended without an answer, or not in time.
    """
    with tempfile.TemporaryDirectory(prefix="torch-tests-") as folder:
        target = Path(folder) / "outcomes.json"
        program = [sys.executable, "-m", "tests.compat.torch_distributed_tests"]
        command = [*program, "--here", backend, str(ranks), str(target), *names]
        environment = rank_environment({"TMPDIR": folder})  # torch leaves files there
        done = run_program(command, env=environment, merged=True, limit_s=limit_s)
        assert target.exists(), f"exit code {done.returncode}\n{done.stdout[-4000:]}"
        return json.loads(target.read_text())


def run_all(backend: str) -> Outcomes:
    """Every test, with the number of ranks that it ran on."""
    outcomes = run(backend, RANKS[0])
    small = [name for name, outcome in outcomes.items() if outcome["reason"] == TOO_SMALL]
    for name, outcome in outcomes.items():
        outcome["ranks"] = str(RANKS[1] if name in small else RANKS[0])
    for name, outcome in run(backend, RANKS[1], small).items():
        outcomes[name] = {**outcome, "ranks": str(RANKS[1])}
    if backend != STAND_INS[0]:
        for name, outcome in outcomes.items():
            for prefix, reason in GLOOS_ALONE.items():
                if name.startswith(prefix) and outcome["outcome"] != "not applicable":
                    outcome.update(outcome="not applicable", reason=reason)
    return outcomes


def report(by_backend: dict[str, Outcomes]) -> dict[str, Any]:
    """What is written to RESULTS."""
    ours = by_backend["aiacc"]
    left_out = collections.defaultdict(list)
    for name, outcome in ours.items():
        if outcome["outcome"] == "not applicable":
            left_out[outcome["reason"]].append(name)
    return {
        "torch": torch.__version__.partition("+")[0],
        "tests": len(ours),
        "counts": {
            backend: collections.Counter(outcome["outcome"] for outcome in outcomes.values())
            for backend, outcomes in by_backend.items()
        },
        "failed": {
            backend: {
                name: outcome["reason"].strip().splitlines()[-1]
                for name, outcome in outcomes.items()
                if outcome["outcome"] == "failed"
            }
            for backend, outcomes in by_backend.items()
        },
        "passed on aiacc, by ranks": {
            str(ranks): [
                name
                for name, outcome in ours.items()
                if (outcome["outcome"], outcome["ranks"]) == ("passed", str(ranks))
            ]
            for ranks in RANKS
        },
        "not applicable to aiacc, by reason": dict(
            sorted(left_out.items(), key=lambda item: (-len(item[1]), item[0]))
        ),
    }


def main(arguments: list[str]) -> None:
    """See the module."""
    if arguments[:1] == ["--here"]:
        backend, ranks, target, *names = arguments[1:]
        _run_here(backend, ranks, target, names)
    else:
        results = report({backend: run_all(backend) for backend in ("aiacc", "gloo")})
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        sys.stdout.write(json.dumps(results["counts"], indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
