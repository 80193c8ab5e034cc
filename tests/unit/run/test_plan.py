"""``aiacc-plan`` as its users call it."""

import json
import os
import subprocess
import sys

import pytest

from aiacc.planning import models, planners
from aiacc.planning.cost import Affine
from aiacc.planning.network import NetworkError, affine, network_of
from aiacc.planning.plan import Plan, bucket_cap_mb_list
from aiacc.planning.trace import Tensor, Trace
from aiacc.run.plan import main


def run(capsys, *arguments):
    """Exit status, standard output and standard error."""
    status = main(arguments)
    output = capsys.readouterr()
    return status, output.out, output.err


def test_simulating_many_ranks(capsys, tmp_path):
    status, out, _ = run(
        capsys, "simulate", "resnet50", "--net", "alpha=30e-6,gbit=10", "--world", "4..16",
        "--planner", "per_tensor,optimal", "--chrome", str(tmp_path / "trace.json"),
    )  # fmt: skip
    assert status == 0
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [(row[0], row[1]) for row in rows] == [
        (world, name) for world in ("4", "8", "16") for name in ("per_tensor", "optimal")
    ]
    assert "simulated" in out.splitlines()[0]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_all_planners_on_a_published_network(capsys):
    status, out, _ = run(capsys, "simulate", "vgg16", "--net", "10gbe-64")
    assert status == 0
    assert [line.split()[1] for line in out.splitlines()[2:]] == list(planners.ALL)


def test_a_plan_is_written_and_can_be_read(capsys, tmp_path):
    path = tmp_path / "plan.json"
    status, _, _ = run(capsys, "plan", "vgg16", "--net", "10gbe-16", "--output", str(path))
    assert status == 0
    made = planners.plan("optimal", models.trace_of("vgg16"), Affine(9.08e-4, 7.40e-10))
    assert Plan.decode(path.read_text()) == made


