"""All-reduces that travel coded are as close as theory says; what codecs are not for is refused."""

import itertools
import os
import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import aiacc
import aiacc.torch as hvd
from aiacc.compression.codecs import MSTopK, Quantised, parse
from aiacc.compression.feedback import EF21, Residual
from aiacc.compression.policy import Policy
from tests.support.jobs import in_job, join_as
from tests.support.learning.coded import (
    WAYS,
    Job,
    check_same,
    coding_optimizer,
    on_ranks_in_ddp,
    on_ranks_over_tcp,
    values_of,
)
from tests.support.learning.codes import check_sum
from tests.support.ranks import run_ranks

_NAMES = ["int8", "int4:block=128", "fp8:block=1024", "mstopk:density=0.05,mode=exact", "topk"]


def _call_every_way(tensor, **options):
    """One after the other, each with its own copy of ``tensor``; 1 of a group is its double."""
    for form in ("", "_", "_async", "_async_"):
        for verb, given in (("allreduce", tensor.clone()), ("grouped_allreduce", [tensor.clone()])):
            found = getattr(hvd, verb + form)(given, **options)
            found = hvd.synchronize(found) if "async" in form else found
            yield found if verb == "allreduce" else found[0]


@on_ranks_over_tcp(2, 3)
def test_every_operation_is_as_close_as_theory_says():
    inputs = [values_of(rank) for rank in range(hvd.size())]
    mine = inputs[hvd.rank()]
    for name in _NAMES:
        first = hvd.allreduce(mine, op=hvd.Sum, compression=name)
        check_same(first)
        check_sum(name, first.numpy(), [one.numpy() for one in inputs])
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
        total = hvd.allreduce(tensor, op=hvd.Sum, compression="int4")
        assert torch.equal(total, tensor * hvd.size())
    # The gradient of a sum travels as the sum did.
    leaf = mine.clone().requires_grad_()
    hvd.allreduce(leaf, op=hvd.Sum, compression="int8").backward(mine)
    assert torch.equal(leaf.grad, hvd.allreduce(mine, op=hvd.Sum, compression="int8"))


@on_ranks_in_ddp(2)
def test_gradients_of_every_front_end_are_as_close():
    inputs = [values_of(rank, 160, 160) for rank in range(hvd.size())]
    for name, way in itertools.product([*_NAMES, "bf16"], WAYS):
        job = Job(name, {"weight": (160, 160)}, way)
        result = job.step({"weight": inputs[hvd.rank()]})["weight"]
        check_same(result)
        divide_by = hvd.size() if job.averages else 1
        check_sum(name, result.numpy(), [one.numpy() for one in inputs], divide_by)


@on_ranks_over_tcp(2)
def test_compressors_are_codecs_and_chance_is_the_same_on_all_ranks():
    mine = values_of(hvd.rank())
    names = ("int8", "int4", "fp8", "bf16", "none")
    codecs = {name: getattr(hvd.Compression, name) for name in names}
    codecs["mstopk:density=0.02,mode=exact"] = hvd.Compression.mstopk(0.02, "exact")
    for name, compression in codecs.items():
        expected = hvd.allreduce(mine, compression=name)
        assert torch.equal(hvd.allreduce(mine, compression=compression), expected)
    assert torch.equal(hvd.allreduce(mine, compression="none"), hvd.allreduce(mine))
    # All ranks send what is at the same places, which are others every time.
    exact = sum(values_of(rank) for rank in range(hvd.size()))
    for compression, weight in (
        ("randomk:density=0.05", 1),
        (hvd.Compression.randomk(0.05, unbiased=True), 20),
    ):
        seen = set()
        for result in _call_every_way(mine, op=hvd.Sum, compression=compression):
            check_same(result)
            sent = result != 0
            assert sent.sum() == 250
            torch.testing.assert_close(result[sent], weight * exact[sent])
            seen.add(tuple(sent.nonzero().flatten().tolist()))
        assert len(seen) == 8
    hvd.shutdown()
    _draw_again()


@in_job
def _draws():
    draws = {
        name: [
            hvd.allreduce(values_of(hvd.rank()), name=f"draw.{name}", compression=name)
            for _ in range(3)
        ]
        for name in ("int4:stochastic=true", "randomk:density=0.05")
    }
    for one in itertools.chain(*draws.values()):
        check_same(one)
    return draws


def _draw_again():
    """What is left to chance follows from names and steps: the same in another job."""
    first, second = _draws(), _draws()
    for name, draws in first.items():
        for one, other in zip(draws, second[name], strict=True):
            assert torch.equal(one, other), name
        assert not torch.equal(draws[0], draws[1]), name
        assert not torch.equal(draws[1], draws[2]), name


