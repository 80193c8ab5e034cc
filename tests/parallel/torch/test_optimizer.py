"""DistributedOptimizer: what it computes, and in which ways it can be used."""

from __future__ import annotations

import copy
import gc
import warnings
from functools import partial

import pytest
import torch
from torch import nn

import aiacc
import aiacc.torch as hvd
from examples import digits
from tests.support.ranks import run_ranks
from tests.support.training import check_parameters, flat, train_alone

# --- the example: the same mathematics on any number of ranks


def _train_digits(batch_size, steps):
    hvd.init()
    torch.manual_seed(1)
    start = flat(digits.Net())
    options = ["--seed", "1", "--batch-size", str(batch_size), "--max-steps", str(steps)]
    model = digits.train(digits.parse(options)).model
    check_parameters(model, model)
    hvd.shutdown()
    learned = flat(model)
    assert (learned - start).abs().max() > 1e-3  # or the comparison would mean nothing
    return learned.numpy()


def test_twenty_steps_equal_those_of_one_process():
    (alone,) = run_ranks(1, _train_digits, 64, 20)
    together = run_ranks(2, _train_digits, 32, 20)
    assert (together[0] == together[1]).all()  # to the last bit
    # Sums in another order differ by some units in the last place per step.
    torch.testing.assert_close(
        torch.from_numpy(together[0]), torch.from_numpy(alone), rtol=1e-5, atol=5e-6
    )


# --- every way of use, against plain torch on the data of all ranks


class _Net(nn.Module):
    """Has parameters of both memory layouts, and a part that is not always used."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.used = nn.Linear(4, 3)
        self.sometimes = nn.Linear(4, 3)

    def forward(self, x, sometimes):
        hidden = self.conv(x.to(memory_format=torch.channels_last)).mean((2, 3))
        return self.used(hidden) + (self.sometimes(hidden) if sometimes else 0)


def _net():
    torch.manual_seed(0)
    return _Net()


def _batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 3, 5, 5, generator=generator)


def _loss(model, rank, step):
    """Only the last rank uses the whole model, and only in even steps."""
    sometimes = rank == hvd.size() - 1 and step % 2 == 0
    return model(_batch(rank, step), sometimes).pow(2).mean()


def _reference(steps, **options):
    """What one process computes from the data of all ranks."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return train_alone(model, optimizer, _loss, steps, **options)


def _wrap(model, named=True, **options):
    sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return hvd.DistributedOptimizer(sgd, model.named_parameters() if named else None, **options)


def _plain_use():
    for named, options, tolerance in [
        (True, {}, {}),
        (False, {}, {}),
        (True, {"gradient_predivide_factor": 2.0}, {}),
        (True, {"groups": 2}, {}),
        (True, {"compression": hvd.Compression.bf16}, {"rtol": 0.1, "atol": 0.02}),
        (True, {"compression": hvd.Compression.fp16}, {"rtol": 0.1, "atol": 0.002}),
        (True, {"op": hvd.Sum}, {}),
    ]:
        model = _net()
        optimizer = _wrap(model, named, **options)
        for step in range(4):
            _loss(model, hvd.rank(), step).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        check_parameters(model, _reference(4, op=options.get("op", hvd.Average)), **tolerance)


