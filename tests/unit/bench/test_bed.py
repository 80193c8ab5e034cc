"""What is pure of the virtual network; tests/parallel/test_network_bed.py puts it up."""

import os
from dataclasses import replace

import pytest

from bench.network import allreduce, launch, plan, program, relay, sockets
from bench.network.plan import Spec


def test_names_of_different_beds_differ_and_fit():
    longest = Spec(name="abcdefgh", hosts=plan.MOST_HOSTS)
    longest.check()
    last = plan.MOST_HOSTS - 1
    names = {longest.bridge, longest.port(last), longest.namespace(last)}
    assert all(len(name) <= 15 and name.startswith("abcdefgh-") for name in names)
    assert len(names) == 3


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (Spec(name="a-b"), "name 'a-b'"),
        (Spec(name="much_too_long"), "expected 1 to 8 letters"),
        (Spec(hosts=0), "0 hosts"),
        (Spec(flow_mbit=-1), "negative rate"),
        (Spec(slow=0.5, flow_mbit=0), "and a flow cap"),
        (Spec(mtu=100), "MTU of 100"),
        (Spec(loss=2), "cannot be"),
    ],
)
def test_a_bed_that_cannot_be_is_refused(spec, problem):
    with pytest.raises(ValueError, match=problem):
        spec.check()


def test_every_flow_has_a_class_of_its_own_at_the_cap():
    lines = plan.shaping(Spec(flow_mbit=250, nic_mbit=1000))
    classes = [line.split() for line in lines if f"parent {program.MAJOR}:1 " in line]
    flows = [words for words in classes if words[words.index("ceil") + 1] == "250000000"]
    numbers = {words[words.index("classid") + 1] for words in flows}
    assert len(numbers) == len(flows) == plan.CLASSES
    assert all(int(number.partition(":")[2], 16) >= program.FIRST_MINOR for number in numbers)


def test_a_slow_flow_and_an_uncapped_one():
    slow = plan.shaping(Spec(flow_mbit=200, slow=0.25))
    assert any(f":{program.SLOW_MINOR:x} " in line and "ceil 50000000" in line for line in slow)
    uncapped = plan.shaping(Spec(flow_mbit=0, nic_mbit=1000))
    assert len(uncapped) == 3
    assert "default f0" in uncapped[0]
    assert not Spec(flow_mbit=0, nic_mbit=0).capped


def test_hosts_know_each_other_and_use_the_congestion_control():
    spec = Spec(hosts=3, congestion="cubic")
    assert "10.77.0.3 node2" in plan.hosts_file(spec).splitlines()
    assert plan.interior(spec, 1)[-1].endswith("src 10.77.0.2 congctl cubic")
    assert "congctl" not in " ".join(plan.interior(replace(spec, congestion=""), 1))


def test_a_relayed_bed_has_no_bridge():
    relayed = [spec.relayed for spec in (Spec(delay_ms=1), Spec(loss=0.1), Spec())]
    assert relayed == [True, True, False]
    assert not any("sw" in line for line in plan.namespaces(Spec(relay=True)))
    assert "netns add aiacc-sw" in plan.namespaces(Spec())
    assert relay.command(None, 2, 1.5, 1e-4, 0) == "set -1 2 1500 100 0"
    assert relay.command(0, None, 0, 1, 0.25) == "set 0 -1 0 1000000 250000"


def test_launchers_start_where_they_should():
    starts = launch.starts("explicit", 2, 2, ["prog", "a b"], "secret", "bed")
    ranks = [(start.host, start.variables["AIACC_RANK"]) for start in starts]
    assert ranks == [(0, "0"), (0, "1"), (1, "2"), (1, "3")]
    assert {start.variables["AIACC_ADDR"] for start in starts} == {"10.77.0.1:29500"}
    assert all(start.command == ["prog", "a b"] for start in starts)

    (mpirun,) = launch.starts("mpirun", 3, 2, ["prog"], "secret", "bed")
    assert (mpirun.host, mpirun.variables["AIACC_BED"]) == (0, "bed")
    assert "node0:2,node1:2,node2:2" in mpirun.command
    assert os.access(mpirun.variables["HYDRA_LAUNCHER_EXEC"], os.X_OK)

    # Without a launcher the command runs once, and its mpirun reaches the hosts.
    (none,) = launch.starts("none", 3, 2, ["aiaccrun", "-x"], "secret", "bed")
    assert none == replace(mpirun, command=["aiaccrun", "-x"])

    agents = launch.starts("torchrun", 2, 4, ["prog"], "secret", "bed")
    ranks = [agent.command[agent.command.index("--node-rank") + 1] for agent in agents]
    assert [(agent.host, rank) for agent, rank in zip(agents, ranks, strict=True)] == [
        (0, "0"),
        (1, "1"),
    ]


_SS = (
    "0      0          10.77.0.1:42122     10.77.0.2:41207 cubic wscale:7,7 rto:201 rtt:0.1/0.05 "
    "mss:1448 cwnd:10 bytes_sent:900 bytes_retrans:100 bytes_acked:800 bytes_received:77 "
    "send 1Gbps pacing_rate 319.4Mbps/3.1Gbps delivery_rate 1Mbps app_limited\n"
    "0      0      [::ffff:10.77.0.1]:29500 [::ffff:10.77.0.2]:5000 bbr wscale:7,7 bytes_acked:1\n"
)


def test_connections_are_read_from_ss():
    assert sockets.parse(_SS) == [
        sockets.Connection(
            "10.77.0.1:42122", "10.77.0.2:41207", 800, 77, "cubic", 319_400_000, 3_100_000_000
        ),
        sockets.Connection(
            "[::ffff:10.77.0.1]:29500", "[::ffff:10.77.0.2]:5000", 1, 0, "bbr", 0, 0
        ),
    ]
    with pytest.raises(ValueError, match="not a line of ss"):
        sockets.parse("Error: unknown option\n")


def test_what_the_bus_bandwidth_may_be_at_most():
    for spec, numbers, expected in (
        (Spec(), [2], 500),
        (Spec(), [8], 1000),
        (Spec(slow=0.25), [3], 562.5),
        (Spec(flow_mbit=0), [1], 1000),
        (Spec(), [1, 2], 500),
        (Spec(nic_mbit=0), [2, 4], 2000),
    ):
        assert allreduce.limit_mbit(spec, *numbers) == expected, (spec, numbers)


def test_the_flows_that_an_engine_promises():
    for engine, hosts, per_host, lanes, expected in (
        ("tcp", 4, 1, 3, 3),
        ("tcp", 4, 2, 3, None),
        ("hierarchical", 4, 2, 3, 6),
        ("mpi", 2, 1, 3, 3),
        ("hierarchical-mpi", 2, 2, 3, 6),
        ("hierarchical-mpi", 3, 2, 3, None),
    ):
        assert allreduce.promised(engine, hosts, per_host, lanes) == expected, engine
