"""Ranks on hosts with several interfaces and kinds of address find a way to each other.

Needs root: the hosts are network namespaces.
"""

import json
import os
import subprocess
import sys

import pytest

from bench.network import launch
from bench.network.bed import bed_for
from bench.network.plan import Spec
from tests.support.beds import bed_name, needed  # noqa: F401
from tests.support.programs import LIMIT_S, ROOT

pytestmark = pytest.mark.alone

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


def _both_say(folder):
    """A command of two ranks that cannot start."""
    meeting = folder / "meeting"
    os.mkfifo(meeting)
    return [sys.executable, "-c", _BOTH_SAY, str(meeting)]


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


def _compute(bed, launcher, folder, per_host=2, **variables):
    """Have all ranks use every kind of connection; what they said."""
    command = [sys.executable, "-c", _BODY, str(folder)]
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
        assert f"reach rank {rank} at {_common(spec, rank // 2)} (eth0): it is " in said
    assert "172.17.0.1" not in said


def _add_networks_inside(bed) -> None:
    """On every host a network of equal number that ends there, as that of a virtual machine's host.

    It has the default route; of what a rank sees, nothing tells it from one that both hosts have.
    """
    for host in (0, 1):
        for line in (
            "ip link add nat0 type veth peer name vm0",
            "ip link set vm0 up",
            f"ip address add 172.29.0.{host + 2}/16 dev nat0",
            "ip link set nat0 up",
            "ip route add default via 172.29.0.1",
        ):
            subprocess.run(bed.enter(host, line.split()), check=True)


def test_a_network_inside_every_host_is_found_out_through_a_directory(name, tmp_path):
    meet = 'unset AIACC_ADDR; exec "$@"'
    command = ["sh", "-c", meet, "sh", sys.executable, "-c", _BODY, str(tmp_path)]
    shared = {"AIACC_RENDEZVOUS_FILE": str(tmp_path / "meeting"), "AIACC_ENGINE": "tcp"}
    with bed_for(_spec(name, "4")) as bed:
        _add_networks_inside(bed)
        code, said = _launch(bed, "explicit", tmp_path, command, 2, shared)
    assert code == 0, said
    for rank in range(4):
        assert f"reach rank {rank} at 10.77.0.{rank // 2 + 1} (eth0): it is in a network" in said


@pytest.mark.mpi
def test_a_network_inside_every_host_is_found_out_under_mpirun(name, tmp_path):
    with bed_for(_spec(name, "4")) as bed:
        _add_networks_inside(bed)
        said = _compute(bed, "mpirun", tmp_path)
    assert "172.29." not in said


def _common(spec: Spec, host: int) -> str:
    """Address of a host, of the kind that both have."""
    return next(one for one in spec.addresses(host) if (":" in one) == (":" in spec.meeting))


def test_hosts_of_all_kinds_by_a_name_with_two_addresses(name, tmp_path):
    """The first host only knows itself as 127.0.1.1, as Debian has it."""
    own = tmp_path / "hosts"
    own.write_text("127.0.0.1 localhost\n127.0.1.1 node0\n")
    with bed_for(_spec(name, "46,6,46", hosts=3)) as bed:
        enter = f'test $(hostname) != node0 || mount --bind {own} /etc/hosts; exec "$@"'
        command = ["sh", "-c", enter, "sh", sys.executable, "-c", _BODY, str(tmp_path)]
        variables = {"AIACC_ADDR": f"node0:{launch.PORT}", "AIACC_ENGINE": "tcp"}
        code, said = _launch(bed, "explicit", tmp_path, command, 1, variables)
    assert code == 0, said
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


@pytest.mark.nightly
def test_training_between_hosts_of_ipv6(name, tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), "--max-steps", "6"]
    with bed_for(_spec(name, "6")) as bed:
        code, said = _launch(bed, "explicit", tmp_path, command, 2, {})
    assert code == 0, said
    assert "on 4 rank(s)" in said


@pytest.mark.parametrize("interface", ["docker0", "lo"])
def test_an_interface_that_leads_nowhere_is_an_error_that_lists_addresses(
    name, interface, tmp_path
):
    with bed_for(_spec(name, "4")) as bed:
        command, wrong = _both_say(tmp_path), {"AIACC_IFACE": interface}
        code, said = _launch(bed, "explicit", tmp_path, command, 1, wrong)
    assert code == 1
    assert said.count("BootstrapError: [bootstrap] ranks 0 and 1 have no addresses") == 2, said
    listed = "docker0 172.17.0.1/16 (another host has it, too)"
    assert (listed if interface == "docker0" else "lo 127.0.0.1/8 (loopback)") in said
    assert "set AIACC_IFACE" in said


def test_a_wrong_interface_of_one_rank_is_an_error_of_all(name, tmp_path):
    with bed_for(_spec(name, "4")) as bed:
        choose = 'test $AIACC_RANK = 0 || export AIACC_IFACE=eth7; exec "$@"'
        command = ["sh", "-c", choose, "sh", *_both_say(tmp_path)]
        code, said = _launch(bed, "explicit", tmp_path, command, 1, {})
    assert code == 1
    assert said.count("[bootstrap] rank 1: AIACC_IFACE=eth7 names no interface that is up") == 2
    assert "eth0 10.77.0.2" in said
