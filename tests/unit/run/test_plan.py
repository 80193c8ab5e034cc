"""``aiacc-plan`` as its users call it."""

import json
import os
import re
import subprocess
import sys

import pytest

from aiacc.planning import models, planners
from aiacc.planning.cost import Affine
from aiacc.planning.network import NetworkError, affine, network_of
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
    out = plan.out("simulate", "resnet50", "--net", "alpha=30e-6,gbit=10", *options)
    assert [tuple(line.split()[:2]) for line in out.splitlines()[2:]] == [
        (world, name) for world in ("4", "8", "16") for name in ("per_tensor", "optimal")
    ]
    assert "simulated" in out.splitlines()[0]
    assert json.loads(chrome.read_text())["traceEvents"]


def test_planners_and_worlds_count_once(plan):
    pytest.importorskip("matplotlib")
    options = ("--world", "4,8,4", "--planner", "single, single,per_tensor")
    plot = ("--plot", plan.folder / "scaling.png")
    rows = plan.rows("simulate", "vgg16", "--net", "alpha=30e-6,gbit=10", *options, *plot)
    expected = [[world, name] for world in "48" for name in ("single", "per_tensor")]
    assert [row[:2] for row in rows] == expected


def test_all_planners_on_a_published_network(plan):
    rows = plan.rows("simulate", "vgg16", "--net", "10gbe-64")
    assert [row[1] for row in rows] == list(planners.ALL)


def test_a_plan_is_written_and_can_be_read(plan):
    path = plan.folder / "plan.json"
    plan.out("plan", "vgg16", "--net", "10gbe-16", "--output", path)
    made = planners.plan("optimal", models.trace_of("vgg16"), Affine(9.08e-4, 7.40e-10))
    assert Plan.decode(path.read_text()) == made


def test_a_trace_from_a_file(plan):
    path = plan.file("trace.json", models.trace_of("vgg16").encode())
    expected = plan("plan", "vgg16", "--net", "a=1e-3,b=1e-9")
    assert plan("plan", path, "--net", "a=1e-3,b=1e-9") == expected


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
    path = plan.trace(
        ("a", 40, 0.01), ("b", 2000, 0.011), ("c", 4 << 20, 0.02), forward_s=0.005, backward_s=0.015
    )
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
    out = plan.out("explain", "resnet50", "--net", plan.file("net.json", PROBED))
    assert said.format("1MiB", 4) in out
    assert "planned for 0.5 a (0.000505 s)" in out  # of the smallest message
    probed = plan.file("net.json", PROBED | {"lanes": 2, "unit_bytes": 512 << 10})
    assert said.format("512KiB", 2) in plan.out("explain", "resnet50", "--net", probed)


def test_what_would_take_minutes_to_simulate_is_said_not_done(plan):
    said = "as the core would send it: not simulated beyond "
    trace = plan.trace(("a", 10**14, 0.1), ("b", 4, 0.2))
    net = plan.file("net.json", PROBED)
    assert f"{said}8.00 GiB" in plan.out("explain", trace, "--net", net)
    net = plan.file("net.json", PROBED | {"unit_bytes": 256})
    assert f"{said}2.00 MiB" in plan.out("explain", "resnet50", "--net", net)


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


