import functools
import json

import pytest

from aiacc.run.merge_timelines import merge_events
from tests.support.timelines import check_rows


def timeline(rank, epoch, boot, *times):
    first = {
        "name": "process_name",
        "ph": "M",
        "pid": rank,
        "args": {"name": f"rank {rank}", "start_time_since_epoch_in_micros": epoch, "boot": boot},
    }
    events = [
        {"name": f"x{i}\u2028\x85\x1c", "ph": "X", "pid": rank, "tid": 0, "ts": time, "dur": 1.5}
        for i, time in enumerate(times)
    ]
    return [first, *events]


def text_of(events):
    return "[\n" + ",\n".join(json.dumps(event, ensure_ascii=False) for event in events) + "\n]\n"


def written(path, events):
    path.write_text(text_of(events), encoding="utf-8")
    return path


def times_by_rank(events):
    return {
        rank: [event["ts"] for event in events if event["pid"] == rank and "ts" in event]
        for rank in {event["pid"] for event in events}
    }


@pytest.mark.parametrize(
    ("timelines", "times"),
    [
        # Host b came up 1 s after host a: its clock is behind by that.
        (
            [(0, 5_000_000, "boot-a", 100, 300), (1, 6_000_000, "boot-b", 100)],
            {0: [0, 200], 1: [1_000_000]},
        ),
        # Of an earlier version, of today: a float has 0.25 us there.
        (
            [(0, 1_764_000_000_000_000, "boot", 10.125, 11.625, 13.125), (1, 0, "boot", 11)],
            {0: [0, 1, 3], 1: [1]},
        ),
        # Ranks of one host share its clock although the time of day was set.
        ([(0, 5_000_000, "boot", 100), (1, 99_000_000, "boot", 101)], {0: [0], 1: [1]}),
    ],
)
def test_hosts_are_aligned_by_the_time_of_day(timelines, times):
    merged = merge_events({str(one[0]): timeline(*one) for one in timelines})
    assert times_by_rank(merged) == times
    check_rows(merged)


@pytest.fixture
def merge(launch):
    """Merges files into the first one: exit status, standard output and standard error."""
    return functools.partial(launch, "--merge-timelines")


def test_the_command_writes_one_trace_with_a_process_per_rank(tmp_path, merge):
    at = {rank: timeline(rank, 0, "boot", 10 * rank) for rank in (2, 0, 1)}
    files = [written(tmp_path / f"t{rank}.json", events) for rank, events in at.items()]
    target = tmp_path / "all.json"
    status, out, _ = merge(target, *files)
    assert (status, "3 timelines" in out) == (0, True)
    merged = json.loads(target.read_text())
    assert times_by_rank(merged) == {0: [0], 1: [10], 2: [20]}
    names = [event["args"]["name"] for event in merged if event["name"] == "process_name"]
    assert names == ["rank 0", "rank 1", "rank 2"]
    (tmp_path / "same.json").symlink_to(files[0])
    for same in (files[0], tmp_path / "same.json"):
        status, _, said = merge(target, files[0], same)
        assert (status, f"and {same} are the same file" in said) == (2, True), said


def test_a_timeline_that_was_cut_off_counts_up_to_there(tmp_path, merge):
    path = written(tmp_path / "t.json", timeline(0, 0, "boot", 1, 2, 3))
    path.write_text(path.read_text()[:-20])
    other = written(tmp_path / "t.rank1.json", timeline(1, 0, "boot", 4))
    target = tmp_path / "all.json"
    for _ in range(2):  # what was merged before may be overwritten
        assert merge(target, path, other)[0] == 0
        assert times_by_rank(json.loads(target.read_text())) == {0: [0, 1], 1: [3]}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hello\nworld\n", "t.json:1"),
        ("[\n[1, 2]\n]\n", "expected an event"),
        ("[\n]\n", "does not tell its time of day"),
        ('[\n{"name": "x", "ph": "X", "ts": 1}\n]\n', "does not tell its time of day"),
        (text_of(timeline(1, 0, "boot", 1)), "/t.json and {folder}/t.rank1.json are both of"),
    ],
)
def test_what_is_no_timeline_is_refused(content, expected, tmp_path, merge):
    path = tmp_path / "t.json"
    path.write_text(content)
    other = written(tmp_path / "t.rank1.json", timeline(1, 0, "boot", 4))
    status, _, err = merge(tmp_path / "all.json", path, other)
    assert (status, expected.format(folder=tmp_path) in err) == (2, True), err
    assert not (tmp_path / "all.json").exists()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("cut", [0, 20])
def test_a_rank_s_timeline_is_not_overwritten(again, cut, tmp_path, merge, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["t.json", "t.rank1.json", "t.rank2.json"]
    for rank, name in enumerate(names):
        written(tmp_path / name, timeline(rank, 0, "boot", 1, 2))
    (tmp_path / "t.json").write_text(content := (tmp_path / "t.json").read_text()[: -cut or None])
    inputs = ["./t.json", *names[1:]] if again else names[1:]
    status, _, said = merge("t.json", *inputs)
    assert (status, "t.json is the timeline of a rank" in said) == (2, True)
    assert "--merge-timelines OUT" in said
    assert (tmp_path / "t.json").read_text() == content