def test_a_trace_from_a_file(capsys, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(models.trace_of("vgg16").encode())
    expected = run(capsys, "plan", "vgg16", "--net", "a=1e-3,b=1e-9")
    assert run(capsys, "plan", str(path), "--net", "a=1e-3,b=1e-9") == expected


def test_explaining(capsys):
    status, out, _ = run(capsys, "explain", "resnet50", "--net", "10gbe-64")
    assert status == 0
    assert "optimal: 9 buckets, step 260.2 ms" in out
    assert "ends here: with bucket 1 in it, the step would take" in out
    assert "with bucket 5 in it, the step would be as long, but bucket 5 there 2.67 ms later" in out
    assert "less time to spare" in out
    assert "planned for 0.25 a" in out
    status, out, _ = run(
        capsys, "explain", "resnet50", "--net", "10gbe-64", "--planner", "decoupled"
    )
    assert status == 0
    assert "bucket 0:" in out
    formula = ["--net", "alpha=30e-6,gbit=10", "--world", "64"]
    status, out, _ = run(capsys, "explain", "resnet50", *formula)
    assert status == 0
    assert "planned for 4 a (0.0151 s)" in out


def test_explaining_one_and_few(capsys, tmp_path):
    path = tmp_path / "trace.json"
    rows = (("a", 40, 0.01), ("b", 2000, 0.011), ("c", 4 << 20, 0.02))
    tensors = tuple(Tensor(name, size, "float32", ready, 0.0) for name, size, ready in rows)
    path.write_text(Trace("few", tensors, 0.005, 0.015, "measured").encode())
    fast = ("explain", str(path), "--net", "alpha=1e-9,gbit=100", "--world", "2")
    _, out, _ = run(capsys, *fast)
    assert "bucket 0: 1 tensor, 40 bytes, to a: ready" in out
    assert "bucket 1: 1 tensor, 1.95 KiB, to b: ready" in out
    assert "bucket 2: 1 tensor, 4.00 MiB, to c: ready" in out
    assert "ends here: with bucket 1 in it, next to nothing would change" in out
    _, out, _ = run(capsys, *fast, "--planner", "single")
    assert "single: 1 bucket, step" in out


def test_a_wrong_startup_is_explained_for_every_kind_of_network(capsys, tmp_path):
    a, b = 7.04e-3, 9.64e-10
    path = tmp_path / "net.json"
    points = [{"bytes": size, "seconds": a + b * size} for size in (1, 1 << 30)]
    path.write_text(json.dumps({"version": 1, "model": "table", "points": points}))
    ring = f"alpha={a / 126},gbit={8e-9 * 126 / 64 / b}"
    networks = (["10gbe-64"], [ring, "--world", "64"], [str(path)])
    lines = []
    for network in networks:
        status, out, _ = run(capsys, "explain", "resnet50", "--net", *network)
        assert status == 0
        lines.append([line for line in out.splitlines() if "planned for" in line])
    assert len(lines[0]) == 4
    assert lines[0] == lines[1] == lines[2]


def test_explaining_on_a_probed_network_tells_how_the_core_sends_it(capsys, tmp_path):
    path = tmp_path / "net.json"
    points = [{"bytes": 4**n, "seconds": 1e-3 + 1e-8 * 4**n} for n in range(5, 14)]
    path.write_text(json.dumps({"version": 1, "model": "table", "points": points}))
    status, out, _ = run(capsys, "explain", "resnet50", "--net", str(path))
    assert status == 0
    assert "as the core would send it, with AIACC_UNIT_BYTES=1MiB and AIACC_LANES=4: " in out
    assert "planned for 0.5 a (0.000505 s)" in out  # of the smallest message
    job = {"lanes": 2, "unit_bytes": 512 << 10}
    path.write_text(json.dumps({"version": 1, "model": "table", "points": points, **job}))
    _, out, _ = run(capsys, "explain", "resnet50", "--net", str(path))
    assert "as the core would send it, with AIACC_UNIT_BYTES=512KiB and AIACC_LANES=2: " in out


def test_what_would_take_minutes_to_simulate_is_said_not_done(capsys, tmp_path):
    net, trace = tmp_path / "net.json", tmp_path / "trace.json"
    points = [{"bytes": 4**n, "seconds": 1e-3 + 1e-8 * 4**n} for n in range(5, 14)]
    net.write_text(json.dumps({"version": 1, "model": "table", "points": points}))
    tensors = Tensor("a", 10**14, "float32", 0.1, 0.0), Tensor("b", 4, "float32", 0.2, 0.0)
    trace.write_text(Trace("net", tensors, 0.1, 0.1, "measured").encode())
    status, out, _ = run(capsys, "explain", str(trace), "--net", str(net))
    assert status == 0
    assert "as the core would send it: not simulated beyond 8.00 GiB" in out
    net.write_text(net.read_text().replace("{", '{"unit_bytes": 256, ', 1))
    status, out, _ = run(capsys, "explain", "resnet50", "--net", str(net))
    assert (status, "not simulated beyond 2.00 MiB" in out) == (0, True)


def test_a_step_that_takes_no_time_is_explained(capsys, tmp_path):
    path = tmp_path / "trace.json"
    tensors = Tensor("a", 4, "float32", 0.0, 0.0), Tensor("b", 4, "float32", 0.0, 0.0)
    path.write_text(Trace("none", tensors, 0.0, 0.0, "modelled").encode())
    status, out, _ = run(capsys, "explain", str(path), "--net", "a=0,b=0")
    assert status == 0
    assert "all plans are alike" in out
    status, out, _ = run(capsys, "simulate", str(path), "--net", "a=0,b=0", "--planner", "single")
    assert status == 0
    assert out.split()[-1] == "100.0%"


def test_explaining_compression(capsys, tmp_path):
    status, out, _ = run(
        capsys, "explain", "resnet50", "--net", "alpha=30e-6,gbit=10", "--world", "16",
        "--compression",
    )  # fmt: skip
    assert status == 0
    assert out.startswith("16 ranks, as if each were a host; 97.49 MiB of float32 in ")
    assert "sparse codecs send less than bf16 below density 0.0312" in out
    path = tmp_path / "net.json"
    levels = {"model": "hierarchical", "local": 8}
    for name, gbit in (("inside", 1000), ("between", 3)):
        levels[name] = {"model": "analytic", "alpha": 1e-5, "gbit": gbit}
    path.write_text(json.dumps({"version": 1, **levels}))
    arguments = ("explain", "resnet50", "--net", str(path), "--compression", "--world")
    assert run(capsys, *arguments, "128")[1].startswith("128 ranks on 16 hosts; ")
    assert "no codec pays" in run(capsys, *arguments, "8")[1]
    assert "12 ranks on hosts of 8 (expected a multiple" in run(capsys, *arguments, "12")[2]


def test_explaining_compression_needs_the_number_of_ranks(capsys):
    arguments = ("explain", "vgg16", "--compression", "--net")
    status, out, _ = run(capsys, *arguments, "a=1e-3,b=1e-9,world=8")
    assert (status, out.partition(" ranks")[0]) == (0, "8")
    status, _, err = run(capsys, *arguments, "a=1e-3,b=1e-9")
    assert (status, "does not tell the number of ranks" in err) == (2, True)


def test_ddp_makes_the_buckets_of_the_plan():
    torch = pytest.importorskip("torch")
    assign = torch.distributed._compute_bucket_assignment_by_size
    for name in ("resnet50", "vgg16", "bert_base"):
        trace = models.trace_of(name)
        plan = planners.plan("optimal", trace, Affine(7.04e-3, 9.64e-10))
        limits = [int(limit * (1 << 20)) for limit in bucket_cap_mb_list(trace, plan)]
        tensors = [torch.empty(tensor.bytes // 4, device="meta") for tensor in trace.tensors]
        buckets, _ = assign(tensors, limits)
        names = [trace.tensors[index].name for bucket in buckets for index in bucket]
        ends = [len(bucket) for bucket in buckets]
        assert names == [name for bucket in plan.buckets for name in bucket]
        assert ends == [len(bucket) for bucket in plan.buckets]


def test_ddp_cannot_follow_a_plan_of_several_dtypes():
    rows = [Tensor(f"t{i}", 1 << 20, d, 0.1, 0.0) for i, d in enumerate(("float32", "bfloat16"))]
    trace = Trace("mixed", tuple(rows), 0.1, 0.1, "modelled")
    plan = planners.plan("optimal", trace, Affine(1e-3, 1e-9))
    with pytest.raises(ValueError, match="of bfloat16 and float32, for each of which DDP"):
        bucket_cap_mb_list(trace, plan)


def test_profile_launches_the_script(monkeypatch):
    launched = []
    monkeypatch.setattr("aiacc.run.main.main", lambda arguments: launched.append(arguments) or 3)
    assert main(["profile", "model.json", "-np", "4", "python", "train.py", "--lr", "1"]) == 3
    expected = ["--profile", "model.json", "-np", "4", "python", "train.py", "--lr", "1"]
    assert launched == [expected]


@pytest.mark.parametrize("arguments", [["-np", "2", "python", "train.py"], ["--engine", "tcp"]])
def test_a_profile_without_a_file_is_told_where_it_goes(capsys, arguments):
    status, _, err = run(capsys, "profile", *arguments)
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


def test_a_profile_that_nobody_writes_is_said_and_no_success(monkeypatch, capsys, tmp_path):
    path = tmp_path / "model.json"
    path.write_text("of an earlier run")
    monkeypatch.setattr("aiacc.run.main.main", lambda _: 0)
    status, _, err = run(capsys, "profile", str(path), "-np", "2", "python", "train.py")
    assert (status, "model.json was not written on this host (expected 13 steps" in err) == (
        1,
        True,
    )
    monkeypatch.setattr("aiacc.run.main.main", lambda _: path.unlink() or path.touch() or 0)
    assert run(capsys, "profile", str(path), "python", "train.py")[0] == 0


_PLAN = ("plan", "vgg16", "--net", "10gbe-64")
_SIMULATE = ("simulate", "vgg16", "--net", "10gbe-64", "--planner", "single")
_KFAC = ("simulate", "resnet50", "--kfac")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (_PLAN, "--output"),
        (_SIMULATE, "--plot"),
        (_SIMULATE, "--chrome"),
        (_KFAC, "--plot"),
        (_KFAC, "--chrome"),
    ],
)
def test_what_cannot_be_written_names_the_option(capsys, tmp_path, arguments, option):
    status, _, err = run(capsys, *arguments, option, str(tmp_path / "none" / "file.svg"))
    assert (status, f"cannot write {option}: " in err) == (2, True)
    assert "name another file" in err


def test_an_interrupt_is_no_traceback(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(planners, "plan", interrupt)
    assert run(capsys, *_SIMULATE) == (130, "", "")


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
def test_one_planner_at_a_time_but_for_simulate(capsys, command, several):
    line = [command, "vgg16", "--net", "10gbe-64", "--planner", several]
    assert run(capsys, *line) == (
        2,
        "",
        f"aiacc-plan: --planner {several} (expected one here); "
        "name one, or use aiacc-plan simulate\n",
    )


def test_files_in_the_wrong_place_are_named(capsys, tmp_path):
    files = {name: tmp_path / f"{name}.json" for name in ("trace", "plan", "net")}
    files["trace"].write_text(models.trace_of("vgg16").encode())
    assert run(capsys, "plan", "vgg16", "--net", "10gbe-64", "--output", str(files["plan"]))[0] == 0
    files["net"].write_text(affine(1e-3, 1e-9, 4).encode())
    for wrong in ("trace", "plan"):
        _, _, err = run(capsys, "explain", "vgg16", "--net", str(files[wrong]))
        assert f"{wrong}.json: the file holds a trace or a plan (expected a network" in err
    _, _, err = run(capsys, "explain", str(files["net"]), "--net", "10gbe-64")
    assert "net.json: tensors: no list (expected the trace that" in err


def test_ddp_on_the_command_line(capsys):
    status, out, _ = run(capsys, "ddp", "vgg16", "--net", "10gbe-64")
    assert status == 0
    assert out.startswith("bucket_cap_mb_list=[")
    status, _, err = run(capsys, "ddp", "vgg16", "--net", "10gbe-64", "--planner", "decoupled")
    assert (status, "no decoupled schedule" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["alexnet", "--net", "10gbe-64"], "trace 'alexnet' (expected a file, or one of resnet50"),
        (["vgg16", "--net", "fast"], "network 'fast' (expected a file, one of 10gbe-8"),
        (["vgg16", "--net", "a=1"], "b: missing (expected a number, >= 0)"),
        (["vgg16", "--net", "a=x,b=1"], "a: 'x' (expected a number)"),
        (["vgg16", "--net", "a=1,c=2,b=3"], "affine: unknown c"),
        (["vgg16", "--net", "a=-1,b=3"], "a: -1.0 (expected a number, >= 0)"),
        (["vgg16", "--net", "a=1e308,b=1e308"], "a: 1e+308 (expected a number, >= 0 and < 1e+18)"),
        (["vgg16", "--net", "="], "'=' in '=' (expected NAME=NUMBER, as in a=1e-3,b=8e-10)"),
        (["vgg16", "--net", "a=1,b=0,"], "'' in 'a=1,b=0,' (expected NAME=NUMBER"),
        (["vgg16", "--net", "gbit=10", "--world", "8"], "alpha: missing (expected a number, >= 0"),
        (["vgg16", "--net", "a=1,b=3,a=2"], "a: comes twice in 'a=1,b=3,a=2'"),
        (["vgg16", "--net", "alpha=1,gbit=1e-300", "--world", "4"], "gbit: 1e-300 (expected a ban"),
        (["vgg16", "--net", "10gbe-64", "--planner", "lanes(2.5)"], "planner 'lanes(2.5)' (expec"),
        (["vgg16", "--net", "10gbe-64", "--planner", f"lanes({'9' * 400})"], "(expected 1 to 64"),
        (["vgg16", "--net", "a=nan,b=3"], "a: nan (expected a number, >= 0)"),
        (["vgg16", "--net", "a=1,b=3,world=2.5"], "world: 2.5 (expected a whole number, >= 1)"),
        (["vgg16", "--net", "a=1,b=3,capacity=0"], "capacity: 0.0 (expected a number, >= 1)"),
        (["vgg16", "--net", "alpha=1,gbit=0", "--world", "4"], "gbit: 0 (expected a bandwidth"),
        (["vgg16", "--net", "alpha=1,gbit=-1", "--world", "4"], "gbit: -1.0 (expected a number"),
        (["vgg16", "--net", "alpha=1,gbit=1"], "give --world"),
        (["vgg16", "--net", "10gbe-64", "--world", "8"], "measured with 64 ranks, which says"),
        (["vgg16", "--net", "10gbe-64", "--world", "x"], "--world x (expected 64, 4,8,64"),
        (["vgg16", "--net", "alpha=1,gbit=1", "--world", "0..4"], "--world 0..4 (expected 64"),
        (["vgg16", "--net", "alpha=1,gbit=1", "--world", "8..4"], "--world 8..4 (expected 64"),
        (["vgg16", "--net", "10gbe-64", "--planner", "best"], "planner 'best' (expected"),
        (
            ["vgg16", "--net", "alpha=1e-5,gbit=1", "--world", f"4..{10**20}"],
            f"--world 4..{10**20} (expected 1048576 ranks at most)",
        ),
        (["vgg16", "--net", "a=523,b=8.57e-10"], "takes 523 s (expected 60 s at most); a, alpha"),
        (["vgg16", "--net", "a=5e-4,b=8.57e-4"], "1048576 bytes takes 899 s (expected 60 s at"),
        (["vgg16", "--net", "alpha=30,gbit=10", "--world", "4"], "b in seconds per byte, gbit in"),
    ],
)
def test_bad_input_is_named(capsys, arguments, text):
    status, _, err = run(capsys, "simulate", *arguments)
    assert status == 2
    assert text in err
    assert len(err.splitlines()) == 1


