"""Negotiation is a pure function of the table, so it is tested as one."""

import dataclasses
import itertools

import pytest

from aiacc.bootstrap.job_plan import (
    Contribution,
    RankTopology,
    agree,
    host_id,
    new_token,
    warning_about_commands,
)
from aiacc.bootstrap.reach import Candidate, Presence
from aiacc.exceptions import BootstrapError

NO_MPI = "no MPI library; pip install mpich"
WITH_MPI = {"local": "only for size 1", "shm": "", "tcp": "", "hierarchical": ""} | {
    "mpi": "",
    "hierarchical-mpi": "",
}
ENGINES = WITH_MPI | {"mpi": NO_MPI, "hierarchical-mpi": NO_MPI}


def row(rank, size, **changes):
    standard = Contribution(
        rank=rank,
        size=size,
        host="a/boot",
        presence=Presence("stack a", 5000 + rank, [Candidate("eth0", "10.0.0.1", 24)]),
        engine="auto",
        gpu_engine="auto",
        engines=ENGINES,
        lanes=0,
        unit_bytes=2097152,
        version="0.1.0",
        launcher="rendezvous",
        generation=0,
        token=bytes([rank] * 16),
    )
    return dataclasses.replace(standard, **changes)


def table(size, **changes):
    return [row(rank, size, **changes) for rank in range(size)]


def on_hosts(hosts, **changes):
    """Rows of ranks on these hosts, one letter for each rank."""
    return [row(rank, len(hosts), host=host, **changes) for rank, host in enumerate(hosts)]


def change(rows, rank, **changes):
    rows[rank] = dataclasses.replace(rows[rank], **changes)
    return rows


def test_addresses_token_and_epoch_of_the_job():
    got = agree(change(table(3), 2, generation=7))
    assert got.reach.seen_by(2) == ("10.0.0.1:5000", "10.0.0.1:5001", "10.0.0.1:5002")
    assert got.token == bytes(16)
    assert got.epoch == 7
    assert got.unit_bytes == 2097152


def test_the_weakest_gpu_of_all_ranks_and_who_has_it():
    rows = table(4, gpu_capability=9)
    assert agree(rows).gpu_capability == (9, 0)
    rows = change(change(rows, 2, gpu_capability=8), 3, gpu_capability=8)
    assert agree(rows).gpu_capability == (8, 2)
    assert agree(change(rows, 1, gpu_capability=0)).gpu_capability == (0, 0)


def test_a_row_survives_the_wire():
    full = row(
        3,
        5,
        local_rank=1,
        local_size=2,
        equal={"AIACC_CACHE_CAPACITY": 4096, "B": True},
        gpus=["0000:1a:00.0"],
    )
    assert Contribution.decode(full.encode()) == full


@pytest.mark.parametrize(
    ("hosts", "launcher", "lacking", "engine", "said"),
    [
        ("aab", "pmix", [], "hierarchical-mpi", ""),
        ("abc", "pmix", [], "mpi", ""),
        ("aab", "pmix", [2], "hierarchical", "rank 2: no MPI library"),
        ("abc", "pmi", [1, 2], "tcp", "rank 1: no MPI library"),
        ("aab", "torchrun", [1], "hierarchical", ""),
        # On one host MPI has nothing to do.
        ("aaa", "pmi", [], "hierarchical", ""),
        ("aaa", "pmi", [1], "hierarchical", ""),
    ],
)
def test_a_job_of_mpirun_says_why_it_does_without_mpi(hosts, launcher, lacking, engine, said):
    rows = on_hosts(hosts, launcher=launcher, engines=WITH_MPI, fabrics=["mlx5_0"])
    for rank in lacking:
        change(rows, rank, engines=ENGINES)
    plan = agree(rows)
    assert plan.engine == engine
    assert plan.engine_reason.startswith(said)
    assert bool(plan.engine_reason) == bool(said)


def test_mpi_is_for_jobs_whose_hosts_all_have_a_fabric():
    rows = on_hosts("aabb", launcher="pmi", engines=WITH_MPI, fabrics=["mlx5_0"])
    assert agree(rows).engine == "hierarchical-mpi"
    plan = agree(change(rows, 3, fabrics=[]))
    assert plan.engine == "hierarchical"
    assert "rank 3 on b has no fabric that it may use, rank 0 on a has mlx5_0" in plan.engine_reason
    plan = agree(on_hosts("aabb", launcher="pmi", engines=ENGINES))
    assert (plan.engine, plan.engine_reason) == ("hierarchical", "")
    plan = agree(on_hosts("ab", launcher="pmix", engines=ENGINES))
    assert (plan.engine, plan.engine_reason) == ("tcp", "")


