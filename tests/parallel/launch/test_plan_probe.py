"""``aiacc-plan probe`` on ranks, and what planners make of it."""

import json
import sys

from aiacc.planning.network import network_of
from aiacc.run.plan import main
from tests.support.programs import run_program
from tests.support.ranks import rank_environment


def _run(*arguments):
    command = [sys.executable, "-m", *arguments]
    return run_program(command, env=rank_environment({}), merged=True)


def test_two_ranks_measure_a_network(tmp_path, capsys):
    path = tmp_path / "net.json"
    probe = ["aiacc.run.plan", "probe", "--output", str(path), "--max-mib", "0.25"]
    done = _run("aiacc.run", "-np", "2", sys.executable, "-m", *probe)
    assert done.returncode == 0, done.stdout
    assert f"{path}: " in done.stdout
    assert done.stdout.count("broadcast, 2 at a time: ") == 1
    points = json.loads(path.read_text())["points"]
    assert {(point["operation"], point["lanes"]) for point in points} == {
        (operation, lanes)
        for operation in ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
        for lanes in (1, 2)
    }
    assert network_of(str(path)).cost(2).time("all_reduce", 1 << 16) > 0
    assert main(["simulate", "vgg16", "--net", str(path)]) == 0
    assert "decoupled" in capsys.readouterr().out


def test_one_rank_has_nobody_to_measure_with(tmp_path):
    done = _run("aiacc.run.plan", "probe", "--output", str(tmp_path / "net.json"))
    assert done.returncode == 2
    assert "expected a launcher" in done.stdout