def test_ddp_makes_the_buckets_of_the_plan():
    torch = pytest.importorskip("torch")
    assign = torch.distributed._compute_bucket_assignment_by_size
    for name in ("resnet50", "vgg16", "bert_base"):
        trace = models.trace_of(name)
        made = planners.plan("optimal", trace, Affine(7.04e-3, 9.64e-10))
        limits = [int(limit * (1 << 20)) for limit in bucket_cap_mb_list(trace, made)]
        tensors = [torch.empty(tensor.bytes // 4, device="meta") for tensor in trace.tensors]
        buckets, _ = assign(tensors, limits)
        names = [trace.tensors[index].name for bucket in buckets for index in bucket]
        ends = [len(bucket) for bucket in buckets]
        assert names == [name for bucket in made.buckets for name in bucket]
        assert ends == [len(bucket) for bucket in made.buckets]


def test_ddp_cannot_follow_a_plan_of_several_dtypes():
    rows = [Tensor(f"t{i}", 1 << 20, d, 0.1, 0.0) for i, d in enumerate(("float32", "bfloat16"))]
    trace = Trace("mixed", tuple(rows), 0.1, 0.1, "modelled")
    made = planners.plan("optimal", trace, Affine(1e-3, 1e-9))
    with pytest.raises(ValueError, match="of bfloat16 and float32, for each of which DDP"):
        bucket_cap_mb_list(trace, made)


def test_ddp_on_the_command_line(plan):
    assert plan.out("ddp", "vgg16", "--net", "10gbe-64").startswith("bucket_cap_mb_list=[")
    status, _, err = plan("ddp", "vgg16", "--net", "10gbe-64", "--planner", "decoupled")
    assert (status, "no decoupled schedule" in err) == (2, True)


def test_profile_launches_the_script(monkeypatch):
    launched = []
    monkeypatch.setattr("aiacc.run.main.main", lambda arguments: launched.append(arguments) or 3)
    assert main(["profile", "model.json", "-np", "4", "python", "train.py", "--lr", "1"]) == 3
    expected = ["--profile", "model.json", "-np", "4", "python", "train.py", "--lr", "1"]
    assert launched == [expected]


@pytest.mark.parametrize("arguments", [["-np", "2", "python", "train.py"], ["--engine", "tcp"]])
def test_a_profile_without_a_file_is_told_where_it_goes(plan, arguments):
    status, _, err = plan("profile", *arguments)
    assert (status, f"profile: {arguments[0]} comes before FILE (expected" in err) == (2, True)


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


_SIMULATE = ("simulate", "vgg16", "--net", "10gbe-64", "--planner", "single")
_KFAC = ("simulate", "resnet50", "--kfac")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("plan", "vgg16", "--net", "10gbe-64"), "--output"),
        (_SIMULATE, "--plot"),
        (_SIMULATE, "--chrome"),
        (_KFAC, "--plot"),
        (_KFAC, "--chrome"),
    ],
)
def test_what_cannot_be_written_names_the_option(plan, arguments, option):
    status, _, err = plan(*arguments, option, plan.folder / "none" / "file.svg")
    assert (status, f"cannot write {option}: " in err) == (2, True)
    assert "name another file" in err


