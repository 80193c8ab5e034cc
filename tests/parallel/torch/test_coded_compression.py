"""All-reduces and gradients that travel coded, over TCP: ranks that share memory code nothing."""

from __future__ import annotations

import copy
import itertools
import os
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import aiacc
import aiacc.torch as hvd
from aiacc.compression.codecs import MSTopK, Quantised, parse
from aiacc.compression.feedback import EF21, Momentum, NoFeedback, Residual, ef21, momentum
from aiacc.compression.policy import Policy
from aiacc.planning.plan import Plan
from tests.support.ranks import run_ranks

_TCP = {"AIACC_ENGINE": "tcp"}
_run = partial(run_ranks, env=_TCP)
#: Half the distance of two neighbours in a block, in parts of its largest number.
_HALF_STEPS = {"int8": 0.5 / 127, "int4": 0.5 / 7, "fp8": 0.5 / 14}


def _values(rank, count=5000):
    return torch.randn(count, generator=torch.Generator().manual_seed(rank))


def _check_same(tensor):
    everyones = hvd.allgather(tensor.reshape(1, -1))
    assert torch.equal(everyones, everyones[:1].expand_as(everyones))


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


# --- operations


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
    inputs = [_values(rank) for rank in range(hvd.size())]
    mine = inputs[hvd.rank()]
    for name in _NAMES:
        first = hvd.allreduce(mine, op=hvd.Sum, compression=name)
        _check_same(first)
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
    assert torch.equal(mine, _values(hvd.rank())), "inputs are only read"
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
    _run(size, _operations)


def _objects_and_errors():
    hvd.init()
    mine = _values(hvd.rank())
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
    hvd.shutdown()


def test_compressors_names_and_what_is_refused():
    _run(2, _objects_and_errors)


def _overflow():
    hvd.init()
    for bad, name in itertools.product(
        (float("inf"), float("nan")), ("int8", "int4", "fp8", "topk", "mstopk")
    ):
        tensor = _values(hvd.rank(), 2000)
        if hvd.rank() == 1:
            tensor[1500] = bad
        result = hvd.allreduce(tensor, compression=name)
        assert not result[1500].isfinite()
        assert result[0].isfinite()
    hvd.shutdown()


def test_what_is_not_finite_on_one_rank_is_so_on_all():
    _run(2, _overflow)


def _disagree():
    hvd.init()
    mine = _values(hvd.rank())
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
    optimizer = _wrap(model, "int4" if last else "int8")
    model(torch.ones(1, 128)).sum().backward()
    with pytest.raises(aiacc.MismatchError, match=r"weight.*int8_blocks 256.*int4_blocks 256"):
        optimizer.step()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    hvd.shutdown()


def test_ranks_that_disagree_learn_both_codecs():
    _run(3, _disagree)


# --- gradients: what is sent and what is kept is what there was


