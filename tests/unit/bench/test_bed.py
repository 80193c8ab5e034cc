"""What is pure of the virtual network; tests/parallel/test_network_bed.py puts it up."""

from dataclasses import replace

import pytest

from bench.network import allreduce, launch, plan, program, sockets
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


def test_flows_that_are_slow_uncapped_or_have_another_congestion_control():
    slow = plan.shaping(Spec(flow_mbit=200, slow=0.25))
    assert any(f":{program.SLOW_MINOR:x} " in line and "ceil 50000000" in line for line in slow)
    uncapped = plan.shaping(Spec(flow_mbit=0, nic_mbit=1000))
    assert len(uncapped) == 3
    assert "default f0" in uncapped[0]
    assert not Spec(flow_mbit=0, nic_mbit=0).capped
    spec = Spec(hosts=3, congestion="cubic")
    assert plan.interior(spec, 1)[-1].endswith("src 10.77.0.2 congctl cubic")
    assert "congctl" not in " ".join(plan.interior(replace(spec, congestion=""), 1))


def test_torchrun_starts_an_agent_on_every_host():
    agents = launch.starts("torchrun", 2, 4, ["prog"], "secret", "bed")
    ranks = [agent.command[agent.command.index("--node-rank") + 1] for agent in agents]
    assert [agent.host for agent in agents] == [0, 1]
    assert ranks == ["0", "1"]


_SS = (
    "0   0   10.77.0.1:42122   [::ffff:10.77.0.2]:41207 cubic rto:201 bytes_acked:800 "
    "bytes_received:77 send 1Gbps pacing_rate 319.4Mbps/3.1Gbps delivery_rate 1Mbps app_limited\n"
    "0   0   10.77.0.1:29500   10.77.0.2:5000 bbr wscale:7,7 bytes_acked:1\n"
)


def test_connections_are_read_from_ss():
    ends = ("10.77.0.1:42122", "[::ffff:10.77.0.2]:41207")
    assert sockets.parse(_SS) == [
        sockets.Connection(*ends, 800, 77, "cubic", 319_400_000, 3_100_000_000),
        sockets.Connection("10.77.0.1:29500", "10.77.0.2:5000", 1, 0, "bbr", 0, 0),
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
