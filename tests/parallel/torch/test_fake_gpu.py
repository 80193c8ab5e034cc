"""Everything of aiacc.torch on tensors that pass for CUDA tensors, over the staged path.

No GPU is involved: see tests/support/gpu/fake_gpu.py. What the bodies check is what the tests of
CPU tensors check; here they also show that it comes about without waiting for a GPU where none may
be waited for.
"""

import functools

import numpy as np
import pytest
import torch

import aiacc
import aiacc.array as array_hvd
import aiacc.torch as hvd
from aiacc import _core as core
from aiacc.torch import adapter as tensors
from aiacc.torch.compression.wire_format import choose
from tests.gpu import bodies, coded_bodies, factor_bodies, optim_bodies
from tests.parallel.compression import test_error_feedback, test_events, test_operations
from tests.parallel.torch import (
    test_adasum,
    test_ops,
    test_optimizer,
    test_process_group,
    test_sync_batch_norm,
)
from tests.parallel.torch import test_optimizer_buckets as of_buckets
from tests.parallel.torch import test_optimizer_situations as situations
from tests.support import operations, process_group
from tests.support.gpu import fake_gpu
from tests.support.gpu.device_array import DeviceArray
from tests.support.jobs import in_job, on_ranks
from tests.support.learning.coded import in_ddp
from tests.support.learning.training import distributed
from tests.support.ranks import run_ranks

SIZES = [1, pytest.param(2, marks=pytest.mark.nightly), 3]
on_fake_gpus = functools.partial(on_ranks, run=fake_gpu.run_ranks)


@pytest.mark.parametrize("size", SIZES)
def test_operations_as_on_the_cpu(size):
    fake_gpu.run_ranks(size, test_ops.test_every_operation.body, {})


@pytest.mark.parametrize("size", SIZES)
def test_what_make_gpu_check_does(size):
    fake_gpu.run_ranks(size, bodies.every_operation)
    assert fake_gpu.run_ranks(size, bodies.compressed) == [["fp16", "bf16"]] * size


def test_optimizers_maps_and_packed_factors_of_make_gpu_check():
    fake_gpu.run_ranks(1, optim_bodies.large_batch_optimizers)
    reasons, others = fake_gpu.run_ranks(2, optim_bodies.divided_maps)
    assert reasons == others
    fake_gpu.run_ranks(1, factor_bodies.packed_factors)


@pytest.mark.parametrize(
    ("size", "body"),
    [
        (1, coded_bodies.operations),
        pytest.param(2, coded_bodies.operations, marks=pytest.mark.nightly),
        (3, coded_bodies.operations),
        (2, coded_bodies.steps),
        pytest.param(3, coded_bodies.steps, marks=pytest.mark.nightly),
    ],
)
def test_codes_of_make_gpu_check(size, body):
    env = coded_bodies.ENVIRONMENT
    on_cpu = run_ranks(size, body, False, env=env)
    coded_bodies.check(fake_gpu.run_ranks(size, body, True, env=env), on_cpu)


_TCP = {"AIACC_ENGINE": "tcp"}
# Without powersgd, which is for gradients in host memory.
_EVENTS = [p for p in test_events.POLICIES if p.codec.name != "powersgd"]
_CONSERVED = [kind for kind in test_error_feedback.POLICIES if kind != "powersgd"]
#: Tests of the CPU by their engine, with values of what they ask for.
AS_ON_THE_CPU = {
    "tcp": [
        (test_operations.test_every_operation_is_as_close_as_theory_says, {}),
        (test_operations.test_compressors_are_codecs_and_chance_is_the_same_on_all_ranks, {}),
        (test_operations.test_what_is_not_finite_on_one_rank_is_so_on_all, {}),
        (test_operations.test_what_is_not_for_codecs_is_refused_by_name, {}),
        (test_error_feedback.test_sparse_gradients_are_gathered_beside_coded_ones, {}),
        *(
            (test_error_feedback.test_sums_and_what_is_kept_are_all_there_was, {"kind": kind})
            for kind in _CONSERVED
        ),
    ],
    "auto": [
        (test_sync_batch_norm.test_equal_to_one_process_with_the_whole_batch, {}),
        (test_ops.test_objects, {}),
        (test_ops.test_sparse_tensors, {}),
        (situations.test_every_situation_with, {"schedule": "all_reduce"}),
        (
            test_optimizer.test_compressed_gradients_are_exact_but_for_roundings,
            {"options": {}, "name": "bf16"},
        ),
        (test_optimizer.test_sparse_gradients, {"uses": "not by rank 0 at first"}),
        (of_buckets.test_gradients_stay_unless_most_are_dropped, {}),
        (of_buckets.test_a_rank_that_joined_learns_what_became_of_views, {}),
        (of_buckets.test_ranks_whose_memory_formats_differ_are_told, {}),
        (of_buckets.test_groups_in_the_order_of_the_first_rank, {}),
        (test_optimizer.test_every_optimizer_of_torch, {}),
        (test_optimizer.test_parameters_that_one_rank_has_frozen, {}),
        (test_adasum.test_operations, {}),
    ],
}


