"""One rank on a GPU: every operation and dtype, and what a step may not do."""

from __future__ import annotations

import pytest

from tests.gpu import bodies, coded_bodies
from tests.support import one_gpu
from tests.support.ranks import run_ranks

ENGINES = ["nccl", "staged"]


@pytest.mark.parametrize("engine", ENGINES)
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
    if engine == "nccl":
        one_gpu.nccl_version()
    run_ranks(1, body, env={"AIACC_GPU_ENGINE": engine})


@pytest.mark.parametrize("engine", ENGINES)
def test_codes_as_on_the_cpu(engine):
    if engine == "nccl":
        one_gpu.nccl_version()
    env = coded_bodies.ENVIRONMENT
    on_cpu = run_ranks(1, coded_bodies.operations, False, env=env)
    on_gpu = run_ranks(1, coded_bodies.operations, True, env=env | {"AIACC_GPU_ENGINE": engine})
    coded_bodies.check(on_gpu, on_cpu)


def test_synchronize_returns_before_the_gpu_is_done():
    one_gpu.nccl_version()
    run_ranks(1, bodies.returns_before_the_gpu_is_done, env={"AIACC_GPU_ENGINE": "nccl"})


def test_compression_takes_no_memory():
    one_gpu.nccl_version()
    run_ranks(1, bodies.compresses_without_memory, env={"AIACC_GPU_ENGINE": "nccl"})


@pytest.mark.parametrize("engine", ENGINES)
def test_fifty_starts_leave_no_memory_behind(engine):
    if engine == "nccl":
        one_gpu.nccl_version()
    (used,) = run_ranks(1, bodies.start_again, 50, env={"AIACC_GPU_ENGINE": engine}, timeout=110)
    # Ten starts for what libraries keep; then a leak of a communicator would be forty of them.
    assert used[-1] - used[9] < 32 << 20
