"""``aiacc-plan`` as its users call it."""

import json
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest

from aiacc.kfac import published
from aiacc.kfac.costs import InversionTable, Polynomial, inversion_of
from aiacc.planning import models, planners
from aiacc.planning.cost import Affine
from aiacc.planning.plan import Plan, bucket_cap_mb_list
from aiacc.planning.trace import Tensor, Trace
from aiacc.run.plan import main


def table(a, b, sizes):
    """Fields of a network that was measured with these sizes."""
    return {"model": "table", "points": [{"bytes": n, "seconds": a + b * n} for n in sizes]}


PROBED = table(1e-3, 1e-8, [4**n for n in range(5, 14)])


def test_simulating_many_ranks(plan):
    chrome = plan.folder / "trace.json"
    options = ("--world", "4..16", "--planner", "per_tensor,optimal", "--chrome", chrome)
    head, rows = plan.table("simulate", "resnet50", "--net", "alpha=30e-6,gbit=10", *options)
    assert [row[:2] for row in rows] == [
        [world, name] for world in ("4", "8", "16") for name in ("per_tensor", "optimal")
    ]
    assert "simulated" in head[0]
    assert json.loads(chrome.read_text())["traceEvents"]


def test_planners_and_worlds_count_once(plan):
    pytest.importorskip("matplotlib")
    options = ("--world", "4,8,4", "--planner", "single, single,per_tensor")
    plot = ("--plot", plan.folder / "scaling.png")
    rows = plan.rows("simulate", "vgg16", "--net", "alpha=30e-6,gbit=10", *options, *plot)
    expected = [[world, name] for world in "48" for name in ("single", "per_tensor")]
    assert [row[:2] for row in rows] == expected
    rows = plan.rows("simulate", "vgg16", "--net", "10gbe-64")
    assert [row[1] for row in rows] == list(planners.ALL)
    steps = {row[1]: (float(row[3]), float(row[4])) for row in rows}  # and bounds
    assert steps["optimal"][0] == steps["optimal"][1]
    assert steps["per_tensor"][1] < steps["lanes(4)"][1] <= steps["lanes(4)"][0]


def test_a_plan_is_written_and_can_be_read(plan):
    path = plan.folder / "plan.json"
    trace = plan.file("trace.json", models.trace_of("vgg16").encode())
    made = planners.plan("optimal", models.trace_of("vgg16"), Affine(9.08e-4, 7.40e-10))
    for model in ("vgg16", trace):
        plan.out("plan", model, "--net", "10gbe-16", "--output", path)
        assert Plan.decode(path.read_text()) == made


#: (options of explain beside the network of layers, what it prints)
EXPLAINED = [
    (
        ["--net", "10gbe-64"],
        [
            "optimal: 9 buckets, step 260.2 ms",
            "ends here: with bucket 1 in it, the step would take",
            "with bucket 5 in it, the step would be as long, but bucket 5 there 2.67 ms later",
            "less time to spare",
            "planned for 0.25 a",
        ],
    ),
    (["--net", "10gbe-64", "--planner", "decoupled"], ["bucket 0:"]),
    (["--net", "alpha=30e-6,gbit=10", "--world", "64"], ["planned for 4 a (0.0151 s)"]),
    (
        ["--net", "alpha=30e-6,gbit=10", "--world", "1024", "--planner", "lanes(4)"],
        ["; no plan of lanes(4) takes less than 3"],
    ),
    (
        ["--net", "alpha=30e-6,gbit=10", "--world", "16", "--compression"],
        [
            "16 ranks, as if each were a host; 97.49 MiB of float32 in ",
            "sparse codecs send less than bf16 below density 0.0312",
        ],
    ),
    (["--compression", "--net", "a=1e-3,b=1e-9,world=8"], ["8 ranks"]),
]


@pytest.mark.parametrize(("options", "texts"), EXPLAINED)
def test_explaining(plan, options, texts):
    out = plan.out("explain", "resnet50", *options)
    assert all(text in out for text in texts), out


def test_explaining_one_and_few(plan):
    rows = (("a", 40, 0.01), ("b", 2000, 0.011), ("c", 4 << 20, 0.02))
    path = plan.trace(*rows, forward_s=0.005, backward_s=0.015)
    fast = ("explain", path, "--net", "alpha=1e-9,gbit=100", "--world", "2")
    out = plan.out(*fast)
    for number, size, name in ((0, "40 bytes", "a"), (1, "1.95 KiB", "b"), (2, "4.00 MiB", "c")):
        assert f"bucket {number}: 1 tensor, {size}, to {name}: ready" in out
    assert "ends here: with bucket 1 in it, next to nothing would change" in out
    assert "single: 1 bucket, step" in plan.out(*fast, "--planner", "single")