def test_an_interrupt_is_no_traceback(plan, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(planners, "plan", interrupt)
    assert plan(*_SIMULATE) == (130, "", "")


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


@pytest.mark.parametrize("command", ["plan", "explain", "ddp"])
@pytest.mark.parametrize("several", ["all", "optimal,single"])
def test_one_planner_at_a_time_but_for_simulate(plan, command, several):
    status, _, err = plan(command, "vgg16", "--net", "10gbe-64", "--planner", several)
    assert status == 2
    assert f"--planner {several} (expected one here); name one, or use aiacc-plan simulate" in err


#: (options of simulate for a published network of layers, text of the error)
REFUSED = [
    ("--net a=1", "b: missing (expected a number, >= 0)"),
    ("--net fast", "network 'fast' (expected a file, one of 10gbe-8"),
    ("--net a=x,b=1", "a: 'x' (expected a number)"),
    ("--net a=1,c=2,b=3", "affine: unknown c"),
    ("--net a=-1,b=3", "a: -1.0 (expected a number, >= 0)"),
    ("--net a=1e308,b=1e308", "a: 1e+308 (expected a number, >= 0 and < 1e+18)"),
    ("--net =", "'=' in '=' (expected NAME=NUMBER, as in a=1e-3,b=8e-10)"),
    ("--net a=1,b=0,", "'' in 'a=1,b=0,' (expected NAME=NUMBER"),
    ("--net gbit=10 --world 8", "alpha: missing (expected a number, >= 0"),
    ("--net a=1,b=3,a=2", "a: comes twice in 'a=1,b=3,a=2'"),
    ("--net alpha=1,gbit=1e-300 --world 4", "gbit: 1e-300 (expected a ban"),
    ("--net 10gbe-64 --planner lanes(2.5)", "planner 'lanes(2.5)' (expec"),
    (f"--net 10gbe-64 --planner lanes({'9' * 400})", "(expected 1 to 64"),
    ("--net a=nan,b=3", "a: nan (expected a number, >= 0)"),
    ("--net a=1,b=3,world=2.5", "world: 2.5 (expected a whole number, >= 1)"),
    ("--net a=1,b=3,capacity=0", "capacity: 0.0 (expected a number, >= 1)"),
    ("--net alpha=1,gbit=0 --world 4", "gbit: 0 (expected a bandwidth"),
    ("--net alpha=1,gbit=-1 --world 4", "gbit: -1.0 (expected a number"),
    ("--net alpha=1,gbit=1", "give --world"),
    ("--net 10gbe-64 --world 8", "measured with 64 ranks, which says"),
    ("--net 10gbe-64 --world x", "--world x (expected 64, 4,8,64"),
    ("--net alpha=1,gbit=1 --world 0..4", "--world 0..4 (expected 64"),
    ("--net alpha=1,gbit=1 --world 8..4", "--world 8..4 (expected 64"),
    ("--net 10gbe-64 --planner best", "planner 'best' (expected"),
    (f"--net alpha=1,gbit=1 --world 4..{10**20}", f"4..{10**20} (expected 1048576 ranks at most)"),
    ("--net a=523,b=8.57e-10", "takes 523 s (expected 60 s at most); a, alpha"),
    ("--net a=5e-4,b=8.57e-4", "1048576 bytes takes 899 s (expected 60 s at"),
    ("--net alpha=30,gbit=10 --world 4", "b in seconds per byte, gbit in"),
]


@pytest.mark.parametrize(("options", "text"), REFUSED)
def test_bad_options_are_named(plan, options, text):
    status, _, err = plan("simulate", "vgg16", *options.split())
    assert status == 2
    assert text in err
    assert len(err.splitlines()) == 1


def test_what_names_no_trace_or_does_not_tell_the_ranks(plan):
    _, _, err = plan("simulate", "alexnet", "--net", "10gbe-64")
    assert "trace 'alexnet' (expected a file, or one of resnet50" in err
    status, _, err = plan("explain", "vgg16", "--compression", "--net", "a=1e-3,b=1e-9")
    assert (status, "does not tell the number of ranks" in err) == (2, True)


@pytest.mark.parametrize(
    ("field", "value", "text"), [("bytes", -1, "-1"), ("ready_s", 10**400, "1" + "0" * 49)]
)
def test_bad_traces_name_file_and_field(plan, field, value, text):
    fields = json.loads(models.trace_of("vgg16").encode())
    fields["tensors"][3][field] = value
    path = plan.file("trace.json", json.dumps(fields))
    status, _, err = plan("explain", path, "--net", "10gbe-64")
    assert (status, f"{path}: tensors[3].{field}: {text} (" in err) == (2, True)


def test_files_in_the_wrong_place_are_named(plan):
    net = plan.file("net.json", affine(1e-3, 1e-9, 4).encode())
    made = plan.file("plan.json", plan.out("plan", "vgg16", "--net", "10gbe-64"))
    trace = plan.file("trace.json", models.trace_of("vgg16").encode())
    for wrong in (made, trace):
        _, _, err = plan("explain", "vgg16", "--net", wrong)
        assert f"{wrong}: the file holds a trace or a plan (expected a network" in err
    _, _, err = plan("explain", net, "--net", "10gbe-64")
    assert "net.json: tensors: no list (expected the trace that" in err
    status, _, err = plan("explain", made, "--net", "10gbe-16")
    assert (status, f"{made}: the file holds a plan (expected the trace" in err) == (2, True)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xff\xfe", "{path}"),
        (b"[" * 100_000, "{path}: .*expected less nesting"),
        (b"9" * 5000, "{path}: line 1: a number of 5000 digits"),
    ],
    ids=["binary", "deep", "long"],
)
def test_files_that_are_no_text_are_named(plan, content, text):
    path = plan.file("file", content)
    for arguments in ((path, "--net", "10gbe-64"), ("vgg16", "--net", path)):
        status, _, err = plan("explain", *arguments)
        assert status == 2
        assert re.search(text.format(path=path), err), err