def _clip(model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def _clipping():
    model = _net()
    optimizer = _wrap(model)
    for step in range(3):
        optimizer.zero_grad()
        _loss(model, hvd.rank(), step).backward()
        optimizer.synchronize()
        _clip(model)
        with optimizer.skip_synchronize():
            optimizer.step()
    check_parameters(model, _reference(3, update=_clip))


def _writing_too_early():
    """What is written while gradients travel may be lost, or reach some ranks only."""
    for named, options in [
        (False, {}),
        (True, {"groups": 2}),
        (True, {"compression": hvd.Compression.bf16}),
        (True, {"bucket_bytes": 1 << 20, "gradient_as_bucket_view": True}),
        (True, {"backward_passes_per_step": 2}),
    ]:
        model = _net()
        optimizer = _wrap(model, named, **options)
        passes = options.get("backward_passes_per_step", 1)

        def compute(model=model, passes=passes):
            for _ in range(passes):  # on every rank a gradient of everything
                model(_batch(hvd.rank(), 0), True).pow(2).mean().backward()

        for step in range(3):
            compute()
            before = flat(model)
            if step == 1:
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad = parameter.grad / 2
            else:
                _clip(model)
            what = "replaced" if step == 1 else "written to"
            with pytest.raises(ValueError, match=rf"was {what} between .* optimizer.synchronize"):
                optimizer.step()
            assert torch.equal(flat(model), before)
            optimizer.zero_grad()
        for sometimes in (True, hvd.rank() == 1):  # now some of a group may leave late
            for _ in range(passes):
                model(_batch(hvd.rank(), 0), sometimes).pow(2).mean().backward()
            kept = model.used.bias.detach().clone()
            model.used.bias.grad = None  # to leave it as it is
            optimizer.step()
            assert torch.equal(model.used.bias, kept)
            assert not torch.equal(flat(model), before)
            check_parameters(model, model)
            optimizer.zero_grad()
        compute()
        _clip(model)
        optimizer.load_state_dict(optimizer.state_dict())  # drops them
        optimizer.zero_grad()
        optimizer.step()


def _mixed_precision():
    """The scaler looks at the gradients, so they have to be there before it does."""
    model = _net()
    optimizer = _wrap(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(_loss(model, hvd.rank(), step)).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        _clip(model)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    check_parameters(model, _reference(3, update=_clip))


def _bfloat16_model():
    model = _net().bfloat16()
    optimizer = _wrap(model)
    for step in range(3):
        model(_batch(hvd.rank(), step).bfloat16(), False).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(flat(model), flat(_net().bfloat16()))
    check_parameters(model, model)


def _accumulation():
    model = _net()
    optimizer = _wrap(model, backward_passes_per_step=2)
    for step in range(3):
        optimizer.zero_grad()
        for index in range(2):
            _loss(model, hvd.rank(), 2 * step + index).backward()
        optimizer.step()
    check_parameters(model, _reference(3, passes=2))
    optimizer.set_backward_passes_per_step(1)
    optimizer.zero_grad()
    _loss(model, hvd.rank(), 0).backward()
    optimizer.step()
    # Fewer passes than announced: step() submits what there is.
    optimizer.set_backward_passes_per_step(3)
    optimizer.zero_grad()
    _loss(model, hvd.rank(), 1).backward()
    optimizer.step()
    check_parameters(model, model)


def _closures():
    model = _net()
    optimizer = _wrap(model)
    calls = 0

    def closure(step):
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = _loss(model, hvd.rank(), step)
        loss.backward()
        return loss

    for step in range(3):
        assert optimizer.step(partial(closure, step)).item() > 0
    assert calls == 3
    check_parameters(model, _reference(3))


def _sparse():
    torch.manual_seed(0)
    model = nn.Embedding(6, 2, sparse=True)
    start = model.weight.detach().clone()
    sgd = torch.optim.SGD(model.parameters(), 1.0)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), sparse_as_dense=True)
    model(torch.tensor([hvd.rank()])).sum().backward()
    optimizer.step()
    expected = start.clone()
    expected[: hvd.size()] -= 1 / hvd.size()
    torch.testing.assert_close(model.weight.detach(), expected)


def _sparse_as_dense_for_a_sparse_optimizer():
    """SparseAdam refuses dense gradients; Horovod gives it sparse ones again, and so do we."""

    def trained(ranks, wrap, **options):
        torch.manual_seed(0)
        model = nn.Embedding(6, 2, sparse=True).double()
        optimizer = torch.optim.SparseAdam(list(model.parameters()), 0.1)
        if wrap:
            named = list(model.named_parameters())
            optimizer = hvd.DistributedOptimizer(optimizer, named, sparse_as_dense=True, **options)
        for step in range(3):
            optimizer.zero_grad()
            losses = [model(torch.tensor([r, (r + step) % 6])).pow(2).sum() for r in ranks]
            (sum(losses) / len(losses)).backward()
            optimizer.step()
            assert model.weight.grad.is_sparse
        return model.weight.detach()

    expected = trained(range(hvd.size()), wrap=False)
    for options in ({}, {"groups": 1}, {"gradient_as_bucket_view": True}):
        torch.testing.assert_close(trained([hvd.rank()], wrap=True, **options), expected)