def test_a_wrong_startup_is_explained_for_every_kind_of_network(plan):
    a, b = 7.04e-3, 9.64e-10
    measured = plan.file("net.json", table(a, b, (1, 1 << 30)))
    ring = f"alpha={a / 126},gbit={8e-9 * 126 / 64 / b}"
    lines = []
    for network in (["10gbe-64"], [ring, "--world", "64"], [measured]):
        out = plan.out("explain", "resnet50", "--net", *network)
        lines.append([line for line in out.splitlines() if "planned for" in line])
    assert len(lines[0]) == 4
    assert lines[0] == lines[1] == lines[2]


def test_explaining_on_a_probed_network_tells_how_the_core_sends_it(plan):
    said = "as the core would send it, with AIACC_UNIT_BYTES={} and AIACC_LANES={}: "
    net = plan.file("net.json", PROBED)
    out = plan.out("explain", "resnet50", "--net", net)
    assert said.format("1MiB", 4) in out
    assert "planned for 0.5 a (0.000505 s)" in out  # of the smallest message
    # What would take minutes to simulate is said, not done.
    said_not_done = "as the core would send it: not simulated beyond "
    trace = plan.trace(("a", 10**14, 0.1), ("b", 4, 0.2))
    assert f"{said_not_done}8.00 GiB" in plan.out("explain", trace, "--net", net)
    for sending, text in (
        ({"lanes": 2, "unit_bytes": 512 << 10}, said.format("512KiB", 2)),
        ({"unit_bytes": 256}, f"{said_not_done}2.00 MiB"),
    ):
        probed = plan.file("net.json", PROBED | sending)
        assert text in plan.out("explain", "resnet50", "--net", probed)


def test_a_step_that_takes_no_time_is_explained(plan):
    path = plan.trace(("a", 4, 0.0), ("b", 4, 0.0), forward_s=0.0, backward_s=0.0)
    assert "all plans are alike" in plan.out("explain", path, "--net", "a=0,b=0")
    (row,) = plan.rows("simulate", path, "--net", "a=0,b=0", "--planner", "single")
    assert row[-1] == "100.0%"


def test_explaining_compression_on_hosts(plan):
    levels = {
        name: {"model": "analytic", "alpha": 1e-5, "gbit": gbit}
        for name, gbit in (("inside", 1000), ("between", 3))
    }
    path = plan.file("net.json", {"model": "hierarchical", "local": 8, **levels})
    arguments = ("explain", "resnet50", "--net", path, "--compression", "--world")
    assert plan(*arguments, "128")[1].startswith("128 ranks on 16 hosts; ")
    assert "no codec pays" in plan(*arguments, "8")[1]
    assert "12 ranks on hosts of 8 (expected a multiple" in plan(*arguments, "12")[2]


