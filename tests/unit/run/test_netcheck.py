"""`aiaccrun --netcheck`: the command that it becomes, and what it says."""

from __future__ import annotations

import sys

import pytest

from aiacc.run.main import main
from aiacc.run.netcheck import bus_mbit, report
from tests.support.programs import run_program


def test_bus_bandwidth():
    # Two hosts: each sends the whole buffer once.
    assert bus_mbit(1_000_000, 2, 0.008) == pytest.approx(1000)
    assert bus_mbit(1_000_000, 4, 0.012) == pytest.approx(1000)


@pytest.mark.parametrize(
    ("seconds", "advice"),
    [
        ({1: [4.0, 4.1, 9.0], 2: [2.0], 4: [1.0], 8: [1.0]}, "AIACC_LANES=4"),
        ({1: [1.0], 2: [1.0], 4: [1.1]}, "AIACC_LANES=1 suffices"),
        # Gains that are too small, or that the samples do not bear out.
        ({1: [1.0] * 5, 2: [0.9] * 5, 4: [0.88] * 5}, "AIACC_LANES=1 suffices"),
        ({1: [0.9, 1.0, 1.3, 1.4, 1.4], 2: [0.9, 0.9, 1.0, 1.1, 1.4]}, "AIACC_LANES=1 suffices"),
        # A gain in small steps; one slow sample does not decide.
        ({1: [1.0] * 5, 2: [0.9] * 5, 4: [0.8] * 5}, "AIACC_LANES=4"),
        ({1: [4.0] * 5, 2: [2.0] * 5, 4: [1.0, 1.0, 1.0, 1.1, 9.0], 8: [0.9] * 5}, "AIACC_LANES=4"),
    ],
)
def test_how_many_lanes_a_netcheck_advises(seconds, advice):
    text = report(seconds, 2)
    assert advice in text
    assert "   1 flow  " in text
    assert "1.00x" in text


def test_one_host_is_no_network():
    text = report({1: [4.0], 2: [2.0]}, 2, "name")
    assert "2 ranks of this host, name, over loopback" in text
    assert "aiaccrun --netcheck host1,host2" in text
    assert "AIACC_LANES" not in text


@pytest.mark.mpi
@pytest.mark.parametrize(("hosts", "given"), [("h1,h2", "h1:1,h2:1"), ("h1", "h1:2")])
def test_other_hosts_are_reached_by_mpirun_with_two_ranks(hosts, given, capsys):
    assert main(["--netcheck", hosts, "--dry-run"]) == 0
    command = capsys.readouterr().out
    assert all(text in command for text in ("mpirun", "AIACC_LANES", given))
    assert command.rstrip().endswith("-m aiacc.run.netcheck")


@pytest.mark.parametrize("host", [["localhost:2"], ["localhost"], []])
def test_two_ranks_of_this_machine(host):
    done = run_program([sys.executable, "-m", "aiacc.run", "--netcheck", *host], check=True)
    assert done.stdout.count("Mbit/s") == 5
    assert "over loopback" in done.stdout
    assert "AIACC_LANES" not in done.stdout
