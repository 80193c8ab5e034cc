"""The number of lanes that a job settles on, from made-up durations of its steps."""

import pytest

from aiacc.autotune.lane_search import TOLERANCE, LaneSearch, candidates, choose


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({1: [1.0], 2: [1.0], 4: [1.0]}, 1),  # no gain: the fewest
        ({1: [4.0], 2: [2.0], 4: [1.0]}, 4),
        ({1: [1.01], 2: [0.995], 4: [1.0]}, 1),  # within the tolerance
        ({1: [1.05], 2: [1.01], 4: [1.0]}, 2),
        ({1: [1.0, 9.0, 1.0], 2: [1.2, 1.2, 1.2]}, 1),  # one slow step does not decide
    ],
)
def test_choice(seconds, expected):
    chosen = choose(seconds)
    assert chosen == expected
    medians = {lanes: sorted(values)[len(values) // 2] for lanes, values in seconds.items()}
    assert medians[chosen] <= min(medians.values()) * (1 + TOLERANCE)


def _settle(search, seconds_of):
    """Feed the search until it is done; the numbers of lanes of all steps."""
    used = []
    while not search.done:
        used.append(search.lanes)
        search.add(seconds_of(len(used), search.lanes))
    return used


def test_search_finds_what_is_fastest_though_steps_drift():
    found = {most: candidates(most) for most in (1, 2, 6, 8)}
    assert found == {1: [1], 2: [2, 1], 6: [6, 4, 2, 1], 8: [8, 4, 2, 1]}
    # A capped flow: time falls with lanes up to 4. Every step is a bit slower than the last.
    search = LaneSearch(8)
    used = _settle(search, lambda step, lanes: 1 / min(lanes, 4) * (1 + 0.001 * step))
    assert search.lanes == 4
    assert set(used) == {1, 2, 4, 8}
    counts = {lanes: len(samples) for lanes, samples in search.seconds.items()}
    assert len(set(counts.values())) == 1


def test_neither_steps_right_after_a_change_nor_after_the_end_count():
    search = LaneSearch(2, steps=3, settle=2, passes=1)
    used = []

    def seconds(step, lanes):
        used.append(lanes)
        return 100.0 if used.count(lanes) <= 2 else float(lanes)

    _settle(search, seconds)
    search.add(99.0)
    assert search.seconds == {2: [2.0] * 3, 1: [1.0] * 3}
    assert search.lanes == 1