def test_nothing_is_said_about_an_engine_that_was_asked_for():
    plan = agree(table(2, launcher="pmi", engine="tcp"))
    assert (plan.engine, plan.engine_reason) == ("tcp", "")


_NO_ADDRESS = row(0, 1, presence=Presence("s", 1, [Candidate("eth0", "10.0.0.300", 24)]))


@pytest.mark.parametrize(
    "payload",
    [b"", b"{}", b"[]", b"\xff", b'{"token": 3}', b"null", _NO_ADDRESS.encode()],
)
def test_a_row_that_cannot_be_read(payload):
    with pytest.raises(BootstrapError, match="cannot be read"):
        Contribution.decode(payload)


@pytest.mark.parametrize(
    ("field", "values", "name"),
    [
        ("engine", ("tcp", "mpi"), "AIACC_ENGINE"),
        ("lanes", (2, 3), "AIACC_LANES"),
        ("unit_bytes", (1024, 2048), "AIACC_UNIT_BYTES"),
        ("version", ("0.1.0", "0.2.0"), "version of aiacc"),
    ],
)
def test_settings_that_differ_name_both_ranks_and_values(field, values, name):
    rows = change(table(4, **{field: values[0]}), 2, **{field: values[1]})
    with pytest.raises(BootstrapError) as raised:
        agree(rows)
    assert f"{name}: {values[0]} on rank 0, {values[1]} on rank 2" in str(raised.value)


def test_other_settings_that_must_be_equal():
    rows = table(3, equal={"AIACC_CACHE_CAPACITY": 16})
    assert agree(rows)
    with pytest.raises(BootstrapError, match="AIACC_CACHE_CAPACITY: 16 on rank 0, 8 on rank 1"):
        agree(change(rows, 1, equal={"AIACC_CACHE_CAPACITY": 8}))
    with pytest.raises(BootstrapError, match=r"16 on rank 0, \(absent\) on rank 2"):
        agree(change(table(3, equal={"AIACC_CACHE_CAPACITY": 16}), 2, equal={}))


def test_wrong_sizes_and_ranks():
    with pytest.raises(BootstrapError, match="rank 1 was started with size 3, but 2 ranks came"):
        agree(change(table(2), 1, size=3))
    with pytest.raises(BootstrapError, match="the row of rank 1 says rank 0"):
        agree([row(0, 2), row(0, 2)])


@pytest.mark.parametrize(
    ("hosts", "launcher", "expected"),
    [
        ("a", "alone", "local"),
        ("a", "pmi", "local"),
        ("aa", "rendezvous", "hierarchical"),
        ("aa", "torchrun", "hierarchical"),
        ("aa", "pmix", "hierarchical"),
        ("aabb", "slurm", "hierarchical"),
        ("abbb", "torchrun", "hierarchical"),
        ("ab", "torchrun", "tcp"),
        ("ab", "pmi", "mpi"),
        ("abab", "pmix", "hierarchical-mpi"),
    ],
)
def test_automatic_engine(hosts, launcher, expected):
    rows = on_hosts(hosts, launcher=launcher, engines=WITH_MPI, fabrics=["mlx5_0"])
    assert agree(rows).engine == expected


def test_a_requested_engine_must_run_on_every_rank():
    rows = table(4, engine="mpi", engines=WITH_MPI)
    assert agree(rows).engine == "mpi"
    with pytest.raises(BootstrapError, match="engine mpi cannot run on rank 2: no MPI library"):
        agree(change(rows, 2, engines=ENGINES))
    with pytest.raises(BootstrapError, match="engine sockets cannot run on rank 0: this build"):
        agree(table(2, engine="sockets"))


def test_tensors_on_gpus_are_staged_unless_every_rank_has_nccl():
    everywhere = table(3, engines=ENGINES | {"nccl": ""})
    assert agree(everywhere).gpu_engine == "nccl"
    assert agree(change(everywhere, 1, engines=ENGINES | {"nccl": "no GPU"})).gpu_engine == "staged"
    assert agree(table(3)).gpu_engine == "staged"
    assert (
        agree(table(2, gpu_engine="staged", engines=ENGINES | {"nccl": ""})).gpu_engine == "staged"
    )
    for engine in ("nccl", "hierarchical", "hierarchical-tcp"):
        assert (
            agree(table(2, gpu_engine=engine, engines=ENGINES | {"nccl": ""})).gpu_engine == engine
        )
        with pytest.raises(
            BootstrapError, match=r"nccl cannot run on rank 0.*another AIACC_GPU_ENGINE"
        ):
            agree(table(2, gpu_engine=engine))
    with_both = table(2, gpu_engine="hierarchical-mpi", engines=WITH_MPI | {"nccl": ""})
    assert agree(with_both).gpu_engine == "hierarchical-mpi"
    with pytest.raises(
        BootstrapError, match=r"mpi cannot run on rank 1: no MPI.*another AIACC_GPU_ENGINE"
    ):
        agree(change(with_both, 1, engines=ENGINES | {"nccl": ""}))
    with pytest.raises(
        BootstrapError, match="disagree about AIACC_GPU_ENGINE: auto on rank 0, nccl"
    ):
        agree(change(table(2), 1, gpu_engine="nccl"))