def _frozen_and_added_parameters():
    model = _net()
    model.sometimes.requires_grad_(False)
    sgd = torch.optim.SGD([*model.used.parameters(), *model.sometimes.parameters()], 0.1)
    optimizer = hvd.DistributedOptimizer(sgd)
    before = model.sometimes.weight.clone()
    for step in (0, 2):
        _loss(model, hvd.rank(), step).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(model.sometimes.weight, before)
    model.sometimes.requires_grad_(True)
    optimizer.add_param_group({"params": list(model.conv.parameters()), "lr": 0.2})
    for step in (4, 6):  # the first finds the parameters, the second their hooks
        _loss(model, hvd.rank(), step).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(model.sometimes.weight, before)
    check_parameters(model, model)


def _misuse():
    model = _net()
    optimizer = _wrap(model)
    _loss(model, hvd.rank(), 0).backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        _loss(model, hvd.rank(), 0).backward()
    with pytest.raises(ValueError, match="written to"):  # by that pass, up to its error
        optimizer.synchronize()
    optimizer.zero_grad()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()
    check_parameters(model, model)


def _scheduled():
    """By schedulers made before and after wrapping; torch warns of one whose optimizer rests."""
    model = _net()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    early = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    late = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(2):
        optimizer.zero_grad()
        _loss(model, hvd.rank(), step).backward()
        optimizer.step()
        early.step()
        late.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 16)


def _saved_and_loaded():
    model = _net()
    optimizer = _wrap(model)
    _loss(model, hvd.rank(), 0).backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    _loss(model, hvd.rank(), 1).backward()
    optimizer.load_state_dict(saved)  # drops what is under way
    optimizer.zero_grad()
    _loss(model, hvd.rank(), 1).backward()
    optimizer.step()
    check_parameters(model, model)


def _disagreement():
    """A gradient that differs in shape fails the step on every rank; the next step works."""
    rows = 3 if hvd.rank() == 0 else 2
    odd, fine = nn.Parameter(torch.ones(rows)), nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([odd, fine], 0.1), [("odd", odd), ("fine", fine)]
    )
    (odd.sum() + fine.sum()).backward()
    with pytest.raises(aiacc.MismatchError, match="odd"):
        optimizer.step()
    assert torch.equal(fine.detach(), torch.ones(2))
    optimizer.zero_grad()
    odd.data = torch.ones(2)
    fine.sum().backward()
    optimizer.step()
    torch.testing.assert_close(fine.detach(), torch.full((2,), 0.9))


def _shut_down_in_a_step(model, optimizer):
    _loss(model, hvd.rank(), 0).backward()
    hvd.shutdown()
    optimizer.step()


def _start_anew():
    """An optimizer outlives a shutdown in the middle of a step."""
    model = _net()
    optimizer = _wrap(model)
    with pytest.raises(aiacc.CollectiveError):  # where, depends on how fast the others are
        _shut_down_in_a_step(model, optimizer)
    hvd.shutdown()
    hvd.init()
    for step in range(2):
        optimizer.zero_grad()
        _loss(model, hvd.rank(), step).backward()
        optimizer.step()
    check_parameters(model, _reference(2))


def _use_in_every_way():
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    hvd.init()
    for use in (
        _plain_use,
        _clipping,
        _writing_too_early,
        _mixed_precision,
        _bfloat16_model,
        _accumulation,
        _closures,
        _sparse,
        _sparse_as_dense_for_a_sparse_optimizer,
        _frozen_and_added_parameters,
        _misuse,
        _scheduled,
        _saved_and_loaded,
        _disagreement,
        _start_anew,
    ):
        use()
        gc.collect()  # a discarded optimizer takes its hooks along
    hvd.shutdown()


@pytest.mark.parametrize("size", [2, 3])
def test_every_way_of_use(size):
    run_ranks(size, _use_in_every_way)


def _compiled():
    torch.set_num_threads(1)
    hvd.init()
    model = _net()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = _wrap(model)
    for step in range(2):
        optimizer.zero_grad()
        _loss(compiled, hvd.rank(), step).backward()
        optimizer.step()
    check_parameters(model, _reference(2))
    hvd.shutdown()


def test_compiled_model():
    run_ranks(2, _compiled)
