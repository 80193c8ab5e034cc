"""All-reduces that travel coded."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import aiacc
import aiacc.torch as hvd
from aiacc.compression.codecs import MSTopK, parse
from aiacc.compression.policy import Policy
from tests.support.coded import check_same, coding_optimizer, run_over_tcp, values_of
from tests.support.ranks import run_ranks

#: Half the distance of two neighbours in a block, in parts of its largest number.
_HALF_STEPS = {"int8": 0.5 / 127, "int4": 0.5 / 7, "fp8": 0.5 / 14}


def _check_sum(name, result, inputs):
    """The bound of theory: every rank's code, and that of the sum, may be half a step away."""
    exact = torch.stack(inputs).sum(0)
    if name.startswith(("mstopk", "topk")):
        kept = parse(name).kept(exact.numel())
        expected = torch.zeros_like(exact)
        for one in inputs:  # in the order of ranks, as the core adds
            places = one.abs().topk(kept).indices
            expected[places] += one[places]
        assert torch.equal(result, expected)
        return
    half = _HALF_STEPS[name.partition(":")[0]] * (1 + 2**-16)  # scales are rounded up
    error = half * sum(one.abs().max() for one in inputs)
    error += half * (exact.abs().max() + error)
    assert (result - exact).abs().max() <= error * (1 + 1e-5)
    assert not torch.equal(result, exact), "nothing was coded"


def _call_every_way(tensor, **options):
    """One after the other, each with its own copy of ``tensor``; 1 of a group is its double."""
    yield hvd.allreduce(tensor.clone(), **options)
    yield hvd.allreduce_(tensor.clone(), **options)
    yield hvd.synchronize(hvd.allreduce_async(tensor.clone(), **options))
    yield hvd.synchronize(hvd.allreduce_async_(tensor.clone(), **options))
    yield hvd.grouped_allreduce([tensor.clone()], **options)[0]
    yield hvd.grouped_allreduce_([tensor.clone()], **options)[0]
    yield hvd.synchronize(hvd.grouped_allreduce_async([tensor.clone()], **options))[0]
    yield hvd.synchronize(hvd.grouped_allreduce_async_([tensor.clone()], **options))[0]


_NAMES = ["int8", "int4:block=128", "fp8:block=1024", "mstopk:density=0.05,mode=exact", "topk"]


def _operations():
    hvd.init()
    inputs = [values_of(rank) for rank in range(hvd.size())]
    mine = inputs[hvd.rank()]
    for name in _NAMES:
        first = hvd.allreduce(mine, op=hvd.Sum, compression=name)
        check_same(first)
        _check_sum(name, first, inputs)
        for compression in (name, parse(name)):
            for result in _call_every_way(mine, op=hvd.Sum, compression=compression):
                assert torch.equal(result, first)
        average = hvd.allreduce(mine, compression=name)
        torch.testing.assert_close(average, first / hvd.size(), rtol=2**-22, atol=0)
        twice = hvd.allreduce(
            mine, op=hvd.Sum, prescale_factor=4.0, postscale_factor=0.5, compression=name
        )
        assert torch.equal(twice, 2 * first), "powers of two change no code"
    assert torch.equal(mine, values_of(hvd.rank())), "inputs are only read"
    # As a whole, in a group: the second one as if it came behind the first.
    both = hvd.grouped_allreduce(
        [mine[:1024].clone(), mine[1024:].clone()], op=hvd.Sum, compression="int8"
    )
    assert torch.equal(torch.cat(both), hvd.allreduce(mine, op=hvd.Sum, compression="int8"))
    for dtype in (torch.float64, torch.float16, torch.int64):
        tensor = torch.arange(10).to(dtype)
        assert torch.equal(
            hvd.allreduce(tensor, op=hvd.Sum, compression="int4"), tensor * hvd.size()
        )
    hvd.shutdown()


@pytest.mark.parametrize("size", [2, 3])
def test_every_operation_is_as_close_as_theory_says(size):
    run_over_tcp(size, _operations)


def _random_ones():
    """All ranks send what is at the same places, which are others every time."""
    inputs = [values_of(rank) for rank in range(hvd.size())]
    exact = torch.stack(inputs).sum(0)
    for compression, weight in {
        "randomk:density=0.05": 1,
        hvd.Compression.randomk(0.05, unbiased=True): 20,
    }.items():
        seen = [
            result.clone()
            for result in _call_every_way(inputs[hvd.rank()], op=hvd.Sum, compression=compression)
        ]
        for result in seen:
            check_same(result)
            sent = result != 0
            assert sent.sum() == 250
            torch.testing.assert_close(result[sent], weight * exact[sent])
        assert len({tuple((result != 0).nonzero().flatten().tolist()) for result in seen}) == 8


def _draws():
    mine = values_of(hvd.rank())
    return {
        name: [hvd.allreduce(mine, name=f"draw.{name}", compression=name) for _ in range(3)]
        for name in ("int4:stochastic=true", "randomk:density=0.05")
    }