class _Net(nn.Module):
    """Both memory layouts, a frozen layer, and one that few ranks use."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 16, 3).to(memory_format=torch.channels_last)
        self.hidden = nn.Linear(16, 24)
        self.frozen = nn.Linear(24, 24).requires_grad_(False)
        self.sometimes = nn.Linear(24, 24)
        self.out = nn.Linear(24, 40)

    def forward(self, x, sometimes):
        h = self.hidden(self.conv(x.to(memory_format=torch.channels_last)).mean((2, 3)).tanh())
        h = self.frozen(h) + (self.sometimes(h) if sometimes else 0)
        return self.out(h)


def _loss(model, rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(4, 4, 6, 6, generator=generator)
    return model(x, rank == 1 and step % 2 == 1).pow(2).mean()


def _wrap(model, compression, lr=0.0, **options):
    return hvd.DistributedOptimizer(
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr),
        [(name, p) for name, p in model.named_parameters() if p.requires_grad],
        compression=compression,
        **{"op": hvd.Sum, **options},
    )


_POLICIES = {
    "int8": Policy(Quantised("int8", 128), feedback=Residual(), least_elements=64),
    "int4": Policy(Quantised("int4", 128, stochastic=True), least_elements=64),
    "topk": Policy(parse("topk:density=0.05"), least_elements=64),
}


def _local_gradients(model, rank, step, passes):
    model.zero_grad()
    for number in range(passes):
        _loss(model, rank, step * passes + number).backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def _conserved(policy, options, ranks, steps):
    """Over all steps: results, and what ranks keep in the end, are what ranks had.

    ``steps[rank]`` of each of ``ranks``; then it joins, unless all have as many.
    """
    torch.manual_seed(0)
    model = _Net()
    plain = copy.deepcopy(model)
    passes = options.get("backward_passes_per_step", 1)
    predivide = options.get("gradient_predivide_factor", 1.0)
    if options.get("groups") == "named":
        options = {"groups": [[model.conv.weight, model.out.weight, model.out.bias]]}
    optimizer = _wrap(model, policy, **options)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    left = {name: torch.zeros(model.get_parameter(name).shape).double() for name in names}
    largest = dict.fromkeys(names, 0.0)
    # An element's error is that of its block: up to the largest of all that was added up, a
    # quarter more where chance rounds. See coded_all_reduce_test.cc.
    rounding = 1.25 * 2**-24 * (max(steps.values()) + 1) * (2 * len(ranks) + 2) * len(ranks)

    def one_step(step):
        optimizer.zero_grad(set_to_none=not options.get("gradient_as_bucket_view"))
        for number in range(passes):
            _loss(model, hvd.rank(), step * passes + number).backward()
        optimizer.step()
        for rank in ranks:
            if step < steps[rank]:
                for name, gradient in _local_gradients(plain, rank, step, passes).items():
                    left[name] += gradient
                    largest[name] += gradient.abs().max().item()
        for name in names:
            gradient = model.get_parameter(name).grad
            left[name] -= gradient.double() * (
                len(ranks) if options.get("op") == hvd.Average else 1
            )

    for step in range(steps[hvd.rank()]):
        one_step(step)
    same_steps = len(set(steps.values())) == 1
    if not same_steps:
        hvd.join()
    residuals = optimizer.feedback.residuals
    assert {"conv.weight", "hidden.weight", "out.weight"} <= residuals.keys()
    gather = partial(hvd.allgather, process_set=options.get("process_set", hvd.global_process_set))
    for name in names:
        kept = residuals.get(name, torch.zeros_like(model.get_parameter(name))).double()
        kept = predivide * gather(kept.reshape(1, -1)).sum(0).view(kept.shape)
        if steps[hvd.rank()] == max(steps.values()):
            error = (left[name] - kept).abs().max().item()
            assert error <= rounding * largest[name], (options, name)
            assert error < kept.abs().max() / 1000 or name not in residuals or "some" in name
    if same_steps:
        optimizer.feedback.flush()
        steps = {rank: count + 1 for rank, count in steps.items()}
        one_step(steps[hvd.rank()] - 1)
        for name in names:
            assert left[name].abs().max().item() <= rounding * largest[name], (options, name)
            everyones = gather(model.get_parameter(name).grad.reshape(1, -1))
            assert torch.equal(everyones, everyones[:1].expand_as(everyones))
        for residual in residuals.values():
            assert not residual.any(), options


_WAYS = [
    {},
    {"backward_passes_per_step": 2},
    {"groups": 2},
    {"groups": "named"},
    {"plan": Plan("mine", (("out.weight", "hidden.weight"), ("conv.weight", "conv.bias")))},
    {"gradient_as_bucket_view": True},
    {"gradient_predivide_factor": 4.0, "op": hvd.Average},
]


def _conserved_in_every_way(policy):
    hvd.init()
    for options in _WAYS:
        _conserved(policy, options, range(2), {0: 5, 1: 5})
    hvd.shutdown()


@pytest.mark.parametrize("kind", _POLICIES)
def test_sums_and_what_is_kept_are_all_there_was(kind):
    _run(2, _conserved_in_every_way, _POLICIES[kind])


def _conserved_on_hosts(hosts):
    """Ranks keep what is lost between hosts, of their share of their host's sum."""
    rank = int(os.environ["AIACC_RANK"])
    os.environ["AIACC_ENGINE"] = "hierarchical"
    os.environ["AIACC_LOCAL_RANK"] = str(hosts[:rank].count(hosts[rank]))
    os.environ["AIACC_LOCAL_SIZE"] = str(hosts.count(hosts[rank]))
    hvd.init()
    steps = dict.fromkeys(range(len(hosts)), 3)
    _conserved(_POLICIES["int8"], {}, range(len(hosts)), steps)
    _conserved(_POLICIES["topk"], {"gradient_as_bucket_view": True}, range(len(hosts)), steps)
    hvd.shutdown()