@in_job
def _in_turn(tests):
    for body, arguments in tests:
        body.run(arguments)


@pytest.mark.parametrize("engine", AS_ON_THE_CPU)
def test_as_on_the_cpu(engine):
    tests = [(test.body, arguments) for test, arguments in AS_ON_THE_CPU[engine]]
    fake_gpu.run_ranks(2, _in_turn, tests, env={"AIACC_ENGINE": engine})


def test_references_as_on_the_cpu():
    fake_gpu.run_ranks(2, test_error_feedback.references, env=_TCP)


def _coded_hooks_and_events():
    for event in ("overflow", "reloaded"):
        events, _, *rest = test_events.NO_TRACE[event]
        test_events.no_trace(events, _EVENTS, *rest)
    test_events.dense_step(*test_events.DENSE["joined"])
    test_error_feedback.like_references(["hook"])
    test_error_feedback.conserved_by_a_hook(test_error_feedback.POLICIES["topk"])
    test_events.unused(test_events.POLICIES[0])
    test_operations.test_hooks_that_compress_in_different_ways_are_an_error.__wrapped__()
    test_error_feedback.test_parameters_trained_later_are_watched_while_a_hook_is_there.__wrapped__()


def test_coded_hooks_and_events_as_on_the_cpu(port):
    fake_gpu.run_ranks(2, in_ddp, port, _coded_hooks_and_events, env=_TCP)


@in_job
def _left_to_the_job():
    model = torch.nn.Linear(64, 64)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), compression="auto"
    )
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()


def test_no_codec_is_chosen_for_gradients_on_a_gpu(capfd):
    fake_gpu.run_ranks(2, _left_to_the_job)
    text = "aiacc: compression: operations on GPUs are not timed; name a codec"
    assert capfd.readouterr().err.count(text) == 1


def _narrowed(body, *args):
    """What ``body`` gives, and the wire formats of its all-reduces."""
    wires = fake_gpu.pretend_wire_formats()
    return body(*args), wires


@pytest.mark.parametrize("size", SIZES)
def test_compression_where_the_engine_queues(size):
    for formats, wires in fake_gpu.run_ranks(size, _narrowed, bodies.compressed):
        assert formats == list(bodies.FORMATS)
        assert wires == sorted(wires)
        assert set(wires) == {1, 2, 3, 4}


def _learned(options, names):
    """What an optimizer learns exactly, and with gradients in the formats of these names."""
    found = [bodies.trained(4, options)]
    wires = fake_gpu.pretend_wire_formats()
    for name in names:
        compression = getattr(hvd.Compression, name)
        found.append(bodies.trained(4, {**options, "compression": compression}))
        assert set(wires) == {choose(compression, [torch.float32], hvd.Average)}, name
        wires.clear()
    return found


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"groups": 3}])
def test_gradients_travel_narrow_in_every_optimizer(options):
    names = "bf16", "fp8_e5m2"
    found, other = fake_gpu.run_ranks(2, _learned, options, names)
    assert found == other
    exact, *narrowed = map(torch.tensor, found)
    for name, narrow in zip(names, narrowed, strict=True):
        # Gradients are smaller than 1, and so is the sum of what the steps make of them.
        assert 0 < (narrow - exact).abs().max() < bodies.FORMATS[name].eps