def _draw_again():
    """What is left to chance follows from names and steps: the same in another job."""
    hvd.init()
    first = _draws()
    hvd.shutdown()
    hvd.init()
    second = _draws()
    for name, draws in first.items():
        for one, other in zip(draws, second[name], strict=True):
            assert torch.equal(one, other), name
            check_same(one)
        assert not torch.equal(draws[0], draws[1]), name
        assert not torch.equal(draws[1], draws[2]), name


def _objects_and_errors():
    hvd.init()
    mine = values_of(hvd.rank())
    for compression, name in {
        hvd.Compression.int8: "int8",
        hvd.Compression.int4: "int4",
        hvd.Compression.fp8: "fp8",
        hvd.Compression.mstopk(0.02, "exact"): "mstopk:density=0.02,mode=exact",
    }.items():
        expected = hvd.allreduce(mine, compression=name)
        assert torch.equal(hvd.allreduce(mine, compression=compression), expected)
    plain = hvd.allreduce(mine, compression="bf16")
    assert torch.equal(plain, hvd.allreduce(mine, compression=hvd.Compression.bf16))
    assert torch.equal(hvd.allreduce(mine, compression="none"), hvd.allreduce(mine))
    for op, text in {hvd.Min: "Min", hvd.Product: "Product", hvd.Adasum: "Adasum"}.items():
        with pytest.raises(ValueError, match=rf"int8_blocks.*{text}.*use Compression\.bf16"):
            hvd.allreduce(mine, op=op, compression="int8")
    with pytest.raises(ValueError, match="codec 'int9'"):
        hvd.allreduce(mine, compression="int9")
    for call in (hvd.allreduce, hvd.allreduce_, lambda t, **o: hvd.grouped_allreduce([t], **o)):
        with pytest.raises(ValueError, match=r"Policy.*\(expected .*DistributedOptimizer"):
            call(mine, compression=Policy(MSTopK()))
    with pytest.raises(ValueError, match=r"compression=int8.*use Compression\.bf16"):
        hvd.reducescatter(mine, compression="int8")
    # The gradient of a sum travels as the sum did.
    leaf = mine.clone().requires_grad_()
    hvd.allreduce(leaf, op=hvd.Sum, compression="int8").backward(mine)
    assert torch.equal(leaf.grad, hvd.allreduce(mine, op=hvd.Sum, compression="int8"))
    _random_ones()
    hvd.shutdown()
    _draw_again()
    hvd.shutdown()


def test_compressors_names_and_what_is_refused():
    run_over_tcp(2, _objects_and_errors)


def _overflow():
    hvd.init()
    for bad, name in itertools.product(
        (float("inf"), float("nan")), ("int8", "int4", "fp8", "topk", "mstopk")
    ):
        tensor = values_of(hvd.rank(), 2000)
        if hvd.rank() == 1:
            tensor[1500] = bad
        result = hvd.allreduce(tensor, compression=name)
        assert not result[1500].isfinite()
        assert result[0].isfinite()
    hvd.shutdown()


def test_what_is_not_finite_on_one_rank_is_so_on_all():
    run_over_tcp(2, _overflow)


def _disagree():
    hvd.init()
    mine = values_of(hvd.rank())
    last = hvd.rank() == hvd.size() - 1
    for ours, theirs, texts in (
        ("int8", "int4", ("int8_blocks 256", "int4_blocks 256")),
        ("int8", "int8:block=512", ("int8_blocks 256", "int8_blocks 512")),
        ("mstopk:density=0.01", "mstopk:density=0.02", ("largest 10000", "largest 20000")),
        ("int8", "none", ("int8_blocks 256", "tensor")),
    ):
        for call in (hvd.allreduce, lambda t, **rest: hvd.grouped_allreduce([t], **rest)):
            with pytest.raises(aiacc.MismatchError) as failure:
                call(mine, name="odd.one", compression=theirs if last else ours)
            for text in ("odd.one", "rank 0", f"rank {hvd.size() - 1}", *texts):
                assert text in str(failure.value)
    model = nn.Linear(128, 128)
    optimizer = coding_optimizer(model, "int4" if last else "int8")
    model(torch.ones(1, 128)).sum().backward()
    with pytest.raises(aiacc.MismatchError, match=r"weight.*int8_blocks 256.*int4_blocks 256"):
        optimizer.step()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    hvd.shutdown()


def test_ranks_that_disagree_learn_both_codecs():
    run_over_tcp(3, _disagree)


def _alone():
    """A job of one rank, and process sets of one: every form, as if there were no compression."""
    hvd.init()
    mine = values_of(hvd.rank(), 40_000)
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size()) if hvd.size() > 1]
    own = sets[hvd.rank()] if sets else hvd.global_process_set
    for compression in ("fp16", "bf16", "int8", "mstopk", "randomk", hvd.Compression.bf16):
        for result in _call_every_way(mine, compression=compression, process_set=own):
            assert torch.equal(result, mine), compression
    hvd.barrier()
    hvd.shutdown()


@pytest.mark.parametrize("size", [1, 2])
def test_one_rank_alone_keeps_what_it_has(size):
    run_over_tcp(size, _alone)


def test_one_rank_without_settings_keeps_what_it_has():
    run_ranks(1, _alone, launcher="python")
