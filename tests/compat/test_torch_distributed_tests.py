"""torch's own tests that have passed on "aiacc" still do; `make torch-tests` runs all of them."""

import json

import pytest

from tests.compat.torch_distributed_tests import RANKS, RESULTS, run

WRITTEN = json.loads(RESULTS.read_text())
PASSED = WRITTEN["passed on aiacc, by ranks"]


def test_results_say_what_became_of_every_test():
    counts = WRITTEN["counts"]
    assert counts["aiacc"]["passed"] == sum(len(names) for names in PASSED.values())
    left_out = WRITTEN["not applicable to aiacc, by reason"]
    assert counts["aiacc"]["not applicable"] == sum(len(names) for names in left_out.values())
    for backend in ("aiacc", "gloo"):
        assert sum(counts[backend].values()) == WRITTEN["tests"]
    assert counts["aiacc"].get("failed", 0) == len(WRITTEN["failed"]["aiacc"]) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", RANKS)
def test_torchs_own_tests(ranks):
    names = PASSED[str(ranks)]
    assert names
    outcomes = run("aiacc", ranks, names, limit_s=500)
    assert outcomes.keys() == set(names)
    failed = {name: said for name, said in outcomes.items() if said["outcome"] != "passed"}
    assert not failed
