"""What `aiaccrun --netcheck` and `aiacc-plan probe` make of their measurements."""

import json
import sys

import pytest

from aiacc.planning.execution import Sending
from aiacc.planning.network import network_of
from aiacc.run import probe
from aiacc.run.main import main
from aiacc.run.netcheck import bus_mbit, report
from aiacc.run.probe import FAR_S, advice, network, sizes, starts_slowly
from tests.support.programs import run_program


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
    # Of two hosts, each sends the whole buffer once.
    assert bus_mbit(1_000_000, 2, 0.008) == pytest.approx(1000)
    assert bus_mbit(1_000_000, 4, 0.012) == pytest.approx(1000)


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


def test_the_file_is_a_network(tmp_path):
    assert sizes(100_000) == [1 << 10, 1 << 12, 1 << 14, 1 << 16, 100_000]
    assert sizes(1 << 20) == [1 << power for power in range(10, 21, 2)]
    points = [
        {"operation": one, "lanes": lanes, "bytes": size, "seconds": 1e-4 + lanes * 1e-9 * size}
        for one in ("all_reduce", "all_gather")
        for lanes in (1, 2)
        for size in sizes(1 << 20)
    ]
    path = tmp_path / "net.json"
    path.write_text(json.dumps(network(points, 4, 2, 1 << 20)))
    found = network_of(str(path))
    assert found.world == 4
    assert found.sending(4) == Sending(unit_bytes=1 << 20, lanes=2, ranks=4)
    assert found.fields["comment"] == "measured; an all-reduce is about 0.0001 s + 1e-09 s/byte"
    assert found.cost(4).time("all_gather", 1 << 14, 2) == pytest.approx(1e-4 + 2e-9 * (1 << 14))


def test_times_that_do_not_grow_are_kept(tmp_path):
    row = [{"operation": "all_reduce", "lanes": 1, "bytes": n, "seconds": 1 / n} for n in (1, 2, 4)]
    path = tmp_path / "net.json"
    path.write_text(json.dumps(network(row, 4, 2, 1 << 20)))
    found = network_of(str(path))
    assert "times do not grow with bytes" in found.fields["comment"]
    assert found.cost(4).time("all_reduce", 1) == 0.25  # as the largest


def test_a_probe_that_ends_before_its_time_leaves_no_file(monkeypatch, tmp_path):
    monkeypatch.setattr(probe.aiacc, "rank", lambda: 0)
    monkeypatch.setattr(probe, "broadcast_object", lambda cause, *_: cause)
    path = tmp_path / "net.json"
    probe._check_output(path)
    assert not path.exists()
    path.write_text("of an earlier run")
    probe._check_output(path)
    assert path.read_text() == "of an earlier run"
    with pytest.raises(ValueError, match="rank 0 cannot write --output: "):
        probe._check_output(tmp_path)


def test_far_hosts_are_told_of_the_slow_start(tmp_path):
    def points(seconds):
        row = {"operation": "all_reduce", "lanes": 1, "bytes": 1024, "seconds": seconds}
        return [row, row | {"operation": "broadcast", "seconds": 1e-6}]

    (line,) = advice(points(0.041), True)
    assert "takes 41 ms" in line
    assert "net.ipv4.tcp_slow_start_after_idle to 0" in line
    assert advice(points(0.041), False) == []
    assert advice(points(FAR_S / 2), True) == []
    file = tmp_path / "tcp_slow_start_after_idle"
    assert not starts_slowly(file)  # no such setting
    for text in ("1\n", "0\n"):
        file.write_text(text)
        assert starts_slowly(file) == (text == "1\n")