def test_a_lost_rank_is_an_error_that_names_it():
    results = fake_gpu.run_ranks(3, bodies.lose_a_rank, missing=[1])
    assert results[::2] == ["survived"] * 2


def test_nan_is_named_by_the_rank_that_gave_it(capfd):
    fake_gpu.run_ranks(2, bodies.gives_nan, False, env={"AIACC_CHECK_FINITE": "warn"})
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "[finite]" in line]
    assert "rank 1 warning] [finite] allreduce 'allreduce.layer.bias': rank 1 gave NaN" in line


def test_nan_is_an_error_on_every_rank():
    texts = fake_gpu.run_ranks(2, bodies.gives_nan, True, env={"AIACC_CHECK_FINITE": "raise"})
    assert len(set(texts)) == 1
    assert "'allreduce.layer.bias': rank 1 gave NaN (float32" in texts[0]


def test_the_core_starts_again():
    fake_gpu.run_ranks(2, bodies.start_again, 10)


@in_job
def _large_sums():
    fake = fake_gpu.driver()
    for turn in range(3):
        tensor = torch.full((1_500_000 + turn,), float(hvd.rank() + 1))
        tensors = [torch.full((90_000 + i,), float(hvd.rank())) for i in range(8)]
        total = hvd.allreduce(tensor, name=f"large{turn}", op=hvd.Sum)
        assert total.eq(hvd.size() * (hvd.size() + 1) / 2).all()
        for average in hvd.grouped_allreduce(tensors, name=f"group{turn}"):
            assert average.eq((hvd.size() - 1) / 2).all()
    return fake.fake_copied_by_pinned(), fake.fake_copied_by_registered()


@pytest.mark.parametrize("size", [2, 3])
def test_large_sums_need_no_buffer(size):
    """Ranks of one host copy straight to and from the memory that they share."""
    assert all(pinned == 0 < shared for pinned, shared in fake_gpu.run_ranks(size, _large_sums))
    over_sockets = fake_gpu.run_ranks(size, _large_sums, env={"AIACC_ENGINE": "tcp"})
    assert all(shared == 0 < pinned for pinned, shared in over_sockets)


def _process_group(arguments):
    process_group.join(**arguments)
    for check in ("reduce", "move", "scatter", "asynchronous", "callbacks_that_wait"):
        getattr(test_process_group, f"_{check}")()
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "body", [test_process_group.test_same_parameters_as_plain_ddp.body, _process_group]
)
def test_torch_distributed(body, port):
    fake_gpu.run_ranks(2, body, {"port": port})


@on_fake_gpus(2)
def test_a_step_makes_no_call_that_waits_for_a_gpu():
    """The tensors of a model are on the device, and so are its gradients."""
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8)))
    optimizer = distributed(model, torch.optim.SGD(model.parameters(), 0.1))
    hvd.broadcast_parameters(model.state_dict(), 0)
    counts = []
    for step in range(24):
        optimizer.zero_grad()
        torch.manual_seed(10 * step + hvd.rank())
        model(torch.randn(4, 8)).sum().backward()
        assert all(tensors.device_of(p.grad) == 0 for p in model.parameters())
        optimizer.step()
        counts.append(fake_gpu.driver().fake_synchronising_calls())
    assert len(fake_gpu.waits) >= len(counts) * 16
    # A lane waits once, for memory, in the step that first needs it: most steps add nothing.
    assert counts[-1] - counts[0] < len(counts) // 3


def _chosen_engine():
    """As if NCCL could run, on the fake's two GPUs."""
    aiacc._core.engines = lambda: [
        ("local", True, ""),
        ("hierarchical", True, ""),
        ("nccl", True, "2.29"),
    ]
    return bodies.chosen_engine()


def test_what_a_rank_tells_of_its_gpus():
    env = {"NCCL_HOSTID": "mine"}
    (seen,) = fake_gpu.run_ranks(1, aiacc._core.nccl_gpus, env=env)
    assert seen == (["0000:1a:00.0", "0000:1b:00.0"], "mine", False, 9)


