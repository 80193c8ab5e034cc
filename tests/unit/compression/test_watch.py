"""A choice that makes steps longer is withdrawn."""

import random

import pytest

from aiacc.compression.watch import AGAIN, MIX, NOISE, CompressionWatch
from aiacc.planning.search import TOLERANCE


def settled(times, watch=None, drift=0.0):
    """A watch after a comparison with steps of ``times``, each longer by ``drift`` than before."""
    watch = watch or CompressionWatch()
    visit = 0
    while not watch.settled:
        watch.add(times[watch.current] * (1 + drift * visit))
        visit += 1
    return watch


def test_visits_go_there_and_back_and_a_line_says_what_was_measured():
    watch, seen = CompressionWatch(), []
    while not watch.settled:
        seen.append(watch.current)
        watch.add(1.0)
    assert seen == ["none", "bf16", MIX, MIX, "bf16", "none"]
    assert watch.comparisons == 1
    watch = CompressionWatch()
    assert watch.describe("") == "compression: comparing (measured steps: none yet)"
    measured = "(measured steps: none 1 s, bf16 0.9 s, predicted mix {} s)"
    for seconds, said in (
        (0.8, f"the predicted mix: int8 {measured}"),
        (0.9, f"bf16 {measured}; the predicted mix was not faster: int8"),
    ):
        watch = settled({"none": 1.0, "bf16": 0.9, MIX: seconds})
        assert watch.describe("int8") == f"compression: keeps {said.format(seconds)}"


@pytest.mark.parametrize(
    ("times", "drift", "current"),
    [
        ({"none": 1.0, "bf16": 0.9, MIX: 0.8}, 0.0, MIX),
        ({"none": 1.0, "bf16": 0.9, MIX: 0.95}, 0.0, "bf16"),
        ({"none": 0.9, "bf16": 1.0, MIX: 0.95}, 0.0, "none"),
        ({"none": 1.0, "bf16": 0.9, MIX: 0.9 * (1 - NOISE / 2)}, 0.0, "bf16"),
        # A drift hits all alike.
        ({"none": 1.0, "bf16": 0.9, MIX: 0.93}, -0.02, "bf16"),
        ({"none": 1.0, "bf16": 0.9, MIX: 0.86}, 0.05, MIX),
        # Users may allow no 16 bits.
        ({"none": 1.0, MIX: 1.1}, 0.0, "none"),
    ],
)
def test_the_choice_has_to_be_faster_than_all_dense_ones(times, drift, current):
    watch = CompressionWatch(tuple(name for name in times if name != MIX))
    assert settled(times, watch, drift).current == current


@pytest.mark.parametrize("seed", range(200))
def test_never_long_slower_than_the_better_of_the_dense_ones(seed):
    rng = random.Random(seed)
    watch = CompressionWatch()
    sent = {"none": 1.0, "bf16": 0.5, MIX: rng.uniform(0.02, 0.3)}
    coding = {"none": 0.0, "bf16": rng.uniform(0, 0.05), MIX: rng.uniform(0, 0.5)}
    for _ in range(4):
        network = rng.uniform(0, 2)  # it changes, in the middle of a comparison or after it
        times = {name: 1 + network * sent[name] + coding[name] for name in sent}
        best = min(times["none"], times["bf16"])
        for _ in range(AGAIN + rng.randint(12, 24)):
            watch.add(times[watch.current] * rng.uniform(1 - NOISE / 4, 1 + NOISE / 4))
        if watch.settled and watch.current == MIX:
            assert times[MIX] < best
        elif watch.settled:
            assert times[watch.current] < best * (1 + TOLERANCE)


def test_changes_of_what_is_dense_or_chosen_and_of_the_network_are_noticed():
    watch = settled({"none": 1.0, "bf16": 0.9, MIX: 0.8})
    for _ in range(AGAIN - 1):
        watch.add(0.8)
    assert (watch.current, watch.comparisons) == (MIX, 1)
    watch.add(0.8)
    assert settled({"none": 0.5, "bf16": 0.6, MIX: 0.8}, watch).current == "none"
    for _ in range(2 * AGAIN):
        watch.add(0.5)
    assert (watch.current, watch.comparisons) == ("none", 2)
    watch = settled({"none": 1.0, "bf16": 0.9, MIX: 0.85})
    watch.add(0.91)  # once is chance
    watch.add(0.85)
    watch.add(0.91)
    assert (watch.current, watch.settled) == (MIX, True)
    watch.add(0.91)
    assert (watch.current, watch.settled, watch.comparisons) == ("none", False, 2)
    assert settled({"none": 1.0, "bf16": 0.9, MIX: 0.91}, watch).current == "bf16"
    for _ in range(50):
        watch.add(0.9 * (1 + TOLERANCE / 2))
    assert (watch.current, watch.comparisons) == ("bf16", 2)
    watch = settled({"none": 1.0, "bf16": 0.9, MIX: 0.92})
    assert watch.current == "bf16"
    for seconds in (0.9 * (1 + 2 * TOLERANCE),) * 2:
        watch.add(seconds)
    assert settled({"none": 2.0, "bf16": 1.1, MIX: 0.95}, watch).current == MIX
    for seconds in (0.95 * (1 - 2 * TOLERANCE),) * 2:  # faster: dense may be faster still
        watch.add(seconds)
    assert not watch.settled
    assert settled({"none": 0.5, "bf16": 0.6, MIX: 0.76}, watch).current == "none"


def test_times_and_dense_codecs_that_are_none_are_refused():
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(
            ValueError, match=r"a step of .* s \(expected more than 0, and finite\)"
        ):
            CompressionWatch().add(seconds)
    for dense in ((), ("none", MIX)):
        with pytest.raises(ValueError, match=r"dense codecs .* \(expected names"):
            CompressionWatch(dense)
