"""Virtual hosts: a bed is put up, used, and leaves nothing behind. Needs root."""

import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import pytest

from aiacc.run import netcheck
from bench.network import bpf, launch, program
from bench.network.bed import Bed, BedError, bed_for, put_up
from bench.network.faults.__main__ import one
from bench.network.faults.plan import choose
from bench.network.plan import Spec
from tests.support.beds import bed_name, needed, traces  # noqa: F401
from tests.support.programs import LIMIT_S, ROOT

pytestmark = pytest.mark.alone

_SERVER = """
import socket
server = socket.create_server(("", 5000), backlog=64)
print("listening", flush=True)
connections = [server.accept()[0] for _ in range(int(__import__("sys").argv[1]))]
for connection in connections:
    while connection.recv(1 << 16):
        pass
"""
_CLIENT = """
import socket, sys
connections = [socket.create_connection(("node1", 5000)) for _ in range(int(sys.argv[1]))]
for connection in connections:
    connection.sendall(bytes(int(sys.argv[2])))
    connection.shutdown(socket.SHUT_WR)
"""


def _send(bed: Bed, connections: int, each_bytes: int) -> None:
    """From host 0 to host 1, on some connections one after the other."""
    server = bed.enter(1, [sys.executable, "-c", _SERVER, str(connections)])
    client = bed.enter(0, [sys.executable, "-c", _CLIENT, str(connections), str(each_bytes)])
    with subprocess.Popen(server, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        subprocess.run(client, check=True, timeout=LIMIT_S)
        assert process.wait(LIMIT_S) == 0


def test_every_flow_has_a_class_of_its_own_and_one_of_host_0_is_slow(name):
    """Bytes of each are counted."""
    with bed_for(Spec(name, hosts=2, slow=0.25)) as bed:
        _send(bed, connections=40, each_bytes=3000)
        flows = bed.flows(0)
        assert len({flow.minor for flow in flows}) == len(flows) == 40
        assert {flow.target for flow in flows} == {("10.77.0.2", 5000)}
        assert all(3000 < flow.sent_bytes < 6000 for flow in flows)
        assert {flow.target for flow in bed.flows(1)} == {flow.source for flow in flows}
        bed.reset()
        assert bed.flows(0) == []
        _send(bed, connections=3, each_bytes=2 * program.DATA_BYTES)
        slow = [flow.minor == program.SLOW_MINOR for flow in bed.flows(0)]
        assert slow.count(True) == 1


def _packet(source_port: int, kind: int = 6) -> bytes:
    ends = socket.inet_aton("10.77.0.1") + socket.inet_aton("10.77.0.2")
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, kind, 0) + ends
    return bytes(12) + b"\x08\x00" + ip + struct.pack("!HH", source_port, 80) + bytes(16)


def test_more_flows_than_classes_are_noticed_and_never_share_one():
    with ExitStack() as stack:
        flows = bpf.Map.hash(program.FLOW_KEY.size, program.FLOW_VALUE.size, 100)
        stack.callback(flows.close)
        counters = bpf.Map.array(program.COUNTERS.size, 1)
        stack.callback(counters.close)
        code = program.classifier(flows.descriptor, counters.descriptor, classes=50)
        loaded = bpf.load_classifier(code)
        stack.callback(os.close, loaded)
        classes = [bpf.classify_once(loaded, _packet(port)) for port in range(1000, 1060)]
        again = [bpf.classify_once(loaded, _packet(port)) for port in range(1000, 1050)]
        assert bpf.classify_once(loaded, _packet(7, kind=17)) == 0, "UDP has no flow"
        asked, _ = program.COUNTERS.unpack(counters.get(bytes(4)) or b"")
    first = program.MAJOR << 16 | program.FIRST_MINOR
    assert classes == [*range(first, first + 50), *[0] * 10]
    assert again == classes[:50]
    assert asked == 60


