"""Virtual hosts leave nothing behind, and ranks on them find each other. Needs root."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from aiacc.run import netcheck
from bench.bed import BedError, launch
from bench.bed.bed import Bed, Flow, bed_for, require_root, take_down
from bench.bed.plan import DATA_BYTES, FIRST_MINOR, SLOW_MINOR, Spec
from bench.job import run_on
from bench.network.faults.plan import choose
from bench.network.faults.row import one
from tests.support.programs import LIMIT_S, ROOT, needs

pytestmark = pytest.mark.alone


def _why_not():
    try:
        require_root()
    except BedError as error:
        return str(error)
    return ""


needed = needs(_why_not())


def traces(name):
    """What is left of a bed."""
    folders = (Path("/run/netns"), Path("/sys/class/net"), Path("/run/aiacc-network"))
    found = [entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir()]
    return sorted(entry for entry in found if entry.startswith(name) and "lock" not in entry)


@pytest.fixture(name="name")
def bed_name():
    """A name that no other bed of this machine has; nothing of it is left after the test."""
    chosen = f"t{secrets.token_hex(3)}"
    yield chosen
    left = traces(chosen)
    take_down(chosen)
    (Path("/run/aiacc-network") / f"{chosen}.lock").unlink(missing_ok=True)
    assert left == []


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


def _send(bed: Bed, connections: int, each_bytes: int) -> list[Flow]:
    """From host 0 to host 1, on some connections one after the other; what host 0 has sent."""
    server = bed.enter(1, [sys.executable, "-c", _SERVER, str(connections)])
    client = bed.enter(0, [sys.executable, "-c", _CLIENT, str(connections), str(each_bytes)])
    with subprocess.Popen(server, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        subprocess.run(client, check=True, timeout=LIMIT_S)
        assert process.wait(LIMIT_S) == 0
    return bed.flows(0)


def test_every_flow_has_a_class_of_its_own_and_one_of_host_0_is_slow(name):
    """Bytes of each are counted."""
    with bed_for(Spec(name, hosts=2, slow=0.25)) as bed:
        flows = _send(bed, connections=40, each_bytes=3000)
        assert len({flow.minor for flow in flows}) == len(flows) == 40
        assert all(3000 < flow.sent_bytes < 6000 for flow in flows)
        assert len(bed.flows(1)) == 40
        bed.reset()
        assert bed.flows(0) == []
        flows = _send(bed, connections=3, each_bytes=2 * DATA_BYTES)
        slow = [flow.minor == SLOW_MINOR for flow in flows]
        assert slow.count(True) == 1
        with pytest.raises(BedError, match="has a bridge"):  # which has no path to change
            bed.set_path(loss=1)


def test_a_run_ends_with_an_error_if_some_flow_had_no_class(name, monkeypatch):
    monkeypatch.setattr("bench.bed.bed.CLASSES", 10)
    with pytest.raises(BedError, match="expected at most 10"), bed_for(Spec(name, hosts=2)) as bed:
        flows = _send(bed, connections=12, each_bytes=1)
    assert sorted(flow.minor for flow in flows) == [*range(FIRST_MINOR, FIRST_MINOR + 12)]


def test_netcheck_finds_the_lanes_that_fill_the_caps(name, tmp_path):
    command = ["aiaccrun", "--netcheck", "node0,node1"]
    with bed_for(Spec(name, hosts=2, flow_mbit=500, nic_mbit=2000)) as bed:
        assert launch.run(bed, "none", 1, command, timeout_s=LIMIT_S, output_folder=tmp_path) == 0
        heavy = [flow for flow in bed.flows(0) if flow.sent_bytes > DATA_BYTES]
    said = (tmp_path / "rank.0" / "stdout").read_text()
    assert said.count("Mbit/s") == 5
    # 1 and 2 flows leave interfaces idle. A busy machine may make 8 look better than 4.
    assert "AIACC_LANES=1 " not in said
    assert int(said.rpartition("AIACC_LANES=")[2]) >= 4
    assert len(heavy) == netcheck.LANES, "not every lane has had a flow of its own"


def test_what_a_killed_run_leaves_goes_with_the_next(name):
    command = [sys.executable, "-m", "bench.bed", "run", "--name", name, "--hosts", "2"]
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
    monkeypatch.setattr("bench.bed.bed.shaping", lambda spec: ["nonsense"])
    with pytest.raises(BedError, match="nonsense"), bed_for(Spec(name, hosts=2)):
        pass


def test_the_relay_carries_loses_and_comes_back(name):
    with bed_for(Spec(name, hosts=2, relay=True, flow_mbit=0, nic_mbit=0)) as bed:
        # While the hosts come up, IPv6 greets some that are not there yet.
        start = bed.set_path()
        _send(bed, connections=2, each_bytes=100_000)
        before = bed.set_path(loss=1)
        assert before.lost == start.lost
        assert before.carried - start.carried > 2 * 100_000 / 1500
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


def test_what_is_lost_or_overtaken_arrives_right_in_the_end(name, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    task = {"key": "tcp:4", "bytes": 4 << 20, "iterations": 2}
    with bed_for(Spec(name, hosts=2, delay_ms=1, loss=0.005, reorder=0.02)) as bed:
        run_on(bed, "bench.network.allreduce:run", task, timeout_s=LIMIT_S)
        count = bed.set_path()
    # Segments are counted and lost, however many of them travel in one large frame.
    assert count.carried > 2 * 3 * (4 << 20) / 1500
    assert 0 < count.lost < count.carried / 50


def test_a_run_of_the_faults(name):
    fault = replace(choose("half_open", 1), ranks_of=(2, 1), victim=2, step=2, short_io=True)
    outcome, result, folder = one(fault, name)
    assert (result.outcome, folder) == ("clear error", None), result.problems
    ranks = [outcome.reports[rank] for rank in range(3)]
    assert [rank.outcome for rank in ranks] == ["error", "error", ""]
    assert [rank.code for rank in ranks] == [0, 0, -signal.SIGKILL]
    for survivor in ranks[:2]:
        assert survivor.type == "PeerLostError"
        assert "rank 2" in survivor.text
        assert survivor.checked > 0
        assert survivor.short_calls > 0
    assert outcome.struck


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
    ("delay_ms", "asked", "places", "expected"),
    [
        (0, {}, [0, 1], 1 << 20),
        (8, {}, [0, 1], 8 << 20),
        (8, {"AIACC_UNIT_BYTES": "64K"}, [0, 1], 64 << 10),
        # Rank 0 is connected with ranks 1 and 2 only, both on its own host.
        (8, {}, [0, 0, 0, 1], 8 << 20),
    ],
    ids=["near", "far", "as asked for", "far from others than the first"],
)
def test_units_are_larger_between_hosts_that_are_far_from_each_other(
    name, delay_ms, asked, places, expected
):
    with ExitStack() as stack:
        bed = stack.enter_context(bed_for(Spec(name, hosts=2, delay_ms=delay_ms)))
        command = [sys.executable, "-c", _UNITS, str(expected)]
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    bed.enter(start.host, start.command),
                    env={**launch.environment(bed), **start.variables, **asked},
                )
            )
            for start in launch.explicit_starts(bed.spec, places, command)
        ]
        assert [process.wait(LIMIT_S) for process in processes] == [0] * len(places)


# --- hosts with several interfaces and kinds of address

#: Lanes, the express lane, and the pairs of an all-to-all.
_BODY = """
import json, pathlib, socket, sys
import numpy as np
import aiacc.array as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
large = hvd.allreduce(np.full(1 << 20, rank + 1.0, np.float32), op=hvd.Sum)
found = {
    "place": [socket.gethostname(), hvd.local_rank(), hvd.cross_rank()],
    "large": [float(large.min()), float(large.max())],
    "small": hvd.allreduce(np.full(3, rank + 1.0), op=hvd.Sum).tolist(),
    "gathered": hvd.allgather(np.array([rank])).tolist(),
    "exchanged": hvd.alltoall(np.arange(size) + 100 * rank).tolist(),
    "root": hvd.broadcast(np.array([rank]), size - 1).tolist(),
}
(pathlib.Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(found))
hvd.shutdown()
"""
#: The first rank that ends takes the other along, so they meet at a FIFO before they do.
_BOTH_SAY = """
import os, sys
import aiacc.array as hvd
from aiacc import exceptions
try:
    hvd.init()
