"""One to three ranks that share a GPU."""

import functools

import pytest

import aiacc.torch as hvd
from tests.gpu import bodies, coded_bodies, factor_bodies, optim_bodies
from tests.support import ranks
from tests.support.gpu import one_gpu
from tests.support.gpu.one_gpu import HOSTS, SHARED, STAGED, WAYS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("size", "algorithm"), [(1, "any"), (2, "any"), (3, "any"), (2, "ring"), (2, "tree")]
)
def test_every_operation(size, algorithm, way):
    env = {} if algorithm == "any" else {"AIACC_GPU_ALGORITHM": algorithm}
    one_gpu.run_ranks(way, size, bodies.every_operation, env=env)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_compression(size, way):
    first, *others = one_gpu.run_ranks(way, size, bodies.compressed)
    assert others == [first] * (size - 1)


@functools.cache
def _on_cpu(size, body):
    return ranks.run_ranks(size, body, False, env=coded_bodies.ENVIRONMENT)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("size", "body"),
    [
        *((size, coded_bodies.operations) for size in (1, 2, 3)),
        *((size, coded_bodies.steps) for size in (2, 3)),
    ],
)
def test_codes_as_on_the_cpu(size, body, way):
    on_gpu = one_gpu.run_ranks(way, size, body, True, env=coded_bodies.ENVIRONMENT)
    coded_bodies.check(on_gpu, _on_cpu(size, body))


@pytest.mark.parametrize("way", WAYS)
def test_optimizers_and_maps(way):
    one_gpu.run_ranks(way, 2, optim_bodies.large_batch_optimizers)
    first, second = one_gpu.run_ranks(way, 2, optim_bodies.divided_maps)
    assert first == second


@pytest.mark.parametrize("way", WAYS)
def test_kfac(way):
    one_gpu.run_ranks(way, 2, factor_bodies.training_with_kfac)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_as_bucket_view": True},
        {"groups": 3},
        {"compression": hvd.Compression.bf16},
        {"compression": hvd.Compression.fp16, "gradient_as_bucket_view": True},
    ],
)
def test_training_gives_all_ranks_the_same(options, way):
    first, second = one_gpu.run_ranks(way, 2, bodies.trained, 5, options)
    assert first == second


@pytest.mark.parametrize(
    ("size", "way", "compressions"),
    [
        (1, HOSTS, ()),
        (1, STAGED, ()),
        *((2, way, some) for way in (HOSTS, SHARED) for some in ((), coded_bodies.WITHOUT_WAITING)),
    ],
)
def test_a_step_waits_for_no_gpu(size, way, compressions):
    one_gpu.run_ranks(way, size, bodies.steps_without_synchronisation, *compressions)


@pytest.mark.parametrize(
    "body", [bodies.returns_before_the_gpu_is_done, bodies.compresses_without_memory]
)
def test_nccl_neither_waits_nor_takes_memory(body):
    one_gpu.run_ranks(HOSTS, 1, body)


@pytest.mark.parametrize("way", [HOSTS, STAGED])
def test_a_capture_is_refused(way):
    one_gpu.run_ranks(way, 1, bodies.refuses_capture)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lanes", [1, 4])
def test_random_orders(lanes, way):
    env = one_gpu.lanes(lanes) | {"AIACC_UNIT_BYTES": "262144"}
    one_gpu.run_ranks(way, 2, bodies.random_orders, 60, 4, env=env)


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_rank_is_an_error_that_names_it(way):
    results = one_gpu.run_ranks(way, 3, bodies.lose_a_rank, missing=[1])
    assert results[::2] == ["survived"] * 2


def test_ranks_that_see_one_gpu_are_staged():
    one_gpu.nccl_version()
    env = {"AIACC_GPU_ENGINE": "auto", "CUDA_VISIBLE_DEVICES": "0"}
    assert ranks.run_ranks(2, bodies.chosen_engine, env=env) == ["staged"] * 2


@pytest.mark.parametrize("way", WAYS)
def test_nan_is_named_by_the_rank_that_gave_it(way, capfd):
    one_gpu.run_ranks(way, 2, bodies.gives_nan, False, env={"AIACC_CHECK_FINITE": "warn"})
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "[finite]" in line]
    assert "'allreduce.layer.bias': rank 1 gave NaN" in line
    texts = one_gpu.run_ranks(way, 2, bodies.gives_nan, True, env={"AIACC_CHECK_FINITE": "raise"})
    assert len(set(texts)) == 1
    assert "'allreduce.layer.bias': rank 1 gave NaN" in texts[0]


def test_two_ranks_start_again():
    one_gpu.run_ranks(HOSTS, 2, bodies.start_again, 5)


@pytest.mark.parametrize("way", [HOSTS, STAGED])
def test_fifty_starts_leave_no_memory_behind(way):
    (used,) = one_gpu.run_ranks(way, 1, bodies.start_again, 50)
    # Ten starts for what libraries keep; then a leak of a communicator would be forty of them.
    assert used[-1] - used[9] < 32 << 20


def test_every_lane_has_flows_of_its_own():
    """Two ranks over sockets: four communicators open four times what one opens."""
    opened = {
        lanes: one_gpu.run_ranks(
            HOSTS,
            2,
            bodies.flows,
            env=one_gpu.lanes(lanes) | {"AIACC_UNIT_BYTES": "262144", "NCCL_MAX_CTAS": "1"},
        )[0]
        for lanes in (1, 2, 4)
    }
    assert opened[1] > 0
    assert opened[2] >= opened[1] + opened[1] // 2
    assert opened[4] >= 2 * opened[2] - opened[1] // 2