def test_ddp_makes_the_buckets_of_the_plan(plan):
    torch = pytest.importorskip("torch")
    assign = torch.distributed._compute_bucket_assignment_by_size
    for name in ("resnet50", "vgg16", "bert_base"):
        trace = models.trace_of(name)
        made = planners.plan("optimal", trace, Affine(7.04e-3, 9.64e-10))
        exact = bucket_cap_mb_list(trace, made)
        printed = plan.out("ddp", name, "--net", "10gbe-64").removeprefix("bucket_cap_mb_list=")
        assert json.loads(printed) == pytest.approx(exact, abs=1e-6)
        limits = [int(limit * (1 << 20)) for limit in exact]
        tensors = [torch.empty(tensor.bytes // 4, device="meta") for tensor in trace.tensors]
        buckets, _ = assign(tensors, limits)
        names = [[trace.tensors[index].name for index in bucket] for bucket in buckets]
        assert names == [list(bucket) for bucket in made.buckets]


def test_ddp_cannot_follow_a_plan_of_several_dtypes():
    rows = [Tensor(f"t{i}", 1 << 20, d, 0.1, 0.0) for i, d in enumerate(("float32", "bfloat16"))]
    trace = Trace("mixed", tuple(rows), 0.1, 0.1, "modelled")
    made = planners.plan("optimal", trace, Affine(1e-3, 1e-9))
    with pytest.raises(ValueError, match="of bfloat16 and float32, for each of which DDP"):
        bucket_cap_mb_list(trace, made)


def test_profile_launches_the_script(monkeypatch):
    launched = []
    monkeypatch.setattr("aiacc.run.main.main", lambda arguments: launched.append(arguments) or 3)
    assert main(["profile", "model.json", "-np", "4", "python", "train.py", "--lr", "1"]) == 3
    expected = ["--profile", "model.json", "-np", "4", "python", "train.py", "--lr", "1"]
    assert launched == [expected]


def test_a_profile_replaces_no_script(capfd, tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print('precious')")
    launch = ["-np", "1", "--dry-run", "true"]
    assert main(["profile", str(path), *launch]) == 2
    assert f"profile {path}: the file holds no trace, and would be" in capfd.readouterr().err
    for text in ("", models.trace_of("vgg16").encode()):
        path.write_text(text)
        main(["profile", str(path), *launch])
        assert "would be overwritten" not in capfd.readouterr().err


def test_a_profile_that_nobody_writes_is_said_and_no_success(monkeypatch, plan):
    path = plan.file("model.json", "of an earlier run")
    monkeypatch.setattr("aiacc.run.main.main", lambda _: 0)
    status, _, err = plan("profile", path, "-np", "2", "python", "train.py")
    assert status == 1
    assert "model.json was not written on this host (expected 13 steps" in err
    monkeypatch.setattr("aiacc.run.main.main", lambda _: path.unlink() or path.touch() or 0)
    assert plan("profile", path, "python", "train.py")[0] == 0


def test_an_interrupt_is_no_traceback(plan, monkeypatch):
    monkeypatch.setattr(planners, "plan", Mock(side_effect=KeyboardInterrupt))
    assert plan("simulate", "vgg16", "--net", "10gbe-64") == (130, "", "")


_NO_SPACE = "aiacc-plan: cannot print: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(("nobody_reads", "said"), [(True, ""), (False, _NO_SPACE)])
def test_lines_that_cannot_be_printed_are_no_traceback(nobody_reads, said):
    read, write = os.pipe()
    os.close(read)
    if not nobody_reads:
        os.close(write)
        write = os.open("/dev/full", os.O_WRONLY)
    command = [sys.executable, "-m", "aiacc.run.plan", "networks"]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, said)


KFAC = ("simulate", "resnet50", "--kfac")


def test_the_published_cluster(plan):
    head, rows = plan.table(*KFAC)
    assert "simulated" in head[0]
    assert [row[1] for row in rows] == ["D-KFAC", "MPD-KFAC", "SPD-KFAC", "ours"]
    for row, seconds in zip(rows, published.MEASURED["resnet50"].totals_s, strict=False):
        assert float(row[2]) == pytest.approx(seconds * 1e3, rel=0.1)
        assert float(row[7]) == pytest.approx(seconds * 1e3, abs=0.06)
    assert len(rows[3]) == 7
    assert float(rows[3][2]) == pytest.approx(622, abs=1)  # by parts of one size, as they are sent
    assert float(rows[3][2]) < min(float(row[2]) for row in rows[:3])
    for row in rows:  # parts make up the step
        step, exposed, inverting, sending = map(float, row[2:6])
        assert step == pytest.approx(132.0 + 211.5 + exposed + inverting + sending, abs=0.3)


def test_other_networks_numbers_of_ranks_overlaps_and_inversions(plan):
    head, rows = plan.table(*KFAC, "--net", "alpha=30e-6,gbit=10", "--world", "1,4")
    assert [row[0] for row in rows] == ["1"] * 4 + ["4"] * 4
    assert len({row[2] for row in rows[:4]}) == 1  # nothing to distribute
    assert "published" not in head[1]
    four = (*KFAC, "--net", "a=1e-3,b=1e-9,world=4")
    assert [row[0] for row in plan.rows(*four)] == ["4"] * 4
    exposed = [float(plan.rows(*four, "--overlap", share)[2][3]) for share in ("0", "0.5", "1")]
    assert exposed == sorted(exposed, reverse=True)
    assert exposed[0] > exposed[2]
    path = plan.file("inversions.json", "[[64, 1e-4], [5000, 1e-4]]")
    rows = plan.rows(*KFAC, "--inversion", path)
    assert float(rows[0][4]) == pytest.approx(108 * 0.1, abs=0.06)
    assert inversion_of(str(path)) == InversionTable(((64, 1e-4), (5000, 1e-4)))
    assert inversion_of("c0=1e-4,c2=0,c3=1e-13") == Polynomial(1e-4, 0.0, 1e-13)


def test_help_names_what_may_be_asked(capsys):
    for command, said in (
        ([], "aiacc-plan simulate resnet50 --kfac"),
        (["simulate"], "--inversion"),
    ):
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        assert said in capsys.readouterr().out


def test_rare_factors_and_inverses(plan):
    head, rows = plan.table(*KFAC, "--every", "10,100")
    assert "every 10 and inverses every 100 steps" in "".join(head)
    assert "published" not in head[1]
    for one, other in zip(plan.rows(*KFAC), rows, strict=True):
        assert float(other[4]) == pytest.approx(float(one[4]) / 100, abs=0.06)
        assert float(other[5]) == pytest.approx(float(one[5]) / 100, abs=0.06)
        # SGD's step and a tenth of what factors take, built and sent.
        sgd = 196.8
        factors = float(one[2]) - sgd - float(one[4]) - float(one[5])
        expected = sgd + factors / 10 + float(other[4]) + float(other[5])
        assert float(other[2]) == pytest.approx(expected, abs=0.3)


def test_a_timeline_and_a_picture_of_ours(plan):
    path, picture = plan.folder / "kfac.json", plan.folder / "kfac.svg"
    options = ("--net", "a=1e-3,b=1e-9,world=2", "--chrome", path, "--plot", picture)
    rows = plan.rows(*KFAC, *options)
    assert "<svg" in picture.read_text()
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert sorted(names) == ["compute", "network", "rank 0", "rank 1"]
    end_us = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert end_us / 1e3 == pytest.approx(float(rows[3][2]), abs=0.06)