except exceptions.BootstrapError as error:
    print(f"BootstrapError: {error}", flush=True)
    open(sys.argv[1], "rw"[os.environ["AIACC_RANK"] == "1"]).close()
    sys.exit(1)
"""


def _spec(name: str, families: str, hosts: int = 2) -> Spec:
    return Spec(name, hosts, flow_mbit=0, nic_mbit=0, families=families, docker=True)


def _launch(bed, launcher, folder, command, per_host, variables):
    """Exit code, and what all ranks said."""
    output = folder / "output"
    code = launch.run(
        bed,
        launcher,
        per_host,
        command,
        variables={"PYTHONPATH": str(ROOT), "AIACC_LOG_LEVEL": "info", **variables},
        timeout_s=LIMIT_S,
        output_folder=output,
    )
    return code, "".join(path.read_text() for path in sorted(output.rglob("std*")))


def _compute(bed, launcher, folder, per_host=2, before=(), **variables):
    """Have all ranks use every kind of connection; what they said."""
    command = [*before, sys.executable, "-c", _BODY, str(folder)]
    code, said = _launch(
        bed, launcher, folder, command, per_host, {"AIACC_ENGINE": "tcp", **variables}
    )
    assert code == 0, said
    size = bed.spec.hosts * per_host
    total = size * (size + 1) / 2
    for rank in range(size):
        assert json.loads((folder / f"{rank}.json").read_text()) == {
            "place": [f"node{rank // per_host}", rank % per_host, rank // per_host],
            "large": [total, total],
            "small": [total] * 3,
            "gathered": list(range(size)),
            "exchanged": [100 * other + rank for other in range(size)],
            "root": [size - 1],
        }
    return said


@pytest.mark.parametrize(
    ("launcher", "families"),
    [
        ("explicit", "4"),
        ("explicit", "6"),
        ("explicit", "6,46"),
        pytest.param("torchrun", "46", marks=pytest.mark.nightly),
        ("torchrun", "6"),
        pytest.param("mpirun", "4", marks=pytest.mark.mpi),
    ],
)
def test_hosts_behind_the_same_docker0_reach_each_other(name, launcher, families, tmp_path):
    spec = _spec(name, families)
    with bed_for(spec) as bed:
        said = _compute(bed, launcher, tmp_path)
    for rank in range(4):
        common = (a for a in spec.addresses(rank // 2) if (":" in a) == (":" in spec.meeting))
        assert f"reach rank {rank} at {next(common)} (eth0): it is " in said
    assert "172.17.0.1" not in said


@pytest.mark.parametrize(
    "launcher",
    ["explicit", pytest.param("mpirun", marks=pytest.mark.mpi)],
    ids=["directory", "mpirun"],
)
def test_a_network_inside_every_host_is_found_out(name, launcher, tmp_path):
    """One of equal number that ends there, as that of a virtual machine's host.

    It has the default route; of what a rank sees, nothing tells it from one that both hosts have.
    """
    meeting = {"AIACC_RENDEZVOUS_FILE": str(tmp_path / "meeting"), "AIACC_ADDR": ""}
    with bed_for(_spec(name, "4")) as bed:
        for host in (0, 1):
            for line in (
                "ip link add nat0 type veth peer name vm0",
                "ip link set vm0 up",
                f"ip address add 172.29.0.{host + 2}/16 dev nat0",
                "ip link set nat0 up",
                "ip route add default via 172.29.0.1",
            ):
                subprocess.run(bed.enter(host, line.split()), check=True)
        said = _compute(bed, launcher, tmp_path, **(meeting if launcher == "explicit" else {}))
    assert "172.29." not in said
    for rank in range(4) if launcher == "explicit" else ():
        assert f"reach rank {rank} at 10.77.0.{rank // 2 + 1} (eth0): it is in a network" in said


def test_hosts_of_all_kinds_by_a_name_with_two_addresses(name, tmp_path):
    """The first host only knows itself as 127.0.1.1, as Debian has it."""
    own = tmp_path / "hosts"
    own.write_text("127.0.0.1 localhost\n127.0.1.1 node0\n")
    with bed_for(_spec(name, "46,6,46", hosts=3)) as bed:
        enter = f'test $(hostname) != node0 || mount --bind {own} /etc/hosts; exec "$@"'
        before, address = ("sh", "-c", enter, "sh"), f"node0:{launch.PORT}"
        said = _compute(bed, "explicit", tmp_path, 1, before, AIACC_ADDR=address)
    assert "reach rank 0 at fd77::1 (eth0)" in said
    assert "; at 10.77.0.1 (eth0): it is on the way to where the ranks meet" in said
    assert "reach rank 1 at fd77::2 (eth0)" in said


def test_a_meeting_at_a_link_local_address(name, tmp_path):
    with bed_for(_spec(name, "4")) as bed:
        for host in (0, 1):
            add = ["ip", "address", "add", f"fe80::{host + 1}/64", "dev", "eth0", "nodad"]
            subprocess.run(bed.enter(host, add), check=True)
        meeting = f"[fe80::1%eth0]:{launch.PORT}"
        said = _compute(bed, "explicit", tmp_path, per_host=1, AIACC_ADDR=meeting)
    assert "reach rank 0 at fe80::1 (eth0): it is on the way to where the ranks meet" in said
    assert "reach rank 1 at fe80::" in said


_NO_ADDRESSES = "ranks 0 and 1 have no addresses"


@pytest.mark.parametrize(
    ("chosen", "text", "listed"),
    [
        ("docker0", _NO_ADDRESSES, "docker0 172.17.0.1/16 (another host has it, too)"),
        ("lo", _NO_ADDRESSES, "lo 127.0.0.1/8 (loopback)"),
        ("eth7", "rank 1: AIACC_IFACE=eth7 names no interface that is up", "eth0 10.77.0.2"),
    ],
)
def test_an_interface_that_leads_nowhere_is_an_error_of_all_that_lists_addresses(
    name, chosen, text, listed, tmp_path
):
    of_whom = "test $AIACC_RANK = 0 ||" if chosen == "eth7" else ""
    choose = f'{of_whom} export AIACC_IFACE={chosen}; exec "$@"'
    meeting = tmp_path / "meeting"
    os.mkfifo(meeting)
    command = ["sh", "-c", choose, "sh", sys.executable, "-c", _BOTH_SAY, str(meeting)]
    with bed_for(_spec(name, "4")) as bed:
        code, said = _launch(bed, "explicit", tmp_path, command, 1, {})
    assert code == 1
    assert said.count(f"BootstrapError: [bootstrap] {text}") == 2, said
    assert listed in said
    assert re.search(r"\bset (AIACC_IFACE|it)\b", said)


_SUMS = """
import numpy as np
import aiacc.array as hvd
hvd.init()
sums = [float(hvd.allreduce(np.ones(3), op=hvd.Sum)[0]) for _ in range(20)]
print(f"rank {hvd.rank()} of {hvd.local_size()} here: {sums == [8.0] * 20}", flush=True)
hvd.barrier()
hvd.shutdown()
"""


def test_ranks_in_eight_containers_of_one_machine_agree_over_sockets(name, tmp_path):
    """Each has a network of its own, so none can give another its memory; one line says so."""
    enter = 'hostname pod; export AIACC_LOCAL_SIZE=8 AIACC_LOCAL_RANK=$AIACC_RANK; exec "$@"'
    command = ["sh", "-c", enter, "sh", sys.executable, "-c", _SUMS]
    with bed_for(Spec(name, hosts=8)) as bed:
        code, said = _launch(bed, "explicit", tmp_path, command, 1, {})
    assert code == 0, said
    assert sorted(re.findall(r"rank \d of 8 here: True", said)) == [
        f"rank {rank} of 8 here: True" for rank in range(8)
    ]
    assert said.count("[control] the ranks of this host agree over sockets: ") == 1
