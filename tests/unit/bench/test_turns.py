"""How contenders take turns, and how samples come from the clocks of ranks."""

from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest

from bench import alarm, turns


def test_contenders_take_turns_and_the_warm_up_is_dropped():
    seen = []

    def contender(name):
        def note(what):
            return lambda: seen.append(what)

        return turns.Contender(name, note(name), finish=note("end"), check=note("check"))

    both = [contender("a"), contender("b")]
    found = turns.take_turns(both, 1, lambda: seen.append("go"), warm_up=1)
    assert seen == [entry for name in "abba" for entry in ("go", name, "end", "check")]
    assert [len(spans["starts"]) for spans in found.values()] == [1, 1]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 11])
def test_no_place_and_no_predecessor_is_anybodys_own(count):
    rounds = [turns.in_turn(range(count), number) for number in range(2 * count)]
    assert all(len(set(places)) == count for places in zip(*rounds[:count], strict=True))
    pairs = [pair for order in rounds for pair in pairwise(order)]
    assert Counter(pairs) == {(a, b): 2 for a in range(count) for b in range(count) if a != b}


def test_a_sample_lasts_from_the_last_arrival_to_the_last_departure():
    early = {"starts": [0.0, 10.0], "ends": [5.0, 12.0], "cpu": [1.0]}
    late = {"starts": [3.0, 10.5], "ends": [4.0, 13.0], "cpu": [2.0, 3.0]}
    assert turns.seconds([early, late]) == [2.0, 2.5]
    assert turns.of_callers([early, late]) == [5.0, 2.0, 1.0, 2.5]
    assert turns.of_cpu([early, late]) == [1.0, 2.0, 3.0]
    found = turns.gathered([[{"a": early}, {"a": late}], [{"a": early}, {"a": early}]])
    assert found["samples"] == {"a": [[2.0, 2.5], [5.0, 2.0]]}
    assert found["cpu"] == {"a": [3.5, 2.0]}
    with pytest.raises(ValueError, match="shorter"):
        turns.seconds([early, {"starts": [0.0], "ends": [1.0], "cpu": [1.0]}])


def test_the_alarm_names_works_whose_fastest_way_has_lost_15_percent_to_the_fastest_peer():
    titles = dict.fromkeys("abcd", "")
    module = SimpleNamespace(OURS=("a", "b"), PEERS=("c", "d"), TITLES=titles)

    def run(title, ours, theirs):
        seconds = {"a": [ours], "b": [9.0], "c": [theirs, 9, 9], "d": [theirs]}
        samples = {key: [values] for key, values in seconds.items()}
        return {"title": title, "unit": "s", "samples": samples}

    kept = [run("small", 1.0, 2.0), run("large", 1.0, 1.0)]
    assert alarm.slower(kept, [run("small", 2.2, 4.0), run("large", 0.5, 0.5)], module) is None
    found = alarm.slower(kept, [run("small", 1.2, 2.0), run("new", 9.0, 1.0)], module)
    assert found == "small: 0.600x of the fastest peer (kept: 0.500x)"
