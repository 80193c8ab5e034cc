"""What ``aiacc-plan`` refuses, and how it names option, file and field."""

import json
import re

import pytest

from aiacc.kfac.costs import inversion_of
from aiacc.planning import models
from aiacc.planning.network import NetworkError, affine, network_of
from aiacc.run.plan import main

#: (arguments, text of the error)
REFUSED = [
    ("simulate vgg16 --net a=1", "b: missing (expected a number, >= 0)"),
    ("simulate vgg16 --net fast", "network 'fast' (expected a file, one of 10gbe-8"),
    ("simulate vgg16 --net a=x,b=1", "a: 'x' (expected a number)"),
    ("simulate vgg16 --net a=1,c=2,b=3", "affine: unknown c"),
    ("simulate vgg16 --net a=1e308,b=1", "a: 1e+308 (expected a number, >= 0 and < 1e+18)"),
    ("simulate vgg16 --net =", "'=' in '=' (expected NAME=NUMBER, as in a=1e-3,b=8e-10)"),
    ("simulate vgg16 --net a=1,b=3,a=2", "a: comes twice in 'a=1,b=3,a=2'"),
    ("simulate vgg16 --net alpha=1,gbit=1e-300 --world 4", "gbit: 1e-300 (expected a ban"),
    *(
        (f"simulate vgg16 --net 10gbe-64 --planner lanes({number})", "(expected 1 to 64")
        for number in ("9" * 400, 0, 65)
    ),
    ("simulate vgg16 --net a=nan,b=3", "a: nan (expected a number, >= 0)"),
    ("simulate vgg16 --net a=1,b=3,world=2.5", "world: 2.5 (expected a whole number, >= 1)"),
    ("simulate vgg16 --net a=1,b=3,capacity=0", "capacity: 0.0 (expected a number, >= 1)"),
    ("simulate vgg16 --net alpha=1,gbit=1", "give --world"),
    ("simulate vgg16 --net 10gbe-64 --world 8", "measured with 64 ranks, which says"),
    ("simulate vgg16 --net 10gbe-64 --world x", "--world x (expected 64, 4,8,64"),
    ("simulate vgg16 --net alpha=1,gbit=1 --world 0..4", "--world 0..4 (expected 64"),
    ("simulate vgg16 --net alpha=1,gbit=1 --world 8..4", "--world 8..4 (expected 64"),
    (f"simulate vgg16 --net 10gbe-64 --world 4..{10**20}", f"4..{10**20} (expected 1048576 ranks"),
    *(
        (f"simulate vgg16 --net 10gbe-64 --planner {name}", f"planner '{name}' (expected per_ten")
        for name in ("best", "threshold", "lanes(x)", "lanes(2.5)", "optimal(3)")
    ),
    ("simulate vgg16 --net alpha=30,gbit=10 --world 4", "b in seconds per byte, gbit in"),
    ("simulate alexnet --net 10gbe-64", "trace 'alexnet' (expected a file, or one of resnet50"),
    ("explain vgg16 --compression --net a=1e-3,b=1e-9", "does not tell the number of ranks"),
    ("ddp vgg16 --net 10gbe-64 --planner decoupled", "no decoupled schedule"),
    # One planner at a time but for simulate.
    ("plan vgg16 --net 10gbe-64 --planner all", "--planner all (expected one here)"),
    ("explain vgg16 --net 10gbe-64 --planner optimal,single", "name one, or use aiacc-plan sim"),
    ("plan vgg16 --net 10gbe-64 --output /no/plan", "cannot write --output: "),
    ("simulate vgg16 --net 10gbe-64 --planner single --plot /no/a.svg", "cannot write --plot: "),
    ("simulate vgg16 --net 10gbe-64 --chrome /no/a.json", "cannot write --chrome: "),
    ("simulate resnet50 --kfac --plot /no/a.svg", "cannot write --plot: "),
    ("simulate resnet50 --kfac --chrome /no/a.json", "cannot write --chrome: "),
    ("simulate vgg16 --kfac", "model 'vgg16' (expected one of resnet50, resnet152, densenet201"),
    ("simulate resnet50 --kfac --world 4", "the published cluster has 64 ranks"),
    ("simulate resnet50 --kfac --net a=1,b=1e-9", "does not tell the number of ranks"),
    ("simulate resnet50 --kfac --planner optimal", "leave out --planner"),
    ("simulate resnet50 --kfac --overlap 2", "overlap 2.0 (expected 0 to 1)"),
    ("simulate resnet50 --kfac --inversion c0=1", "c2 (expected c0, c2 and c3, once each)"),
    ("simulate resnet50 --kfac --inversion c0=x", "c0=x (expected a number"),
    ("simulate resnet50 --kfac --inversion none", "inversion 'none' (expected a file, or"),
    ("simulate resnet50 --kfac --every 10", "--every 10 (expected two numbers, as in"),
    ("simulate resnet50 --kfac --every 10,5", "the second a multiple of the first"),
    ("simulate resnet50 --kfac --every 0,5", "--every 0,5 (expected two numbers >= 1"),
    ("simulate resnet50", "--net is missing"),
    ("simulate resnet50 --net 10gbe-64 --every 1,1", "--every has no meaning"),
    ("simulate resnet50 --net 10gbe-64 --overlap 1", "--overlap has no meaning without"),
    ("simulate resnet50 --net 10gbe-64 --inversion x", "--inversion has no meaning"),
    ("profile -np 2 python train.py", "profile: -np comes before FILE (expected"),
    ("probe --output x --max-mib 0.001", "--max-mib 0.001 (expected MiB"),
    ("probe --output x --max-mib inf", "--max-mib inf (expected MiB"),
    ("probe --output x --lanes 0", "--lanes 0 (expected 1 to 64)"),
    ("probe --output x --lanes 65", "--lanes 65 (expected 1 to 64)"),
]