@on_ranks_over_tcp(2)
def test_what_is_not_finite_on_one_rank_is_so_on_all():
    names = ("int8", "int4", "fp8", "topk", "mstopk")
    for bad, name in itertools.product((torch.inf, torch.nan), names):
        tensor = values_of(hvd.rank(), 2000)
        if hvd.rank() == 1:
            tensor[[1500, 1900]] = bad
        result = hvd.allreduce(tensor, compression=name)
        assert not result[1500].isfinite()
        assert result[1900].isfinite() == ("topk" in name)  # of the largest the first is there
        assert result[0].isfinite()
    # So are gradients, of which nothing is kept then, whether anybody looks for it or not.
    codecs = ("int8", "fp8", "powersgd:rank=2") if torch.ones(1).is_cpu else ("int8", "fp8")
    for codec, way in itertools.product(codecs, ("optimizer", "views")):
        policy = Policy(parse(codec), feedback=Residual(), least_elements=64)
        job = Job(policy, {"first": (64, 64), "second": (64, 64)}, way)
        for step in range(4):
            gradients = {
                name: values_of(10 * step + hvd.rank() + place, 64, 64)
                for place, name in enumerate(("first", "second"))
            }
            if (step, hvd.rank()) == (2, 1):
                gradients["first"][3] = torch.inf
            results = job.step(gradients)
            assert results["first"].isfinite().all() == (step != 2)
            # PowerSGD has but the sum of a bucket to know it by.
            assert results["second"].isfinite().all() or (step == 2 and "power" in codec)
            assert all(kept.isfinite().all() for kept in job.feedback.residuals.values())
            for one in results.values():
                check_same(one.nan_to_num())


@on_ranks_over_tcp(1, 2)
def test_one_rank_alone_keeps_what_it_has():
    """A job of one rank, and process sets of one: every form, as if there were no compression."""
    mine = values_of(hvd.rank(), 40_000)
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size()) if hvd.size() > 1]
    own = sets[hvd.rank()] if sets else hvd.global_process_set
    for compression in ("fp16", "bf16", "int8", "mstopk", "randomk", hvd.Compression.bf16):
        for result in _call_every_way(mine, compression=compression, process_set=own):
            assert torch.equal(result, mine), compression
    hvd.barrier()


def test_one_rank_without_settings_keeps_what_it_has():
    run_ranks(1, test_one_rank_alone_keeps_what_it_has.body, {}, launcher="python")


@on_ranks_in_ddp(1)
def test_gradients_of_one_rank_alone_stay_as_they_are():
    for way in WAYS:
        job = Job("mstopk:density=0.01", {"weight": (160, 160)}, way)
        mine = values_of(0, 160, 160)
        assert torch.equal(job.step({"weight": mine})["weight"], mine)


# --- refusals, and ranks that differ


def _grouped(tensor, call=hvd.grouped_allreduce, **options):
    return call([tensor], **options)


_BY_POLICY = {"compression": Policy(MSTopK())}
_POLICY = r"Policy.*\(expected .*DistributedOptimizer"
_SCATTERED = r"Policy.* of a reduce-scatter .*use Compression\.bf"
_REFUSED = [
    *(
        (hvd.allreduce, {"op": op, "compression": "int8"}, rf"{text}.*use Compression\.bf16")
        for op, text in {hvd.Min: "Min", hvd.Product: "Product", hvd.Adasum: "Adasum"}.items()
    ),
    (hvd.allreduce, {"compression": "int9"}, "codec 'int9'"),
    *((call, _BY_POLICY, _POLICY) for call in (hvd.allreduce, hvd.allreduce_, _grouped)),
    (hvd.reducescatter, _BY_POLICY, _SCATTERED),
    (_grouped, {"call": hvd.grouped_reducescatter, **_BY_POLICY}, _SCATTERED),
    (hvd.reducescatter, {"compression": "int8"}, r"compression=int8.*use Compression\.bf16"),
    (hvd.allreduce, {"compression": "powersgd"}, r"powersgd of an operation .*DistributedOptim"),
]
_REFUSED_BY_HOOKS = [("powersgd", r"powersgd of a hook .*powerSGD_hook"), ("int9", "codec 'int9'")]


@on_ranks_over_tcp(2)
def test_what_is_not_for_codecs_is_refused_by_name():
    for call, options, text in _REFUSED:
        with pytest.raises(ValueError, match=text):
            call(values_of(hvd.rank()), **options)
    for compression, text in _REFUSED_BY_HOOKS:
        with pytest.raises(ValueError, match=text):
            hvd.HookState(compression=compression)