def test_hosts_of_several_ranks_lose_nothing_either():
    run_ranks(4, _conserved_on_hosts, "aabb")


def _conserved_by_some():
    hvd.init()
    process_set = hvd.add_process_set([0, 2])
    if process_set.included():
        _conserved(_POLICIES["topk"], {"process_set": process_set}, [0, 2], {0: 3, 2: 3})
    hvd.barrier()
    # The owner of a shard keeps what its sum loses, save one that has joined: so the largest only.
    _conserved(_POLICIES["topk"], {}, range(3), {0: 2, 1: 5, 2: 5})
    hvd.shutdown()


def test_process_sets_and_ranks_that_have_not_joined_keep_what_is_theirs():
    _run(3, _conserved_by_some)


def _sparse():
    hvd.init()
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"words": nn.Embedding(200, 100, sparse=True), "out": nn.Linear(100, 200)}
    )
    plain = copy.deepcopy(model)
    optimizer = _wrap(model, Policy(parse("topk:density=0.05"), least_elements=64))

    def loss(net, rank, step):
        places = torch.tensor([rank, step, 7 * rank + step])
        return net["out"](net["words"](places)).pow(2).mean()

    left = torch.zeros(200, 100).double()
    for step in range(4):
        optimizer.zero_grad()
        loss(model, hvd.rank(), step).backward()
        optimizer.step()
        words, total = torch.zeros(200, 100), torch.zeros(200, 100).double()
        for rank in range(hvd.size()):
            plain.zero_grad()
            loss(plain, rank, step).backward()
            words += plain["words"].weight.grad.to_dense()
            total += plain["out"].weight.grad
        torch.testing.assert_close(model["words"].weight.grad.to_dense(), words)
        left += total - model["out"].weight.grad
    kept = hvd.allreduce(optimizer.feedback.residuals["out.weight"].double(), op=hvd.Sum)
    torch.testing.assert_close(kept, left, rtol=0, atol=1e-5 * left.abs().max().item())
    assert "words.weight" not in optimizer.feedback.residuals
    hvd.shutdown()


def test_sparse_gradients_are_gathered_beside_coded_ones():
    _run(2, _sparse)


# --- overflow, states


