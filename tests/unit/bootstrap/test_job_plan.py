"""What the ranks agree on at start-up: a pure function of the table of all of them."""

import dataclasses
import itertools

import pytest

from aiacc.bootstrap import job_plan
from aiacc.bootstrap.reach import Candidate, Presence
from aiacc.exceptions import BootstrapError
from tests.unit.bootstrap.rows import ENGINES, WITH_MPI, job, row

WITH_NCCL = ENGINES | {"nccl": ""}
WITH_BOTH = WITH_MPI | {"nccl": ""}


def plan(hosts, changes=None, **common):
    return job_plan.agree(job(hosts, changes, **common))


def test_addresses_token_and_epoch_of_the_job():
    got = plan("aaa", {2: {"generation": 7}})
    assert got.reach.seen_by(2) == ("10.0.0.1:5000", "10.0.0.1:5001", "10.0.0.1:5002")
    assert (got.token, got.epoch, got.unit_bytes) == (bytes(16), 7, 2097152)
    assert job_plan.host_id() == job_plan.host_id()
    assert len(job_plan.new_token()) == 16
    assert job_plan.new_token() != job_plan.new_token()


def test_what_runs_in_a_line():
    said = plan("aabb", lanes=4).summary("1.2", 2 << 20, "")
    assert said.startswith(
        "aiacc 1.2: 4 ranks on 2 hosts, engine hierarchical, 4 lanes, units of 2 M"
    )
    assert said.endswith("; tensors on GPUs staged, no NCCL")
    said = plan("ab", lanes=1, engines=WITH_NCCL, gpu_lanes=2).summary("1.2", 2 << 20, "2.29.7")
    assert "2 ranks on 2 hosts, engine tcp, 1 lane, units of 2 MiB; tensors on GPUs by " in said
    assert said.endswith(" by nccl on 2 lanes, NCCL 2.29.7")


_WRONG = [
    {"presence": Presence("s", 1, [Candidate("eth0", "10.0.0.300", 24)])},
    {"presence": Presence("s", 1 << 16)},
    {"presence": Presence("s", -1)},
    {"generation": -1},
    {"generation": 1 << 31},
    {"token": b"short"},
]


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"[]", b'{"token": 3}', *(row(0, 1, **one).encode() for one in _WRONG)]
)
def test_a_row_survives_the_wire_or_cannot_be_read(payload):
    full = row(3, 5, local_rank=1, local_size=2, equal={"A": 4096, "B": True}, gpus=["1a:00.0"])
    assert job_plan.Contribution.decode(full.encode()) == full
    with pytest.raises(BootstrapError, match="cannot be read"):
        job_plan.Contribution.decode(payload)


#: Of a job of four ranks of one host: what all say, what one says, and the error.
CONTRADICTIONS = [
    ({"engine": "tcp"}, {2: {"engine": "mpi"}}, "AIACC_ENGINE: tcp on rank 0, mpi on rank 2"),
    ({"lanes": 2}, {2: {"lanes": 3}}, "AIACC_LANES: 2 on rank 0, 3 on rank 2"),
    ({}, {2: {"unit_bytes": 1024}}, "AIACC_UNIT_BYTES: 2097152 on rank 0, 1024 on rank 2"),
    ({}, {2: {"version": "0.2.0"}}, "version of aiacc: 0.1.0 on rank 0, 0.2.0 on rank 2"),
    ({}, {1: {"gpu_engine": "nccl"}}, "AIACC_GPU_ENGINE: auto on rank 0, nccl on rank 1"),
    ({"gpu_lanes": 4}, {1: {"gpu_lanes": 3}}, "disagree about AIACC_GPU_LANES"),
    ({"equal": {"SAME": 16}}, {1: {"equal": {"SAME": 8}}}, "SAME: 16 on rank 0, 8 on rank 1"),
    ({"equal": {"SAME": 16}}, {2: {"equal": {}}}, r"SAME: 16 on rank 0, \(absent\) on rank 2"),
    ({}, {1: {"size": 3}}, "rank 1 was started with size 3, but 4 ranks came"),
    ({}, {1: {"rank": 0}}, "the row of rank 1 says rank 0"),
    ({}, {1: {"threads_problem": "none"}}, "rank 1 has no room for its threads: none"),
    ({"engine": "mpi", "engines": WITH_MPI}, {2: {"engines": ENGINES}}, "run on rank 2: no MPI"),
    ({"engine": "sockets"}, {}, "engine sockets cannot run on rank 0: this build"),
    ({"gpu_engine": "hierarchical"}, {}, "nccl cannot run on rank 0.*another AIACC_GPU_ENGINE"),
    (
        {"gpu_engine": "hierarchical-mpi", "engines": WITH_BOTH},
        {1: {"engines": WITH_NCCL}},
        "mpi cannot run on rank 1: no MPI.*another AIACC_GPU_ENGINE",
    ),
    ({"engines": WITH_NCCL, "gpu_lanes": 4}, {2: {"gpu_lanes_problem": "no"}}, "=4 on rank 2: no"),
    *(
        (
            {"local_rank": 0, "local_size": 4},
            {1: {"local_rank": rank, "local_size": size}},
            rf"rank 1 was given local rank {rank} of {size}",
        )
        for rank, size in [(2, 2), (-1, 2), (0, 0), (0, 5)]
    ),
]