def test_a_run_ends_with_an_error_if_some_flow_had_no_class(name, monkeypatch):
    monkeypatch.setattr("bench.network.bed.CLASSES", 10)
    with pytest.raises(BedError, match="expected at most 10"), bed_for(Spec(name, hosts=2)) as bed:
        _send(bed, connections=12, each_bytes=1)


@pytest.mark.parametrize("launcher", ["explicit", "mpirun"])
def test_ranks_run_on_hosts_of_their_own(name, launcher, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    body = (
        "import socket, sys, pathlib, numpy, aiacc.array as hvd; hvd.init(); "
        "total = hvd.allreduce(numpy.ones(100_000), op=hvd.Sum); "
        "place = [socket.gethostname(), hvd.local_rank(), hvd.cross_rank(), float(total[-1])]; "
        "(pathlib.Path(sys.argv[1]) / str(hvd.rank())).write_text(repr(place)); hvd.shutdown()"
    )
    command = [sys.executable, "-c", body, str(tmp_path)]
    with bed_for(Spec(name, hosts=2)) as bed:
        code = launch.run(bed, launcher, 2, command, timeout_s=LIMIT_S)
        assert code == 0
        between = sum(flow.sent_bytes for flow in bed.flows(0))
    places = [(tmp_path / str(rank)).read_text() for rank in range(4)]
    assert places == [repr([f"node{rank // 2}", rank % 2, rank // 2, 4.0]) for rank in range(4)]
    assert between > 100_000, "the hosts have met outside their network"


def test_netcheck_finds_the_lanes_that_fill_the_caps(name, tmp_path):
    command = ["aiaccrun", "--netcheck", "node0,node1"]
    with bed_for(Spec(name, hosts=2, flow_mbit=500, nic_mbit=2000)) as bed:
        assert launch.run(bed, "none", 1, command, timeout_s=LIMIT_S, output_folder=tmp_path) == 0
        heavy = [flow for flow in bed.flows(0) if flow.sent_bytes > program.DATA_BYTES]
    said = (tmp_path / "rank.0" / "stdout").read_text()
    assert said.count("Mbit/s") == 5
    # 1 and 2 flows leave interfaces idle. A busy machine may make 8 look better than 4.
    assert "AIACC_LANES=1 " not in said
    assert int(said.rpartition("AIACC_LANES=")[2]) >= 4
    assert len(heavy) == netcheck.LANES, "not every lane has had a flow of its own"


def test_a_failing_rank_is_the_result(name):
    with bed_for(Spec(name, hosts=2)) as bed:
        command = ["sh", "-c", "test $AIACC_RANK = 1 && exit 7; sleep 60"]
        assert launch.run(bed, "explicit", 1, command, timeout_s=LIMIT_S) == 7
        with pytest.raises(BedError, match="has a bridge"):  # which has no path to change
            bed.set_path(loss=1)


def test_what_a_killed_run_leaves_goes_with_the_next(name):
    command = [sys.executable, "-m", "bench.network", "run", "--name", name, "--hosts", "2"]
    command += ["--", "sh", "-c", "echo started; exec sleep 60"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"started" in process.stdout.readline()
        with pytest.raises(BedError, match="another process uses the bed"), bed_for(Spec(name)):
            pass
        process.send_signal(signal.SIGKILL)
    assert f"{name}-1" in traces(name)
    with bed_for(Spec(name, hosts=1)):
        assert f"{name}-1" not in traces(name)


def test_a_bed_that_fails_half_way_leaves_nothing(name, monkeypatch):
    monkeypatch.setattr("bench.network.bed.shaping", lambda spec: ["nonsense"])
    with pytest.raises(BedError, match="nonsense"):
        put_up(Spec(name, hosts=2))


def test_the_relay_carries_loses_and_comes_back(name):
    with bed_for(Spec(name, hosts=2, relay=True, flow_mbit=0, nic_mbit=0)) as bed:
        # While the hosts come up, IPv6 greets some that are not there yet.
        start = bed.set_path()
        _send(bed, connections=2, each_bytes=100_000)
        before = bed.set_path(loss=1)
        assert before.lost == start.lost
        assert before.carried - start.carried > 2 * 100_000 / bed.spec.mtu
        lonely = bed.enter(0, [sys.executable, "-c", _LONELY])
        subprocess.run(lonely, check=True, timeout=LIMIT_S)
        after = bed.set_path(delay_ms=1, reorder=0.2)
        assert after.lost - before.lost == after.carried - before.carried > 0
        _send(bed, connections=2, each_bytes=100_000)
        with pytest.raises(Exception, match="refuses 'set 5"):
            bed.set_path(5, 0)


_LONELY = """
import socket
try:
    socket.create_connection(("node1", 5000), timeout=0.5)
except TimeoutError:
    pass
else:
    raise AssertionError("connected through a network that loses everything")
"""


def test_what_is_lost_or_overtaken_arrives_right_in_the_end(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-m", "bench.network.allreduce_worker", "--out", str(tmp_path)]
    command += ["--bytes", str(4 << 20), "--iterations", "2"]
    with bed_for(Spec(name, hosts=2, delay_ms=1, loss=0.005, reorder=0.02)) as bed:
        assert launch.run(bed, "explicit", 1, command, timeout_s=LIMIT_S) == 0
        count = bed.set_path()
    # Segments are counted and lost, however many of them travel in one large frame.
    assert count.carried > 2 * 3 * (4 << 20) / bed.spec.mtu
    assert 0 < count.lost < count.carried / 50


def test_a_run_of_the_faults(name):
    fault = replace(choose(1, ["half_open"]), ranks_of=(2, 1), victim=2, step=2, short_io=True)
    row, folder = one(fault, name)
    assert (row["outcome"], folder) == ("clear error", None), row["problems"]
    assert [rank["outcome"] for rank in row["ranks"]] == ["error", "error", ""]
    assert [rank["code"] for rank in row["ranks"]] == [0, 0, -signal.SIGKILL]
    for survivor in row["ranks"][:2]:
        assert survivor["type"] == "PeerLostError"
        assert "rank 2" in survivor["text"]
        assert survivor["checked"] > 0
        assert survivor["short_calls"] > 0
    assert row["struck"]


_UNITS = """
import sys, aiacc.array as hvd
from aiacc import _core
hvd.init()
hvd.barrier()
hvd.barrier()
expected = int(sys.argv[1])
assert _core.stats()["unit_bytes"] == expected, _core.stats()
"""


@pytest.mark.parametrize(
    ("delay_ms", "asked", "expected"),
    [(0, {}, 1 << 20), (8, {}, 8 << 20), (8, {"AIACC_UNIT_BYTES": "64K"}, 64 << 10)],
    ids=["near", "far", "as asked for"],
)
def test_units_are_larger_between_hosts_that_are_far_from_each_other(
    name, delay_ms, asked, expected
):
    with bed_for(Spec(name, hosts=2, delay_ms=delay_ms)) as bed:
        command = [sys.executable, "-c", _UNITS, str(expected)]
        code = launch.run(bed, "explicit", 1, command, variables=asked, timeout_s=LIMIT_S)
        assert code == 0


def test_units_are_larger_where_only_other_ranks_than_the_first_see_the_distance(name):
    with ExitStack() as stack:
        bed = stack.enter_context(bed_for(Spec(name, hosts=2, delay_ms=8)))
        command = [sys.executable, "-c", _UNITS, str(8 << 20)]
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    bed.enter(start.host, start.command),
                    env={**launch.environment(bed), **start.variables},
                )
            )
            # Rank 0 is connected with ranks 1 and 2 only, both on its own host.
            for start in launch.explicit_starts([0, 0, 0, 1], command, name)
        ]
        assert [process.wait(LIMIT_S) for process in processes] == [0] * 4