def sharing(gpus, **changes):
    """Rows of ranks of one host that see these GPUs, one letter for each."""
    return [
        row(rank, len(gpus), gpus=list(seen), engines=ENGINES | {"nccl": ""}, **changes)
        for rank, seen in enumerate(gpus)
    ]


@pytest.mark.parametrize(
    ("gpus", "ranks"),
    [
        (["a"], None),
        (["ab", "ab"], None),
        (["a", "b"], None),
        (["a", "abc", "abc"], None),
        (["a", "a"], "ranks 0, 1 of host a see 1 GPU together"),
        (["ab", "ab", "ab"], "ranks 0, 1, 2 of host a see 2 GPUs together"),
        (["abcd", "a", "abcd", "a"], "ranks 1, 3 of host a see 1 GPU together"),
        (["ab", "bc", "ca", "ab"], "ranks 0, 1, 2, 3 of host a see 3 GPUs together"),
        (["a", ""], None),
    ],
)
def test_ranks_that_must_share_a_gpu_are_staged(gpus, ranks):
    plan = agree(sharing(gpus))
    assert plan.gpu_engine == ("nccl" if ranks is None else "staged")
    assert (ranks or "") in plan.gpu_engine_reason
    assert bool(plan.gpu_engine_reason) == (ranks is not None)


def test_ranks_that_may_share_a_gpu_keep_nccl():
    assert agree(sharing(["a", "a"], nccl_shares_gpus=True)).gpu_engine == "nccl"
    assert agree(change(sharing(["a", "a"]), 0, nccl_shares_gpus=True)).gpu_engine == "staged"
    assert agree(change(sharing(["a", "a"]), 1, host="b/boot")).gpu_engine == "nccl"
    # What NCCL takes for hosts decides.
    assert agree(change(sharing(["a", "a"]), 1, nccl_host="h1")).gpu_engine == "nccl"
    apart = change(sharing(["a", "a"], nccl_host="h"), 1, host="b/boot")
    assert agree(apart).gpu_engine == "staged"


@pytest.mark.parametrize("engine", ["nccl", "hierarchical"])
def test_who_asks_for_nccl_gets_it(engine):
    plan = agree(sharing(["a", "a"], gpu_engine=engine))
    assert (plan.gpu_engine, plan.gpu_engine_reason) == (engine, "")


@pytest.mark.parametrize(
    ("hosts", "lanes"), [("a", 1), ("aa", 2), ("aaaa", 2), ("ab", 4), ("aabb", 4)]
)
def test_automatic_lanes(hosts, lanes):
    assert agree(on_hosts(hosts)).lanes == lanes


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_lanes_that_are_tuned_or_asked_for(hosts):
    assert agree(on_hosts(hosts, lanes=7)).lanes == 7
    assert agree(on_hosts(hosts, equal={"AIACC_AUTOTUNE": True})).lanes == 8


def test_places_follow_the_hosts_in_rank_order():
    rows = table(5)
    for rank, host in enumerate("abaab"):
        change(rows, rank, host=host)
    got = agree(rows)
    assert got.topologies == (
        RankTopology(0, 3, 0, 2),
        RankTopology(0, 2, 1, 2),
        RankTopology(1, 3, 0, 2),
        RankTopology(2, 3, 0, 1),
        RankTopology(1, 2, 1, 2),
    )
    assert got.host_of == (0, 1, 0, 0, 1)
    assert not got.homogeneous


def test_places_that_the_launcher_gave():
    rows = table(4)
    for rank in range(4):
        change(rows, rank, local_rank=rank % 2, local_size=2)
    got = agree(rows)
    assert got.topologies == (
        RankTopology(0, 2, 0, 2),
        RankTopology(1, 2, 0, 2),
        RankTopology(0, 2, 1, 2),
        RankTopology(1, 2, 1, 2),
    )
    assert got.homogeneous