@pytest.mark.parametrize(("common", "changes", "text"), CONTRADICTIONS)
def test_contradictions_name_ranks_and_values(common, changes, text):
    with pytest.raises(BootstrapError, match=text):
        plan("aaaa", changes, **common)


def test_settings_that_are_equal_are_no_contradiction():
    assert plan("aaa", equal={"AIACC_CACHE_CAPACITY": 16})
    assert plan("aaaa", engine="mpi", engines=WITH_MPI).engine == "mpi"
    told = plan("aa", launcher="pmi", engine="tcp")
    assert (told.engine, told.engine_reason) == ("tcp", ""), "nothing to say about one asked for"


@pytest.mark.parametrize(
    ("hosts", "launcher", "lacking", "engine", "said"),
    [
        ("a", "alone", [], "local", ""),
        ("aa", "rendezvous", [], "hierarchical", ""),
        ("abbb", "torchrun", [], "hierarchical", ""),
        ("aab", "torchrun", [1], "hierarchical", ""),
        ("ab", "torchrun", [], "tcp", ""),
        ("ab", "pmi", [], "mpi", ""),
        ("abc", "pmix", [], "mpi", ""),
        ("aab", "pmix", [], "hierarchical-mpi", ""),
        ("aab", "pmix", [2], "hierarchical", "rank 2: no MPI library"),
        ("abc", "pmi", [1, 2], "tcp", "rank 1: no MPI library"),
        # On one host MPI has nothing to do.
        ("aaa", "pmix", [], "hierarchical", ""),
        ("aaa", "pmi", [1], "hierarchical", ""),
    ],
)
def test_automatic_engine_and_why_not_by_mpi(hosts, launcher, lacking, engine, said):
    changes = {rank: {"engines": ENGINES} for rank in lacking}
    got = plan(hosts, changes, launcher=launcher, engines=WITH_MPI, fabrics=["mlx5_0"])
    assert got.engine == engine
    assert got.engine_reason.startswith(said)
    assert bool(got.engine_reason) == bool(said)


def test_mpi_is_for_jobs_whose_hosts_all_have_a_fabric():
    got = plan("aabb", {3: {"fabrics": []}}, launcher="pmi", engines=WITH_MPI, fabrics=["mlx5_0"])
    assert got.engine == "hierarchical"
    assert "rank 3 on b has no fabric that it may use, rank 0 on a has mlx5_0" in got.engine_reason
    for hosts, engine in (("aabb", "hierarchical"), ("ab", "tcp")):
        got = plan(hosts, launcher="pmi")
        assert (got.engine, got.engine_reason) == (engine, "")