def points(*pairs):
    names = ("bytes", "seconds")
    rows = [dict(zip(names, pair, strict=False)) for pair in pairs]
    return {"model": "table", "points": rows}


_LINE = {"model": "affine", "a": 1, "b": 1}
_POINT = {"bytes": 1, "seconds": 1.0}
_NEAR = {"model": "analytic", "alpha": 1e-6, "gbit": 100}
_LEVELS = {"model": "hierarchical", "local": 2, "inside": _NEAR, "between": _NEAR}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"model": ["affine"]}, r"model: \['affine'\] .expected one of affine"),
        (_LINE | {"a": True}, "a: True"),
        (_LINE | {"a": 10**400}, "a: 10{49} "),
        (_LINE | {"of": [1]}, "of: '': .1. .expected pairs"),
        (_LINE | {"of": {"gather": [1, 1]}}, "of: 'gather'"),
        (_LINE | {"of": {"broadcast": [1, -1]}}, "of.broadcast.b: -1"),
        (_LINE | {"world": "8"}, "world: '8' .expected a whole number"),
        ({"model": "table"}, "points: expected a list of objects"),
        ({"model": "table", "points": [1]}, "points: expected a list of objects"),
        (points(), "points: none of all_reduce"),
        (points((1, 99.0), (2, 99.0)), "all-reduce of 1048576 bytes takes 99 s"),
        (
            points((1, 1e-3), (2, 2e-3)),
            r"all-reduce of 1048576 bytes takes 1.05e\+03 s \(expected 60 s at most",
        ),
        (
            points((2**20 + 1, 1), (2**20 + 2, 2)),
            r"all-reduce of 1073741824 bytes takes 1.07e\+09 s \(expected 61440 s at most",
        ),
        (points((1, 1.0)) | {"lanes": 65}, "lanes: 65 .*>= 1 and < 65"),
        (points((1, 1.0)) | {"unit_bytes": 255}, "unit_bytes: 255 .*>= 256"),
        (points((1, 1.0)), "sizes .1.0. .expected two or more"),
        (points(("1",)), r"points\[0\].bytes: '1'"),
        (points((1, 1.0), (2,)), r"points\[1\].seconds: missing"),
        ({"model": "table", "points": [_POINT | {"lanes": 0}]}, r"points\[0\].lanes: 0"),
        ({"model": "table", "points": [_POINT | {"operation": 3}]}, r"points\[0\].operation: 3"),
        (_LEVELS | {"local": 0}, "local: 0"),
        (_LEVELS | {"inside": 1}, "inside: 1"),
        (_LEVELS | {"between": None}, "between: None"),
        ({"version": None}, r"version: None \(expected 1\)"),
    ],
)
def test_bad_networks_name_file_and_field(plan, fields, text):
    path = plan.file("net.json", fields)
    with pytest.raises(NetworkError, match=f"{path}: .*{text}"):
        network_of(str(path))


def test_networks_there_and_back(plan):
    def read(content):
        return network_of(str(plan.file("net.json", content)))

    one = read(affine(1e-3, 1e-9, 4).encode())
    assert one.cost(4) == Affine(1e-3, 1e-9)
    with pytest.raises(NetworkError, match="says nothing about 8"):
        one.cost(8)
    measured = read(points((1 << 20, 1.0), (3 << 20, 2.0)) | {"world": 2})
    assert measured.cost().time("all_reduce", 2 << 20) == 1.5
    between = {"model": "analytic", "alpha": 1e-5, "gbit": 10}
    both = read(_LEVELS | {"local": 4, "between": between})
    hosts = {ranks: both.cost(ranks).between.ranks for ranks in (2, 4, 5, 16)}
    assert hosts == {2: 1, 4: 1, 5: 2, 16: 4}
    with pytest.raises(NetworkError, match=r"line 2: no JSON .*as `aiacc-plan probe` writes"):
        read('{"version": 1,\n"model": }')