def _overflow_step(codec, options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    optimizer = _wrap(
        model, Policy(codec, feedback=Residual(), least_elements=64), lr=0.01, **options
    )
    before = None
    for step in range(5):
        optimizer.zero_grad(set_to_none="gradient_as_bucket_view" not in options)
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
        loss = model(x).pow(2).mean()
        (loss * (float("inf") if (step, hvd.rank()) == (2, 1) else 1.0)).backward()
        optimizer.synchronize()
        finite = all(p.grad.isfinite().all() for p in model.parameters())
        assert finite == (step != 2), "as a GradScaler looks at them, on every rank"
        if finite:
            with optimizer.skip_synchronize():
                optimizer.step()
        for residual in optimizer.feedback.residuals.values():
            assert residual.isfinite().all()
        after = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        assert before is None or torch.equal(before, after) == (step == 2)
        before = after.clone()
    _check_same(before)


def _overflow_steps():
    hvd.init()
    for codec in (Quantised("int8"), Quantised("fp8")):
        for options in ({}, {"gradient_as_bucket_view": True}):
            _overflow_step(codec, options)
    hvd.shutdown()


def test_an_overflow_is_seen_by_all_and_forgotten():
    _run(2, _overflow_steps)


def _continued(codec, as_views):
    def fresh():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        options = (
            {"gradient_as_bucket_view": True}
            if as_views
            else {"groups": [[layer.weight for layer in model]]}
        )
        return model, _wrap(model, Policy(codec, least_elements=64), lr=0.01, **options)

    def train(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad(set_to_none=False)
            x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
            model(x).pow(2).mean().backward()
            optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    model, optimizer = fresh()
    train(model, optimizer, range(3))
    saved = copy.deepcopy((model.state_dict(), optimizer.feedback.state_dict()))
    expected = train(model, optimizer, range(3, 6))
    results = []
    for with_feedback in (True, False):
        model, optimizer = fresh()
        if as_views:
            train(model, optimizer, range(2))  # buckets come with the second step
        model.load_state_dict(saved[0])
        if with_feedback:
            optimizer.feedback.load_state_dict(saved[1])
        results.append(train(model, optimizer, range(3, 6)))
    assert torch.equal(results[0], expected)
    assert not torch.equal(results[1], expected), "what was lost before is missed"


def _all_continued():
    hvd.init()
    for codec in (Quantised("int4"), parse("topk:density=0.05")):
        for as_views in (False, True):
            _continued(codec, as_views)
    hvd.shutdown()


def test_a_state_continues_bit_for_bit():
    _run(2, _all_continued)


# --- momentum and EF21, against their references on the gradients of all ranks


def _largest(values):
    """What the others decode of an array."""
    kept = parse("topk:density=0.05").kept(values.size)
    decoded = np.zeros_like(values)
    places = np.argsort(-np.abs(values).ravel())[:kept]
    decoded.ravel()[places] = values.ravel()[places]
    return decoded


def _like_references(options):
    shape = (40, 30)
    for feedback in (Momentum(0.5, masking=False), EF21()):
        model = nn.Module()
        model.w = nn.Parameter(torch.zeros(shape))
        policy = Policy(parse("topk:density=0.05"), feedback=feedback, least_elements=64)
        optimizer = _wrap(model, policy, **options)
        zeros = np.zeros(shape, np.float32)
        states = [(zeros, zeros) if isinstance(feedback, Momentum) else zeros for _ in range(2)]
        for step in range(6):
            expected = zeros
            gradients = [_values(10 * step + rank, 1200).view(shape) for rank in range(hvd.size())]
            for rank, gradient in enumerate(gradients):
                if isinstance(feedback, Momentum):
                    sent, states[rank] = momentum(
                        gradient.numpy(), states[rank], _largest, feedback
                    )
                else:
                    sent, states[rank] = ef21(gradient.numpy(), states[rank], _largest)
                expected = expected + sent
            optimizer.zero_grad(set_to_none="gradient_as_bucket_view" not in options)
            (model.w * gradients[hvd.rank()]).sum().backward()
            optimizer.step()
            # Numbers below 8 in up to 6 sums, which the next step rounds anew.
            np.testing.assert_allclose(
                model.w.grad.numpy(), expected, rtol=0, atol=(step + 1) * 6 * 2**-22
            )


def _all_like_references():
    hvd.init()
    for options in ({}, {"gradient_as_bucket_view": True}):
        _like_references(options)
    hvd.shutdown()


def test_momentum_and_ef21_are_those_of_their_references():
    _run(2, _all_like_references)


# --- training


def _quadratic(feedback):
    """Minimises the mean of |w - a_r|^2 / 2 over the ranks; how far from the minimum it ends.

    With feedback theory bounds that. Let e be the mean residual and x = w - lr e. Then the next
    x - w* is (1 - lr) (x - w*) - lr^2 e, and a residual with its gradient g loses at least the
    part d of its square that the largest d of elements are: |e| <= sqrt(1 - d) (|e| + |g|) (Stich
    et al., "Sparsified SGD with memory", NeurIPS 2018).
    """
    hvd.init()
    density, lr, steps = 0.1, 0.01, 700
    generator = torch.Generator().manual_seed(3)
    common = torch.randn(32, 32, generator=generator)
    targets = [common + 0.5 * torch.randn(32, 32, generator=generator) for _ in range(hvd.size())]
    best = torch.stack(targets).mean(0)
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(32, 32))
    policy = Policy(MSTopK(density=density, mode="exact"), feedback=feedback, least_elements=1)
    optimizer = _wrap(model, policy, lr=lr, op=hvd.Average)
    distance, residual = best.norm().item(), [0.0] * hvd.size()
    for _ in range(steps):
        optimizer.zero_grad()
        gradients = [(model.w.detach() - target).norm().item() for target in targets]
        (model.w - targets[hvd.rank()]).pow(2).sum().div(2).backward()
        optimizer.step()
        distance = (1 - lr) * distance + lr**2 * sum(residual) / hvd.size()
        residual = [
            (1 - density) ** 0.5 * (e + g) for e, g in zip(residual, gradients, strict=True)
        ]
    _check_same(model.w.detach())
    hvd.shutdown()
    return (model.w - best).norm().item(), distance + lr * sum(residual) / len(residual)


def test_with_feedback_training_ends_where_theory_says_and_without_elsewhere():
    (reached, bound), *_ = _run(2, _quadratic, Residual())
    (without, _), *_ = _run(2, _quadratic, NoFeedback())
    assert reached <= bound
    assert without > bound
