"""One rank on a GPU: every operation and dtype, and what a step may not do."""

import pytest

from tests.gpu import bodies, coded_bodies
from tests.support.gpu import one_gpu
from tests.support.ranks import run_ranks


@pytest.fixture(params=["nccl", "staged"])
def engine(request):
    """Variables that choose it; skips the test if it cannot run."""
    if request.param == "nccl":
        one_gpu.nccl_version()
    return {"AIACC_GPU_ENGINE": request.param}


@pytest.fixture
def nccl():
    one_gpu.nccl_version()
    return {"AIACC_GPU_ENGINE": "nccl"}


@pytest.mark.parametrize(
    "body",
    [
        bodies.every_operation,
        bodies.compressed,
        bodies.steps_without_synchronisation,
        bodies.refuses_capture,
    ],
)
def test_alone(body, engine):
    run_ranks(1, body, env=engine)


def test_codes_as_on_the_cpu(engine):
    env = coded_bodies.ENVIRONMENT
    on_cpu = run_ranks(1, coded_bodies.operations, False, env=env)
    coded_bodies.check(run_ranks(1, coded_bodies.operations, True, env=env | engine), on_cpu)


@pytest.mark.parametrize(
    "body", [bodies.returns_before_the_gpu_is_done, bodies.compresses_without_memory]
)
def test_nccl_neither_waits_nor_takes_memory(body, nccl):
    run_ranks(1, body, env=nccl)


def test_fifty_starts_leave_no_memory_behind(engine):
    (used,) = run_ranks(1, bodies.start_again, 50, env=engine)
    # Ten starts for what libraries keep; then a leak of a communicator would be forty of them.
    assert used[-1] - used[9] < 32 << 20
