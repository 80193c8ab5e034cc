import dataclasses
import json

import pytest

from aiacc.planning.plan import Plan

PLAN = Plan("optimal", (("a", "b"), ("c",)), predicted_s=1.5, bound_s=1.5)


def test_json_there_and_back():
    assert Plan.decode(PLAN.encode()) == PLAN


def test_the_digest_is_of_what_a_plan_does():
    same = dataclasses.replace(PLAN, planner="threshold(25)", predicted_s=2.0)
    assert same.digest == PLAN.digest
    for change in (
        {"buckets": (("a",), ("b", "c"))},
        {"buckets": (("b", "a"), ("c",))},
        {"schedule": "decoupled"},
        {"lanes": 2},
    ):
        assert dataclasses.replace(PLAN, **change).digest != PLAN.digest


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"buckets": []}, "at least one bucket"),
        ({"buckets": [[]]}, "at least one tensor"),
        ({"buckets": [["a"], ["b", "a"]]}, "tensor 'a' is in two places"),
        ({"buckets": "ab"}, "buckets: 'ab' .expected list"),
        ({"planner": None}, "planner: None .expected str"),
        ({"lanes": "2"}, "lanes: '2' .expected int"),
        ({"lanes": True}, "lanes: True .expected int"),
        ({"predicted_s": "soon"}, "predicted_s: 'soon' .expected a number"),
        ({"buckets": [[1]]}, "expected a list of lists"),
        ({"schedule": "later"}, "schedule 'later' .expected one of all_reduce, decoupled"),
        ({"lanes": 0}, "lanes 0"),
        ({"more": 1}, "holds no plan .expected one as `aiacc-plan plan` writes it"),
    ],
)
def test_plans_that_are_wrong(change, text):
    with pytest.raises(ValueError, match=text):
        Plan.decode(json.dumps(json.loads(PLAN.encode()) | change))
    with pytest.raises(ValueError, match=r"line 1: no JSON .*; expected the text of a file"):
        Plan.decode("plan.json")
