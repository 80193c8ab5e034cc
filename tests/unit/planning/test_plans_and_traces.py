import dataclasses
import json
import random

import pytest

from aiacc.planning.plan import Plan
from aiacc.planning.trace import Trace, TraceError, slowest, typical
from tests.unit.planning.instances import made_trace, random_trace

PLAN = Plan("optimal", (("a", "b"), ("c",)), predicted_s=1.5, bound_s=1.5)


def trace_of(forward_s, *ready):
    return made_trace([(4, forward_s + at) for at in ready], forward_s, max(ready), "measured")


def test_json_there_and_back():
    trace = random_trace(random.Random(1), 20)
    assert Trace.decode(trace.encode()) == trace
    assert Plan.decode(PLAN.encode()) == PLAN


SECONDS = r"\(expected seconds, 0 to 86400\)"


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("version", 2, r": 2 \(expected 1\)"),
        ("tensors", None, r": no list"),
        ("tensors", [], r": none"),
        ("source", "guessed", r": 'guessed' \(expected measured or modelled"),
        ("forward_s", -1, r": -1.0"),
        ("forward_s", True, r": True"),
        ("forward_s", 1e308, rf": 1e\+308 {SECONDS}"),
        ("forward_s", 10**400, rf": 10{{49}} {SECONDS}"),
        ("backward_s", 86_401, rf": 86401.0 {SECONDS}"),
        ("model", 3, r": 3 \(expected str\)"),
        ("model", "\ud800", r": '\\ud800' \(expected characters that UTF-8 has\)"),
        # Of the second tensor:
        (".bytes", 0, r": 0 \(expected >= 1\)"),
        (".bytes", "4", r": '4' \(expected int\)"),
        (".bytes", 1 << 63, r": 9223372036854775808 \(expected less than 2\^63\)"),
        (".name", "\ud800", r": '\\ud800' \(expected characters that UTF-8 has\)"),
        (".name", "t0", r": 't0' comes twice"),
        (".ready_s", 9.0, r": 9.0 .*3.0"),
        (".ready_s", 0.5, r": 0.5 is before"),
        (".ready_s", float("nan"), r": nan"),
        (".need_s", 1.5, r": 1.5 .*1.0"),
    ],
)
def test_fields_that_are_wrong_are_named(field, value, text):
    fields = json.loads(trace_of(1.0, 1.0, 2.0).encode())
    if field.startswith("."):
        fields["tensors"][1][field[1:]] = value
        field = rf"tensors\[1\]{field}"
    else:
        fields[field] = value
    with pytest.raises(TraceError, match=field + text):
        Trace.decode(json.dumps(fields))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"version": 1,\n,}', r"line 2: no JSON .*as `aiacc-plan profile` writes"),
        ("[]", "no JSON object"),
        ("[" * 100_000, "expected less nesting"),
        ('{"version":\n' + "9" * 5000 + "}", r"line 2: a number of 5000 digits \(expected 600 at"),
    ],
    ids=["broken", "list", "deep", "long"],
)
def test_what_is_no_json_names_the_line(text, said):
    with pytest.raises(TraceError, match=said):
        Trace.decode(text)


def test_the_typical_step_is_the_median_of_equal_tensors():
    for combined in (typical, slowest):
        with pytest.raises(TraceError, match=r"no traces \(expected one or more\)"):
            combined([])
    steps = [trace_of(1.0, 1.0, 2.0), trace_of(3.0, 1.5, 2.5), trace_of(2.0, 9.0, 10.0)]
    trace = typical(steps)
    assert trace.forward_s == 2.0
    assert [tensor.ready_s for tensor in trace.tensors] == [3.5, 4.5]
    assert trace.backward_s == 2.5
    with pytest.raises(TraceError, match="trace 1 differs from trace 0 in 't1'"):
        slowest([trace_of(0.0, 1.0, 2.0), trace_of(0.0, 1.0)])


def test_the_slowest_rank_decides_for_each_gradient_and_their_order():
    ranks = [trace_of(1.0, 1.0, 4.0), trace_of(1.5, 2.0, 3.0)]
    trace = slowest(ranks)
    assert trace.forward_s == 1.5
    assert [tensor.ready_s for tensor in trace.tensors] == [3.5, 5.5]
    one = trace_of(0.0, 1.0, 2.0)
    swapped = dataclasses.replace(
        one,
        tensors=tuple(
            dataclasses.replace(tensor, ready_s=seconds)
            for tensor, seconds in zip(reversed(one.tensors), (1.0, 5.0), strict=True)
        ),
        backward_s=5.0,
    )
    assert [tensor.name for tensor in slowest([one, swapped]).tensors] == ["t1", "t0"]


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
