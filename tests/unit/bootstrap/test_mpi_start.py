"""How the ranks of a job meet in MPI, and what they are told if they cannot."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from aiacc import _core
from aiacc.bootstrap import agree
from aiacc.bootstrap.job_plan import MPI_ENGINES
from aiacc.bootstrap.mpi_start import meet_in_mpi
from aiacc.exceptions import BootstrapError, EngineError
from tests.unit.bootstrap.rows import ENGINES, job

WITH_ALL = {**ENGINES, "nccl": "", **dict.fromkeys(MPI_ENGINES, "")}
OPEN_MPI = "Open MPI v4.1.4"


class Job:
    """Stands for MPI and the other ranks, as rank 0 of them sees them."""

    def __init__(self, monkeypatch, hosts="aabb", **changes):
        self.table = job(hosts, launcher="pmix", engines=WITH_ALL, **changes)
        self.rank = 0
        self.size = len(hosts)
        self.seen = (0, self.size)
        self.reserved = []
        self.answers = {}
        monkeypatch.setattr(_core, "mpi_initialize", self._initialize)
        monkeypatch.setattr(_core, "mpi_reserve", self.reserved.append)

    def _initialize(self, lanes, timeout_s):
        self.lanes = lanes
        return (*self.seen, OPEN_MPI)

    def all_gather(self, payload, *, timeout_s):
        return [payload, *(self.answers.get(rank, b"") for rank in range(1, self.size))]

    def meet(self, *, mpirun=True):
        return meet_in_mpi(self, agree(self.table), self.table, timeout_s=1.0, mpirun=mpirun)


def test_a_job_without_mpi_does_not_start_it(monkeypatch):
    monkeypatch.setattr(_core, "mpi_initialize", lambda *args: pytest.fail("MPI was started"))
    provider = SimpleNamespace(rank=0, size=4)
    table = job("aabb", launcher="pmix", engines=WITH_ALL)
    plan = agree(table)
    assert meet_in_mpi(provider, plan, table, timeout_s=1.0, mpirun=True) is plan


@pytest.mark.parametrize(
    ("engine", "gpu_engine", "lanes"),
    [
        ("hierarchical-mpi", "nccl", 4),
        ("hierarchical-mpi", "hierarchical-mpi", 4),
        # Nothing but this step would tell what the ranks send from what an earlier job left.
        ("hierarchical", "hierarchical-mpi", 0),
    ],
)
def test_all_ranks_meet_before_the_engines_do(monkeypatch, engine, gpu_engine, lanes):
    mpi = Job(monkeypatch, engine=engine, gpu_engine=gpu_engine, fabrics=["mlx5_0"])
    plan = mpi.meet()
    assert (plan.engine, plan.gpu_engine) == (engine, gpu_engine)
    assert (mpi.lanes, mpi.reserved) == (4, [lanes])


@pytest.mark.parametrize(("rank", "fabrics", "times"), [(0, [], 1), (1, [], 0), (0, ["efa_0"], 0)])
def test_an_mpi_with_one_tcp_flow_is_told_once_not_on_a_fabric(monkeypatch, rank, fabrics, times):
    mpi = Job(monkeypatch, engine="mpi", fabrics=fabrics)
    mpi.rank = rank
    mpi.seen = (rank, mpi.size)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mpi.meet()
    assert ["one TCP connection" in str(warning.message) for warning in caught] == [True] * times


@pytest.mark.parametrize(
    ("mpirun", "remedy"),
    [
        (True, "set AIACC_MPI_LIBRARY to the library of the mpirun that is used"),
        (False, "no mpirun started this process: start the job by mpirun, or by `aiaccrun --mpi`"),
    ],
)
@pytest.mark.parametrize("variable", ["AIACC_ENGINE", "AIACC_GPU_ENGINE"])
def test_an_mpi_that_knows_nothing_of_the_others(monkeypatch, mpirun, remedy, variable):
    asked = "engine" if variable == "AIACC_ENGINE" else "gpu_engine"
    mpi = Job(monkeypatch, **{asked: "hierarchical-mpi"})
    mpi.seen = (0, 1)
    with pytest.raises(BootstrapError) as caught:
        mpi.meet(mpirun=mpirun)
    assert f"rank 0: {OPEN_MPI} says rank 0 of 1, the job says rank 0 of 4; {remedy}" in str(
        caught.value
    )
    assert f"another {variable}" in str(caught.value)


def test_reasons_of_many_ranks_are_counted(monkeypatch):
    mpi = Job(monkeypatch, hosts="a" * 100 + "b" * 100, engine="mpi", fabrics=["efa_0"])
    mpi.answers = {rank: f"{OPEN_MPI} says rank 0 of 1, not {rank}".encode() for rank in (2, 3)}
    with pytest.raises(BootstrapError, match=r"rank 2: .*not 2; rank 3: .*not 3 \(expected"):
        mpi.meet()
    mpi.answers = {rank: f"{OPEN_MPI} says rank 0 of 1, not {rank}".encode() for rank in range(200)}
    with pytest.raises(BootstrapError, match=r"not 3; and 196 more ranks \(expected") as caught:
        mpi.meet()
    assert len(str(caught.value)) < 500


def test_a_rank_without_memory_leaves_a_job_that_did_not_ask_for_mpi_to_tcp(monkeypatch):
    mpi = Job(monkeypatch, fabrics=["mlx5_0"])
    assert agree(mpi.table).engine == "hierarchical-mpi"

    refuse = Mock(side_effect=EngineError("no memory for lanes"))
    monkeypatch.setattr(_core, "mpi_reserve", refuse)
    plan = mpi.meet()
    assert plan.engine == "hierarchical"
    assert "rank 0: no memory for lanes" in plan.engine_reason