def test_more_ranks_than_gpus_are_staged(capfd):
    env = {"AIACC_LOG_LEVEL": "info"}
    assert fake_gpu.run_ranks(3, _chosen_engine, env=env) == ["staged"] * 3
    log = capfd.readouterr().err
    assert log.count("aiacc 0.1.0: 3 ranks on 1 host, engine hierarchical, 2 lanes, units of ") == 1
    assert log.count("tensors on GPUs are staged: ranks 0, 1, 2 of host") == 1
    assert "see 2 GPUs together" in log


@on_fake_gpus(2, 3)
def test_mixed_places_fail_on_every_rank():
    mine = torch.ones(4, device="cpu") if hvd.rank() == 0 else torch.ones(4)
    said = "'allreduce.mixed': rank 0 submitted device cpu, rank 1 submitted device gpu"
    with pytest.raises(aiacc.MismatchError, match=said):
        hvd.allreduce(mine, name="mixed")
    assert hvd.allreduce(torch.ones(4), name="later", op=hvd.Sum)[0] == hvd.size()
    assert hvd.allreduce(torch.ones(4, device="cpu"), name="host", op=hvd.Sum)[0] == hvd.size()
    with pytest.raises(ValueError, match=r"tensor 1 on device cpu.*expected one device"):
        hvd.grouped_allreduce([torch.ones(2), torch.ones(2, device="cpu")], name="both")


@on_fake_gpus(1)
def test_the_core_refuses_address_0():
    here, on, of_size_6 = torch.ones(36).data_ptr(), {"device": 0, "stream": 0}, (6, 1, 6, 36)
    handle = hvd.allgather_async(torch.ones(6))
    numbers = ("lr", "beta1", "beta2", "eps", "weight_decay", "least_ratio", "largest_ratio")
    flags = {"bias_correction": False, "adapt": False}
    options = core.LambOptions(**dict.fromkeys(numbers, 0.1), **flags)
    lamb = functools.partial(core.lamb_step_on_gpu, options=options, lr=0, clip=0, workspace=0)
    calls = [lambda: core.take_into(handle, (0,), 0)]
    for work in ("pack", "unpack", "average"):
        queue = functools.partial(getattr(core, f"{work}_factors_on_gpu"), float64=False)
        for addresses in ((0, here), (here, 0)):
            calls.append(functools.partial(queue, [(*addresses, *of_size_6, 1.0, 0.0)], **on))
    for missing in range(4):
        addresses = [0 if missing == number else here for number in range(4)]
        calls.append(functools.partial(lamb, [(*addresses, 0, 1.0, 6)], **on))
    for call in calls:
        with pytest.raises(ValueError, match=r"address 0 \(.*memory of its own"):
            call()
    assert hvd.synchronize(handle).eq(1).all()


@on_fake_gpus(2)
def test_capture_into_a_graph_is_refused():
    driver = fake_gpu.driver()
    hvd.allreduce(torch.ones(2))
    driver.fake_set_capturing(0, 1)
    refusal = r"'allreduce\.graph'.*captured.*outside of torch\.cuda\.graph"
    with pytest.raises(NotImplementedError, match=refusal):
        hvd.allreduce_async_(torch.ones(2), name="graph")
    driver.fake_set_capturing(0, 0)
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum)[0] == hvd.size()


def _host(array):
    return array.host if isinstance(array, DeviceArray) else array


@on_fake_gpus(*SIZES)
def test_arrays():
    """aiacc.array on what passes for CuPy's arrays."""
    front = operations.Frontend(array_hvd, DeviceArray, _host, tells_splits=False)
    dtypes = [np.dtype(kind) for kind in (np.float32, np.float16, np.int64)]
    cases = operations.table(hvd.rank(), hvd.size(), dtypes, [(5,), (300, 300), (0, 2)])
    for number, case in enumerate(case for case in cases if case.verb != "grouped_allreduce"):
        operations.check(front, case, number)
    two = [DeviceArray(np.ones(count)) for count in (5, 9)]
    sums = array_hvd.grouped_allreduce(two, name="g", op=array_hvd.Sum)
    assert all(isinstance(one, DeviceArray) and (one.host == hvd.size()).all() for one in sums)
    with pytest.raises(ValueError, match=r"array 1 on device -1 and array 0 on 0"):
        array_hvd.grouped_allreduce([two[0], np.ones(5)], name="mixed")