@pytest.mark.parametrize(("arguments", "text"), REFUSED)
def test_bad_options_are_named_in_one_line(plan, arguments, text):
    err = plan.refused(*arguments.split())
    assert text in err
    assert "cannot write" not in err or "name another file" in err


def test_files_in_the_wrong_place_and_wrong_traces_are_named(plan):
    net = plan.file("net.json", affine(1e-3, 1e-9, 4).encode())
    made = plan.file("plan.json", plan.out("plan", "vgg16", "--net", "10gbe-64"))
    trace = plan.file("trace.json", models.trace_of("vgg16").encode())
    for wrong in (made, trace):
        said = plan.refused("explain", "vgg16", "--net", wrong)
        assert f"{wrong}: the file holds a trace or a plan (expected a network" in said
    said = plan.refused("explain", net, "--net", "10gbe-64")
    assert "net.json: tensors: no list (expected the trace that" in said
    said = plan.refused("explain", made, "--net", "10gbe-16")
    assert f"{made}: the file holds a plan (expected the trace" in said
    fields = json.loads(trace.read_text())
    fields["tensors"][3]["ready_s"] = 10**400
    said = plan.refused("explain", plan.file("wrong.json", json.dumps(fields)), "--net", "10gbe-64")
    assert f"wrong.json: tensors[3].ready_s: 1{'0' * 49} (" in said


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
        said = plan.refused("explain", *arguments)
        assert re.search(text.format(path=path), said), said


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
        (points((1, 99.0), (2, 99.0)), r"of 1048576 bytes takes 99 s \(expected 60 s at most"),
        (points((2**20 + 1, 1), (2**20 + 2, 2)), r"takes 1.07e\+09 s \(expected 61440 s at most"),
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
        ('{"version": 1,\n"model": }', "line 2: no JSON .*as `aiacc-plan probe` writes"),
    ],
)
def test_bad_networks_name_file_and_field(plan, fields, text):
    path = plan.file("net.json", fields)
    with pytest.raises(NetworkError, match=f"{path}: .*{text}"):
        network_of(str(path))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[64,", "line 1: no JSON"),
        ("{}", "expected one or more"),
        ("[64]", "expected a list of pairs"),
        ("[[64, -1]]", "-1.0 s for dimension 64"),
    ],
)
def test_bad_files_of_inversions_name_file_and_problem(plan, text, problem):
    path = plan.file("inversions.json", text)
    with pytest.raises(ValueError, match=f"(?s){path}.*{problem}"):
        inversion_of(str(path))


def test_networks_there_and_back(plan):
    def read(content):
        return network_of(str(plan.file("net.json", content)))

    one = read(affine(1e-3, 1e-9, 4).encode())
    assert (one.cost(4).a, one.cost(4).b) == (1e-3, 1e-9)
    with pytest.raises(NetworkError, match="says nothing about 8"):
        one.cost(8)
    measured = read(points((1 << 20, 1.0), (3 << 20, 2.0)) | {"world": 2})
    assert measured.cost().time("all_reduce", 2 << 20) == 1.5
    between = {"model": "analytic", "alpha": 1e-5, "gbit": 10}
    both = read(_LEVELS | {"local": 4, "between": between})
    hosts = {ranks: both.cost(ranks).between.ranks for ranks in (2, 4, 5, 16)}
    assert hosts == {2: 1, 4: 1, 5: 2, 16: 4}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("explian", "(did you mean explain?)"),
        ("plan vgg16 --net a=1,b=3 --plannr x", "(did you mean --planner?)"),
    ],
)
def test_what_a_command_or_option_may_stand_for_is_said(arguments, text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments.split())
    assert f"{text}\n" in capsys.readouterr().err