def test_places_of_a_launcher_count_only_if_every_rank_has_them():
    rows = change(table(3), 1, local_rank=0, local_size=1)
    assert [topology.local_rank for topology in agree(rows).topologies] == [0, 1, 2]


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ("0/2 1/2 0/2 1/2", (0, 0, 1, 1)),
        ("0/2 0/2 1/2 1/2", (0, 1, 0, 1)),
        ("0/3 1/3 2/3 0/1", (0, 0, 0, 1)),
        ("0/1 0/3 1/3 2/3", (0, 1, 1, 1)),
        ("0/2 1/2 0/1 0/1", (0, 0, 1, 2)),
        ("1/2 0/2", (0, 1)),
    ],
)
def test_hosts_that_a_launcher_made_of_one_machine(local, expected):
    pairs = [tuple(map(int, pair.split("/"))) for pair in local.split()]
    rows = table(len(pairs))
    for rank, (local_rank, local_size) in enumerate(pairs):
        change(rows, rank, local_rank=local_rank, local_size=local_size)
    assert agree(rows).host_of == expected


def test_hosts_of_different_names_are_different():
    rows = table(4, local_size=2)
    for rank, (host, local_rank) in enumerate([("a", 0), ("b", 0), ("b", 1), ("a", 1)]):
        change(rows, rank, host=host, local_rank=local_rank)
    assert agree(rows).host_of == (0, 1, 1, 0)


@pytest.mark.parametrize(("local_rank", "local_size"), [(2, 2), (-1, 2), (0, 0), (0, 3)])
def test_impossible_places(local_rank, local_size):
    rows = table(2, local_rank=0, local_size=2)
    with pytest.raises(BootstrapError, match=rf"rank 1 was given local rank {local_rank} of"):
        agree(change(rows, 1, local_rank=local_rank, local_size=local_size))


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_places_are_consistent_for_every_spread_over_two_hosts(size):
    for hosts in itertools.product("ab", repeat=size):
        rows = table(size)
        for rank, host in enumerate(hosts):
            change(rows, rank, host=host)
        topologies = agree(rows).topologies
        keys = [(hosts[rank], topology.local_rank) for rank, topology in enumerate(topologies)]
        assert len(set(keys)) == size
        crosses = [(topology.local_rank, topology.cross_rank) for topology in topologies]
        assert len(set(crosses)) == size
        assert all(topology.local_rank < topology.local_size for topology in topologies)
        assert all(topology.cross_rank < topology.cross_size for topology in topologies)


def test_names_and_tokens_of_this_process():
    assert host_id() == host_id()
    assert len(new_token()) == 16
    assert new_token() != new_token()


def warnings_about(*commands):
    rows = [row(rank, len(commands), command=list(one)) for rank, one in enumerate(commands)]
    return [warning_about_commands(rows, rank) for rank in range(len(rows))]


@pytest.mark.parametrize(
    "commands",
    [
        [[], []],
        [["train.py", "--lr", "0.1"]] * 3,
        [["train.py", "--rank=0", "out0.txt"], ["train.py", "--rank=1", "out1.txt"]],
        [["train.py", "0", "host-12"], ["train.py", "1", "host-12"], ["train.py", "2", "host-12"]],
    ],
)
def test_ranks_may_have_their_numbers_in_their_command_lines(commands):
    assert warnings_about(*commands) == [""] * len(commands)


def test_both_ends_hear_of_command_lines_that_differ():
    mine, other, like_mine = ["train.py", "--lr", "0.1"], ["train.py", "--lr", "0.2"], ["train.py"]
    first, second, third = warnings_about(mine, other, mine)
    assert "rank 0 runs train.py with 0.1, rank 1 train.py with 0.2" in first
    assert (second, third) == (first, "")
    assert (
        "rank 0 runs train.py with --lr, rank 1 train.py with less"
        in warnings_about(mine, like_mine)[1]
    )
    assert "rank 0 runs a.py, rank 1 b.py" in warnings_about(["a.py"], ["b.py"])[0]


def test_lanes_on_gpus_are_as_many_as_are_safe_everywhere():
    engines = ENGINES | {"nccl": ""}
    assert agree(table(3, engines=engines)).gpu_lanes == 2
    assert agree(table(3)).gpu_lanes == 1
    four = {"engines": engines, "gpu_lanes": 4}
    assert agree(table(3, **four)).gpu_lanes == 4
    unsafe = {"gpu_lanes_problem": "not safe"}
    assert agree(change(table(3, engines=engines), 2, **unsafe)).gpu_lanes == 1
    assert agree(change(table(3, engines=engines, gpu_lanes=1), 2, **unsafe)).gpu_lanes == 1
    with pytest.raises(BootstrapError, match="AIACC_GPU_LANES=4 on rank 2: not safe"):
        agree(change(table(3, **four), 2, **unsafe))
    with pytest.raises(BootstrapError, match="disagree about AIACC_GPU_LANES"):
        agree(change(table(3, **four), 1, gpu_lanes=3))


def test_a_rank_without_room_for_its_threads_ends_all():
    rows = change(table(3), 1, threads_problem="cannot start a thread")
    with pytest.raises(BootstrapError, match="rank 1 has no room for its threads: cannot start"):
        agree(rows)