@pytest.mark.parametrize(
    ("common", "changes", "engine", "lanes"),
    [
        ({"engines": WITH_NCCL}, {}, "nccl", 2),
        ({"engines": WITH_NCCL}, {1: {"engines": ENGINES | {"nccl": "no GPU"}}}, "staged", 1),
        ({}, {}, "staged", 1),
        ({"engines": WITH_NCCL, "gpu_engine": "staged"}, {}, "staged", 1),
        ({"engines": WITH_NCCL, "gpu_engine": "hierarchical"}, {}, "hierarchical", 2),
        ({"engines": WITH_BOTH, "gpu_engine": "hierarchical-mpi"}, {}, "hierarchical-mpi", 2),
        ({"engines": WITH_NCCL, "gpu_lanes": 4}, {}, "nccl", 4),
        ({"engines": WITH_NCCL}, {2: {"gpu_lanes_problem": "not safe"}}, "nccl", 1),
        ({"engines": WITH_NCCL, "gpu_lanes": 1}, {2: {"gpu_lanes_problem": "no"}}, "nccl", 1),
    ],
)
def test_tensors_on_gpus_are_staged_unless_every_rank_has_nccl(common, changes, engine, lanes):
    got = plan("aaa", changes, **common)
    assert (got.gpu_engine, got.gpu_lanes) == (engine, lanes)


def sharing(gpus, changes=None, **common):
    """Plan of ranks of one host that see these GPUs, one letter for each."""
    seen = {n: {"gpus": list(mine), **(changes or {}).get(n, {})} for n, mine in enumerate(gpus)}
    return plan("a" * len(gpus), seen, engines=WITH_NCCL, **common)


@pytest.mark.parametrize(
    ("gpus", "ranks"),
    [
        (["a"], ""),
        (["ab", "ab"], ""),
        (["a", "b"], ""),
        (["a", "abc", "abc"], ""),
        (["a", "a"], "ranks 0, 1 of host a see 1 GPU together"),
        (["ab", "ab", "ab"], "ranks 0, 1, 2 of host a see 2 GPUs together"),
        (["abcd", "a", "abcd", "a"], "ranks 1, 3 of host a see 1 GPU together"),
        (["ab", "bc", "ca", "ab"], "ranks 0, 1, 2, 3 of host a see 3 GPUs together"),
        (["a", ""], ""),
    ],
)
def test_ranks_that_must_share_a_gpu_are_staged(gpus, ranks):
    got = sharing(gpus)
    assert got.gpu_engine == ("staged" if ranks else "nccl")
    assert ranks in got.gpu_engine_reason
    assert bool(got.gpu_engine_reason) == bool(ranks)


@pytest.mark.parametrize(
    ("common", "changes", "engine"),
    [
        ({"nccl_shares_gpus": True}, {}, "nccl"),
        ({}, {0: {"nccl_shares_gpus": True}}, "staged"),
        ({}, {1: {"host": "b/boot"}}, "nccl"),
        # What NCCL takes for hosts decides.
        ({}, {1: {"nccl_host": "h1"}}, "nccl"),
        ({"nccl_host": "h"}, {1: {"host": "b/boot"}}, "staged"),
        ({"gpu_engine": "nccl"}, {}, "nccl"),
        ({"gpu_engine": "hierarchical"}, {}, "hierarchical"),
    ],
)
def test_ranks_that_may_share_a_gpu_or_ask_for_it_keep_nccl(common, changes, engine):
    got = sharing(["a", "a"], changes, **common)
    assert got.gpu_engine == engine
    assert bool(got.gpu_engine_reason) == (engine == "staged")


def test_the_weakest_gpu_of_all_ranks_and_who_has_it():
    for of_ranks, weakest in (([9] * 4, (9, 0)), ([9, 9, 8, 8], (8, 2)), ([9, 0, 8, 8], (0, 0))):
        changes = {rank: {"gpu_capability": one} for rank, one in enumerate(of_ranks)}
        assert plan("aaaa", changes).gpu_capability == weakest


@pytest.mark.parametrize(
    ("hosts", "said", "lanes"),
    [
        *(("a", {}, 1), ("aa", {}, 2), ("aaaa", {}, 2), ("ab", {}, 4), ("aabb", {}, 4)),
        *((hosts, {"lanes": 7}, 7) for hosts in ("aa", "ab")),
        *((hosts, {"equal": {"AIACC_AUTOTUNE": True}}, 8) for hosts in ("aa", "ab")),
    ],
)
def test_lanes_that_are_automatic_tuned_or_asked_for(hosts, said, lanes):
    assert plan(hosts, **said).lanes == lanes


