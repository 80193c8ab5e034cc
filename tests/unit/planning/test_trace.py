import dataclasses
import json
import random

import pytest

from aiacc.planning.trace import Tensor, Trace, TraceError, slowest, typical
from tests.unit.planning.instances import random_trace


def trace_of(forward_s, *ready):
    tensors = tuple(
        Tensor(f"t{i}", 4, "float32", forward_s + seconds, 0.0) for i, seconds in enumerate(ready)
    )
    return Trace("m", tensors, forward_s, max(ready), "measured")


def test_json_there_and_back():
    trace = random_trace(random.Random(1), 20)
    assert Trace.decode(trace.encode()) == trace


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 2}, r"version: 2 \(expected 1\)"),
        ({"tensors": None}, r"tensors: no list"),
        ({"tensors": []}, r"tensors: none"),
        ({"source": "guessed"}, r"source: 'guessed' \(expected measured or modelled"),
        ({"forward_s": -1}, r"forward_s: -1.0"),
        ({"forward_s": True}, r"forward_s: True"),
        ({"forward_s": 1e308}, r"forward_s: 1e\+308 \(expected seconds, 0 to 86400\)"),
        ({"backward_s": 86_401}, r"backward_s: 86401.0 \(expected seconds, 0 to 86400\)"),
        ({"forward_s": 10**400}, r"forward_s: 10{49} \(expected seconds, 0 to 86400\)"),
        ({"model": 3}, r"model: 3 \(expected str\)"),
        ({"model": "\ud800"}, r"model: '\\ud800' \(expected characters that UTF-8 has\)"),
    ],
)
def test_fields_that_are_wrong_are_named(change, text):
    fields = json.loads(trace_of(1.0, 1.0, 2.0).encode()) | change
    with pytest.raises(TraceError, match=text):
        Trace.decode(json.dumps(fields))


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("bytes", 0, r"tensors\[1\].bytes: 0 \(expected >= 1\)"),
        ("bytes", "4", r"tensors\[1\].bytes: '4' \(expected int\)"),
        ("bytes", 1 << 63, r"tensors\[1\].bytes: 9223372036854775808 \(expected less than 2\^63\)"),
        ("name", "\ud800", r"tensors\[1\].name: '\\ud800' \(expected characters that UTF-8 has\)"),
        ("name", "t0", r"tensors\[1\].name: 't0' comes twice"),
        ("ready_s", 9.0, r"tensors\[1\].ready_s: 9.0 .*3.0"),
        ("ready_s", 0.5, r"tensors\[1\].ready_s: 0.5 is before"),
        ("ready_s", float("nan"), r"tensors\[1\].ready_s: nan"),
        ("need_s", 1.5, r"tensors\[1\].need_s: 1.5 .*1.0"),
    ],
)
def test_tensors_that_are_wrong_are_named(field, value, text):
    fields = json.loads(trace_of(1.0, 1.0, 2.0).encode())
    fields["tensors"][1][field] = value
    with pytest.raises(TraceError, match=text):
        Trace.decode(json.dumps(fields))


def test_what_is_no_json_names_the_line():
    with pytest.raises(TraceError, match=r"line 2: no JSON .*as `aiacc-plan profile` writes"):
        Trace.decode('{"version": 1,\n,}')
    with pytest.raises(TraceError, match="no JSON object"):
        Trace.decode("[]")
    with pytest.raises(TraceError, match=r"expected less nesting"):
        Trace.decode("[" * 100_000)
    with pytest.raises(TraceError, match=r"line 2: a number of 5000 digits \(expected 600 at most"):
        Trace.decode('{"version":\n' + "9" * 5000 + "}")


def test_of_no_traces_nothing_is_typical():
    for combined in (typical, slowest):
        with pytest.raises(TraceError, match=r"no traces \(expected one or more\)"):
            combined([])


def test_the_typical_step_is_the_median():
    steps = [trace_of(1.0, 1.0, 2.0), trace_of(3.0, 1.5, 2.5), trace_of(2.0, 9.0, 10.0)]
    trace = typical(steps)
    assert trace.forward_s == 2.0
    assert [tensor.ready_s for tensor in trace.tensors] == [3.5, 4.5]
    assert trace.backward_s == 2.5


def test_the_slowest_rank_decides_for_each_gradient():
    ranks = [trace_of(1.0, 1.0, 4.0), trace_of(1.5, 2.0, 3.0)]
    trace = slowest(ranks)
    assert trace.forward_s == 1.5
    assert [tensor.ready_s for tensor in trace.tensors] == [3.5, 5.5]


def test_the_order_is_that_of_the_combined_times():
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


def test_other_tensors_are_refused():
    with pytest.raises(TraceError, match="trace 1 differs from trace 0 in 't1'"):
        slowest([trace_of(0.0, 1.0, 2.0), trace_of(0.0, 1.0)])
