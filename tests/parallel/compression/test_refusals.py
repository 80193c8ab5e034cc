"""What codecs are not for is refused by name, and ranks that differ learn of it."""

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
from tests.support.jobs import join_as
from tests.support.learning.coded import (
    coding_optimizer,
    on_ranks_in_ddp,
    on_ranks_over_tcp,
    values_of,
)
from tests.support.ranks import run_ranks


def _grouped(tensor, **options):
    return hvd.grouped_allreduce([tensor], **options)


def _grouped_scatter(tensor, **options):
    return hvd.grouped_reducescatter([tensor], **options)


_POLICY = r"Policy.*\(expected .*DistributedOptimizer"
_SCATTERED = r"Policy.* of a reduce-scatter .*use Compression\.bf"
_REFUSED = [
    *(
        (hvd.allreduce, {"op": op, "compression": "int8"}, rf"{text}.*use Compression\.bf16")
        for op, text in {hvd.Min: "Min", hvd.Product: "Product", hvd.Adasum: "Adasum"}.items()
    ),
    (hvd.allreduce, {"compression": "int9"}, "codec 'int9'"),
    (hvd.allreduce, {"compression": Policy(MSTopK())}, _POLICY),
    (hvd.allreduce_, {"compression": Policy(MSTopK())}, _POLICY),
    (_grouped, {"compression": Policy(MSTopK())}, _POLICY),
    (hvd.reducescatter, {"compression": Policy(MSTopK())}, _SCATTERED),
    (_grouped_scatter, {"compression": Policy(MSTopK())}, _SCATTERED),
    (hvd.reducescatter, {"compression": "int8"}, r"compression=int8.*use Compression\.bf16"),
    (hvd.allreduce, {"compression": "powersgd"}, r"powersgd of an operation .*DistributedOptim"),
]
_REFUSED_BY_HOOKS = [
    ("powersgd", r"powersgd of a hook .*powerSGD_hook"),
    ("int9", "codec 'int9'"),
]


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


def _too_small(hosts):
    """What is said of codecs that are for none of the gradients."""
    join_as(hosts)
    said = []
    small = Policy(Quantised("int8"), least_elements=1)
    for compression in ("int8", small, "powersgd", "bf16", "hook"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = nn.Linear(4, 4)
            if compression == "hook":
                policy = Policy(Quantised("int8"), exclude=("*",))
                named = model.named_parameters()
                state = hvd.HookState(compression=policy, named_parameters=named)
                for number in range(3):
                    state.begin_pass(number == 0)
            else:
                optimizer = coding_optimizer(model, compression)
                for _ in range(2):
                    model(torch.ones(1, 4)).sum().backward()
                    optimizer.step()
        said.append([str(one.message) for one in caught])
    hvd.shutdown()
    return said


@pytest.mark.parametrize(
    ("hosts", "engine", "said"),
    [
        ("ab", None, [1, 0, 1, 0, 1]),
        ("aa", None, [0, 0, 1, 0, 0]),  # where powersgd alone would do something
        ("aa", "tcp", [1, 0, 1, 0, 1]),
    ],
)
def test_a_codec_that_is_for_nothing_is_said_once_by_the_first_rank(hosts, engine, said):
    env = {} if engine is None else {"AIACC_ENGINE": engine}
    texts, others = run_ranks(2, _too_small, hosts, env=env)
    assert list(map(len, texts)) == said
    assert others == [[]] * 5
    for text in texts[0]:
        assert "int8 compresses none of 2 gradients: 1 of fewer than 16384 elements, 1 of" in text
