"""What `make torch-tests` and `make versions` count, which run other tests themselves."""

import json

import pytest

from tests.compat.torch_distributed_tests import RANKS, RESULTS, run
from tests.compat.versions import main, summary_of

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


REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_good"/>
<testcase classname="tests.a" name="test_bad"><failure
message="assert 1 == 2&#10; where"/></testcase>
<testcase classname="tests.a" name="test_left_out"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_summed_up():
    assert summary_of(REPORT) == {
        "passed": 1,
        "skipped": {"tests.a.test_left_out": "no GPU"},
        "failed": {"tests.a.test_bad": "assert 1 == 2"},
    }


def test_an_unknown_version_is_named(capsys):
    assert main(["1.15.0"]) == 2
    assert "1.15.0 (expected one of tensorflow-2.16.2" in capsys.readouterr().err
