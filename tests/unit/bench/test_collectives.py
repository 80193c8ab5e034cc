"""The pure parts of the benchmarks: shapes, statistics and the generated tables."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import report
from bench.collectives import jobs, measure
from bench.collectives.rows import BARS, CONTENDERS, ROWS, bar_of, row_of
from bench.shapes import elements, resnet50


def test_resnet50_has_the_published_parameters():
    shapes = resnet50()
    assert len(shapes) == 161
    assert elements(shapes) == 25_557_032
    assert shapes[0] == ("conv1.weight", (64, 3, 7, 7))
    assert dict(shapes)["layer3.0.downsample.0.weight"] == (1024, 512, 1, 1)
    assert shapes[-1] == ("fc.bias", (1000,))
    assert len({name for name, _ in shapes}) == 161


def test_sample_of_a_collective_starts_with_the_last_rank_to_arrive():
    early = measure.Record(starts=[0, 10_000_000], ends=[5_000_000, 12_000_000])
    late = measure.Record(starts=[3_000_000, 10_500_000], ends=[4_000_000, 13_000_000])
    assert measure.samples(row_of("resnet50"), [early, late]) == [2.0, 2.5]


def test_sample_of_a_caller_is_its_own_and_per_operation():
    ranks = [
        measure.Record(starts=[0], ends=[800_000]),
        measure.Record(starts=[0], ends=[400_000]),
    ]
    assert measure.samples(row_of("submit"), ranks) == [2.0, 1.0]


def test_records_of_unequal_length_are_refused():
    ranks = [measure.Record(starts=[0], ends=[1]), measure.Record()]
    with pytest.raises(ValueError, match="shorter"):
        measure.samples(row_of("resnet50"), ranks)


def test_percentile_interpolates():
    assert measure.percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert measure.percentile([0.0, 10.0], 0.95) == pytest.approx(9.5)


def test_interleave_turns_round_and_drops_the_warm_up():
    seen = []

    def contender(name):
        return measure.Contender(
            name,
            run=lambda: seen.append(name),
            finish=lambda: seen.append("finish"),
            check=lambda: seen.append("check"),
        )

    row = row_of("resnet50")
    records = measure.interleave(
        row, [contender("a"), contender("b")], 1, lambda: seen.append("align"), warmup=1
    )
    turn = ["align", "{}", "finish", "check"]
    order = [entry.format(name) for name in "abba" for entry in turn]
    assert seen == order
    assert [len(record.starts) for record in records.values()] == [1, 1]


def _report(ours, theirs):
    def result(name, median):
        return {
            "row": "resnet50",
            "job": "mpirun",
            "contender": name,
            "median": median,
            "p95": 2 * median,
            "cpu_ms": median,
            "samples": [[median], [median]],
        }

    return {
        "results": [result("aiacc", ours), result("gloo", theirs)],
        "idle": [{"job": "mpirun", "seconds": 5.0, "cpu_ms": [0.1, 0.2], "rounds": [0, 0]}],
        "machine": {"cpu": "cpu", "cores": 2, "kernel": "6"},
        "versions": {"torch": "2", "mpich": "5"},
        "load_average": {"before": [0.1], "after": [0.2]},
        "commit": "0123456789abcdef",
        "dirty": False,
        "began": "today",
        "ranks": 2,
        "repeats": 2,
        "command": ["python"],
    }


@pytest.mark.parametrize(("ours", "verdict"), [(20.0, "| yes |"), (21.0, "| **no** |")])
def test_the_summary_judges_the_ratio(ours, verdict):
    table = report.summary(json.loads(json.dumps(_report(ours, 100.0))))
    line = next(line for line in table.splitlines() if "| mpirun |" in line)
    assert f"{ours / 100:.2f}x" in line
    assert line.endswith(verdict)
    assert "exchanged 0 rounds" in table


def test_another_checkout_is_compared_without_the_peers():
    both = _report(30.0, 100.0)
    other = _report(20.0, 100.0)
    both["against"] = {"commit": "fedcba98765", "results": other["results"]}
    lines = report.summary(both).splitlines()
    start = next(i for i, line in enumerate(lines) if "| fedcba987 | here |" in line)
    compared = [line for line in lines[start:] if "| mpirun |" in line]
    assert len(compared) == 1
    assert compared[0].endswith("| 20.0 ms (40.0 ms) | 30.0 ms (60.0 ms) | 1.50x (1.50-1.50) |")


def test_the_command_names_no_path_of_who_has_measured(tmp_path):
    path = tmp_path / "ranks.json"
    words = ["python", "-np", "8", "--against", "/home/me/old", "--json", "/tmp/a.json", "--all"]
    path.write_text(json.dumps({"command": words}))
    expected = ["python", "-np", "8", "--against", "CHECKOUT", "--json", str(path), "--all"]
    assert report.read(path)["command"] == expected


def test_a_checkout_runs_in_its_own_environment(tmp_path):
    job = _job("mpirun", tmp_path)
    assert job.python == tmp_path / ".venv" / "bin" / "python"
    assert replace(job, checkout=jobs.ROOT).python == Path(sys.executable)


def _job(kind, checkout):
    return jobs.Job(kind, ["submit"], 2, 1, 1.0, 1.0, {}, checkout=checkout)


@pytest.mark.parametrize(
    ("kind", "options", "engine"),
    [
        ("aiaccrun", ["-np", "2"], "auto"),
        ("mpirun", ["-np", "2"], "auto"),
        ("torchrun:tcp", ["--standalone", "--nproc-per-node", "2", "--no-python"], "tcp"),
    ],
)
def test_a_launcher_starts_the_ranks(tmp_path, kind, options, engine):
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    launcher = binaries / kind.partition(":")[0]
    with pytest.raises(jobs.JobError, match=f"{launcher} does not exist"):
        jobs.commands(_job(kind, tmp_path), tmp_path)
    launcher.touch()
    [(command, environment)] = jobs.commands(_job(kind, tmp_path), tmp_path)
    worker = [str(binaries / "python"), "-m", "bench.collectives.worker"]
    assert command[: len(options) + 4] == [str(launcher), *options, *worker]
    assert environment["AIACC_ENGINE"] == engine


def test_ranks_without_aiacc_have_no_launcher(tmp_path):
    commands = [command for command, _ in jobs.commands(_job("none", tmp_path), tmp_path)]
    assert [command[-2:] for command in commands] == [["--rank", "0"], ["--rank", "1"]]


def test_more_ranks_are_held_to_the_peer():
    assert bar_of("step", "auto", 2).limit == 0.45
    assert bar_of("step", "auto", 4).limit == 1.0
    assert bar_of("latency_4B", "auto", 4) is None


def test_the_table_replaces_what_is_between_the_markers():
    text = "a\n<!-- bench:collectives -->\nold\n<!-- /bench:collectives -->\nb\n"
    once = report.between_markers(text, "new", "here")
    assert once == text.replace("old", "new")
    assert report.between_markers(once, "new", "here") == once
    with pytest.raises(ValueError, match="here: expected the lines"):
        report.between_markers("nothing", "new", "here")


def test_the_documents_have_the_figures_of_the_result_files(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["report", "--check"])
    assert report.main() == 0, capsys.readouterr().err


def test_bars_name_rows_and_contenders_that_exist():
    keys = {row.key for row in ROWS} | {"submit_cpp"}
    for bar in BARS:
        assert bar.row in keys
        assert bar.peer in {"", *CONTENDERS}