def test_bad_traces_name_file_and_field(capsys, tmp_path):
    path = tmp_path / "trace.json"
    fields = json.loads(models.trace_of("vgg16").encode())
    for field, value, text in (("bytes", -1, "-1"), ("ready_s", 10**400, "1" + "0" * 49)):
        wrong = json.loads(json.dumps(fields))
        wrong["tensors"][3][field] = value
        path.write_text(json.dumps(wrong))
        status, _, err = run(capsys, "explain", str(path), "--net", "10gbe-64")
        assert (status, f"{path}: tensors[3].{field}: {text} (" in err) == (2, True)


def test_planners_and_worlds_count_once(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    status, out, _ = run(
        capsys, "simulate", "vgg16", "--net", "alpha=30e-6,gbit=10", "--world", "4,8,4",
        "--planner", "single, single,per_tensor", "--plot", str(tmp_path / "scaling.png"),
    )  # fmt: skip
    assert status == 0
    rows = [line.split()[:2] for line in out.splitlines()[2:]]
    assert rows == [[world, name] for world in "48" for name in ("single", "per_tensor")]


def test_a_plan_in_the_place_of_a_trace_is_named(capsys, tmp_path):
    path = tmp_path / "plan.json"
    run(capsys, "plan", "vgg16", "--net", "10gbe-16", "--output", str(path))
    status, _, err = run(capsys, "explain", str(path), "--net", "10gbe-16")
    assert (status, f"{path}: the file holds a plan (expected the trace" in err) == (2, True)


_POINT = {"bytes": 1, "seconds": 1.0}
_NEAR = {"model": "analytic", "alpha": 1e-6, "gbit": 100}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"model": ["affine"]}, r"model: \['affine'\] .expected one of affine"),
        ({"model": "affine", "a": True, "b": 1}, "a: True"),
        ({"model": "affine", "a": 10**400, "b": 1}, "a: 10{49} "),
        ({"model": "affine", "a": 1, "b": 1, "of": [1]}, "of: '': .1. .expected pairs"),
        ({"model": "affine", "a": 1, "b": 1, "of": {"gather": [1, 1]}}, "of: 'gather'"),
        ({"model": "affine", "a": 1, "b": 1, "of": {"broadcast": [1, -1]}}, "of.broadcast.b: -1"),
        ({"model": "affine", "a": 1, "b": 1, "world": "8"}, "world: '8' .expected a whole number"),
        ({"model": "table"}, "points: expected a list of objects"),
        ({"model": "table", "points": [1]}, "points: expected a list of objects"),
        ({"model": "table", "points": []}, "points: none of all_reduce"),
        (
            {"model": "table", "points": [{"bytes": n, "seconds": 99.0} for n in (1, 2)]},
            "all-reduce of 1048576 bytes takes 99 s",
        ),
        (
            {"model": "table", "points": [{"bytes": n, "seconds": n / 1e3} for n in (1, 2)]},
            r"all-reduce of 1048576 bytes takes 1.05e\+03 s \(expected 60 s at most",
        ),
        (
            {"model": "table", "points": [{"bytes": 2**20 + n, "seconds": n} for n in (1, 2)]},
            r"all-reduce of 1073741824 bytes takes 1.07e\+09 s \(expected 61440 s at most",
        ),
        ({"model": "table", "points": [_POINT], "lanes": 65}, "lanes: 65 .*>= 1 and < 65"),
        ({"model": "table", "points": [_POINT], "unit_bytes": 255}, "unit_bytes: 255 .*>= 256"),
        ({"model": "table", "points": [_POINT]}, "sizes .1.0. .expected two or more"),
        ({"model": "table", "points": [{"bytes": "1"}]}, r"points\[0\].bytes: '1'"),
        ({"model": "table", "points": [_POINT, {"bytes": 2}]}, r"points\[1\].seconds: missing"),
        ({"model": "table", "points": [_POINT | {"lanes": 0}]}, r"points\[0\].lanes: 0"),
        ({"model": "table", "points": [_POINT | {"operation": 3}]}, r"points\[0\].operation: 3"),
        ({"model": "hierarchical", "local": 0, "inside": _NEAR, "between": _NEAR}, "local: 0"),
        ({"model": "hierarchical", "local": 2, "inside": 1, "between": _NEAR}, "inside: 1"),
        ({"model": "hierarchical", "local": 2, "inside": _NEAR}, "between: None"),
    ],
)
def test_bad_networks_name_file_and_field(tmp_path, fields, text):
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"version": 1, **fields}))
    with pytest.raises(NetworkError, match=f"{path}: .*{text}"):
        network_of(str(path))