_INT8, _FED = Policy(Quantised("int8")), Policy(Quantised("int8"), feedback=Residual())
_WITHOUT = "the ranks were given different compression: "
_THEIRS = " (expected the same on every rank); pass the same compression on every rank"
#: What the last rank and the others are given; what is said of operations, or of gradients.
_OF_OPERATIONS = [
    ("int8", "int4", ["int8_blocks 256", "int4_blocks 256"]),
    ("int8", "int8:block=512", ["int8_blocks 256", "int8_blocks 512"]),
    ("mstopk:density=0.01", "mstopk:density=0.02", ["largest 10000", "largest 20000"]),
    ("int8", "none", ["int8_blocks 256", "tensor"]),
]
_OF_GRADIENTS = [
    ("int8", "int4", r"weight.*int8_blocks 256.*int4_blocks 256"),
    ("int8", "none", "ranks"),
    (Policy(parse("powersgd:rank=1")), Policy(parse("powersgd:rank=2")), r"weight.*shape \[25"),
]
_OF_HOOKS = [
    (None, "int8"),
    ("int8", "bf16"),
    ("bf16", None),
    (  # what travels is of one form, and yet what ranks make of it would differ
        Policy(parse("topk"), feedback=EF21(), least_elements=1),
        Policy(parse("topk"), feedback=Residual(), least_elements=1),
    ),
]


def _step(compression):
    model = nn.Linear(128, 128)
    optimizer = coding_optimizer(model, compression)
    model(torch.ones(1, 128)).sum().backward()
    optimizer.step()


@on_ranks_over_tcp(3)
def test_ranks_that_disagree_learn_both_codecs():
    last = hvd.rank() == hvd.size() - 1
    for ours, theirs, texts in _OF_OPERATIONS:
        for call in (hvd.allreduce, _grouped):
            with pytest.raises(aiacc.MismatchError) as failure:
                call(values_of(0), name="odd.one", compression=theirs if last else ours)
            for text in ("odd.one", "rank 0", f"rank {hvd.size() - 1}", *texts):
                assert text in str(failure.value)
    for ours, theirs, text in _OF_GRADIENTS:
        with pytest.raises((aiacc.MismatchError, ValueError), match=text):
            _step(theirs if last else ours)
        hvd.barrier()
    others = "Policy(int8), another rank something else, which its own error says"
    said = (
        f"this one {others}",
        f"rank 0 and this one {others}",
        "rank 0 Policy(int8), this one Policy(int8, feedback=residual)",
    )
    with pytest.raises(ValueError, match=re.escape(f"{_WITHOUT}{said[hvd.rank()]}{_THEIRS}")):
        _step(_FED if last else _INT8)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def _train(compression, bucket_mb=25, steps=1):
    model = nn.Sequential(nn.Linear(160, 160, bias=False), nn.Linear(160, 160, bias=False))
    wrapped = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    state = None if compression is None else hvd.HookState(compression=compression)
    wrapped.register_comm_hook(state, hvd.allreduce_hook)
    for _ in range(steps):
        wrapped(torch.ones(2, 160)).sum().backward()


@on_ranks_in_ddp(2)
def test_hooks_that_compress_in_different_ways_are_an_error():
    """An error on every rank, also on those that compress nothing."""
    for pair in _OF_HOOKS:
        with pytest.raises((ValueError, RuntimeError), match="the ranks were given different"):
            _train(pair[hvd.rank()])
        hvd.barrier()
    for _ in range(2):  # models; a state without compression is as none
        _train("none" if hvd.rank() == 1 else None, bucket_mb=0.1, steps=3)


def _said_of(compression):
    """What is told of a codec that is for none of the gradients."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = nn.Linear(4, 4)
        if compression == "hook":
            policy = Policy(Quantised("int8"), exclude=("*",))
            state = hvd.HookState(compression=policy, named_parameters=model.named_parameters())
            for number in range(3):
                state.begin_pass(number == 0)
        else:
            optimizer = coding_optimizer(model, compression)
            for _ in range(2):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
    return [str(one.message) for one in caught]


@on_ranks_over_tcp(2, starts=False)
def test_a_codec_that_is_for_nothing_is_said_once_by_the_first_rank():
    small = Policy(Quantised("int8"), least_elements=1)
    for hosts, engine, counts in (
        ("ab", "auto", [1, 0, 1, 0, 1]),
        ("aa", "auto", [0, 0, 1, 0, 0]),  # where powersgd alone would do something
        ("aa", "tcp", [1, 0, 1, 0, 1]),
    ):
        os.environ["AIACC_ENGINE"] = engine
        join_as(hosts)
        said = [_said_of(one) for one in ("int8", small, "powersgd", "bf16", "hook")]
        told = counts if hvd.rank() == 0 else [0] * 5
        assert list(map(len, said)) == told, (hosts, engine)
        none = "int8 compresses none of 2 gradients: 1 of fewer than 16384 elements, 1 of"
        assert all(none in text for text in said[0])
        hvd.shutdown()