def at_places(local, hosts=None):
    """Plan of ranks whose launcher says "0/2 1/2": local rank and size of each."""
    pairs = [tuple(map(int, pair.split("/"))) for pair in local.split()]
    changes = {n: {"local_rank": one, "local_size": size} for n, (one, size) in enumerate(pairs)}
    return plan(hosts or "a" * len(pairs), changes)


def places(got):
    return [dataclasses.astuple(topology) for topology in got.topologies]


def test_places_follow_the_hosts_in_rank_order_or_the_launcher():
    got = plan("abaab")
    assert places(got) == [(0, 3, 0, 2), (0, 2, 1, 2), (1, 3, 0, 2), (2, 3, 0, 1), (1, 2, 1, 2)]
    assert got.host_of == (0, 1, 0, 0, 1)
    assert not got.homogeneous
    # Those that the launcher gave count, if every rank has them.
    got = at_places("0/2 1/2 0/2 1/2")
    assert places(got) == [(0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)]
    assert got.homogeneous
    one = plan("aaa", {1: {"local_rank": 0, "local_size": 1}})
    assert [topology.local_rank for topology in one.topologies] == [0, 1, 2]


@pytest.mark.parametrize(
    ("local", "hosts", "host_of"),
    [
        # A launcher may make several hosts of one machine.
        ("0/2 1/2 0/2 1/2", None, (0, 0, 1, 1)),
        ("0/2 0/2 1/2 1/2", None, (0, 1, 0, 1)),
        ("0/3 1/3 2/3 0/1", None, (0, 0, 0, 1)),
        ("0/1 0/3 1/3 2/3", None, (0, 1, 1, 1)),
        ("0/2 1/2 0/1 0/1", None, (0, 0, 1, 2)),
        ("1/2 0/2", None, (0, 1)),
        ("0/2 0/2 1/2 1/2", "abba", (0, 1, 1, 0)),
    ],
)
def test_hosts_by_name_and_by_local_ranks(local, hosts, host_of):
    assert at_places(local, hosts).host_of == host_of


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_places_are_consistent_for_every_spread_over_two_hosts(size):
    for hosts in itertools.product("ab", repeat=size):
        topologies = plan(hosts).topologies
        keys = [(hosts[rank], topology.local_rank) for rank, topology in enumerate(topologies)]
        assert len(set(keys)) == size
        crosses = [(topology.local_rank, topology.cross_rank) for topology in topologies]
        assert len(set(crosses)) == size
        assert all(topology.local_rank < topology.local_size for topology in topologies)
        assert all(topology.cross_rank < topology.cross_size for topology in topologies)


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        (["", ""], ["", ""]),
        (["train.py --lr 0.1"] * 3, ["", "", ""]),
        # Ranks may have their numbers in their command lines.
        (["train.py --rank=0 out0.txt", "train.py --rank=1 out1.txt"], ["", ""]),
        (["train.py 0 host-12", "train.py 1 host-12", "train.py 2 host-12"], ["", "", ""]),
        (
            ["train.py --lr 0.1", "train.py --lr 0.2", "train.py --lr 0.1"],
            ["rank 0 runs train.py with 0.1, rank 1 train.py with 0.2"] * 2 + [""],
        ),
        (["a.py --lr", "a.py"], ["rank 0 runs a.py with --lr, rank 1 a.py with less"] * 2),
        (["a.py", "b.py"], ["rank 0 runs a.py, rank 1 b.py"] * 2),
    ],
)
def test_both_ends_hear_of_command_lines_that_differ(commands, said):
    rows = job("a" * len(commands), {n: {"command": c.split()} for n, c in enumerate(commands)})
    texts = [job_plan.warning_about_commands(rows, rank) for rank in range(len(rows))]
    assert [bool(text) for text in texts] == [bool(expected) for expected in said]
    assert all(expected in text for expected, text in zip(said, texts, strict=True))