def test_files_that_are_no_text_are_named(capsys, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\xff\xfe")
    for arguments in ((str(path), "--net", "10gbe-64"), ("vgg16", "--net", str(path))):
        status, _, err = run(capsys, "explain", *arguments)
        assert (status, str(path) in err) == (2, True)
    path.write_text("[" * 100_000)
    for arguments in ((str(path), "--net", "10gbe-64"), ("vgg16", "--net", str(path))):
        status, _, err = run(capsys, "explain", *arguments)
        assert (status, f"{path}: " in err, "expected less nesting" in err) == (2, True, True)
    path.write_text("9" * 5000)
    for arguments in ((str(path), "--net", "10gbe-64"), ("vgg16", "--net", str(path))):
        status, _, err = run(capsys, "explain", *arguments)
        assert (status, f"{path}: line 1: a number of 5000 digits" in err) == (2, True)


def test_networks_there_and_back(tmp_path):
    path = tmp_path / "net.json"
    path.write_text(affine(1e-3, 1e-9, 4).encode())
    assert network_of(str(path)).cost(4) == Affine(1e-3, 1e-9)
    with pytest.raises(NetworkError, match="says nothing about 8"):
        network_of(str(path)).cost(8)
    table = {
        "version": 1,
        "model": "table",
        "world": 2,
        "points": [{"bytes": 1 << 20, "seconds": 1.0}, {"bytes": 3 << 20, "seconds": 2.0}],
    }
    path.write_text(json.dumps(table))
    assert network_of(str(path)).cost().time("all_reduce", 2 << 20) == 1.5
    both = {
        "version": 1,
        "model": "hierarchical",
        "local": 4,
        "inside": {"model": "analytic", "alpha": 1e-6, "gbit": 100},
        "between": {"model": "analytic", "alpha": 1e-5, "gbit": 10},
    }
    path.write_text(json.dumps(both))
    hosts = {ranks: network_of(str(path)).cost(ranks).between.ranks for ranks in (2, 4, 5, 16)}
    assert hosts == {2: 1, 4: 1, 5: 2, 16: 4}
    path.write_text('{"version": 1,\n"model": }')
    with pytest.raises(NetworkError, match=r"line 2: no JSON .*as `aiacc-plan probe` writes"):
        network_of(str(path))
    path.write_text('{"model": "affine"}')
    with pytest.raises(NetworkError, match=r"version: None \(expected 1\)"):
        network_of(str(path))
