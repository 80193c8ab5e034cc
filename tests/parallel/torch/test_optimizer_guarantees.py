"""What holds for every wrapper of an optimizer: all ranks stay alike, or are told why not.

A row of `GUARANTEES` is a script of two ranks, a column of `WRAPPERS` a way to wrap an optimizer.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.compression.codecs import parse
from aiacc.compression.policy import Policy
from aiacc.optim import LAMB, LARS
from tests.support.learning.coded import new_scaler, on_ranks_over_tcp
from tests.support.learning.training import Together, check_same_everywhere, flat, squares, train


class Wrapper(NamedTuple):
    """A column: what is wrapped, and how; with a preconditioner before it perhaps."""

    make_optimizer: Callable[[Any], torch.optim.Optimizer] = partial(torch.optim.SGD, lr=0.1)
    options: Mapping[str, Any] = MappingProxyType({})
    kfac: bool = False


WRAPPERS = {
    "all_reduce": Wrapper(),
    "groups": Wrapper(options={"groups": 2}),
    "views": Wrapper(options={"gradient_as_bucket_view": True}),
    "bf16": Wrapper(options={"compression": hvd.Compression.bf16}),
    "coded": Wrapper(options={"compression": Policy(parse("int8"), least_elements=1)}),
    "decoupled": Wrapper(options={"schedule": "decoupled", "bucket_bytes": 64}),
    "adasum": Wrapper(options={"op": hvd.Adasum}),
    "lars": Wrapper(partial(LARS, lr=0.1)),
    "lamb": Wrapper(partial(LAMB, lr=0.01)),
    "kfac": Wrapper(kfac=True),
}
_loss = squares(4, 6, dtype=torch.float32)


class _Wrapped(Together):
    """This rank's part of a training in a column; names by position if they are not ``named``."""

    def __init__(self, wrapper: Wrapper, named: bool = True, seed: int = 0) -> None:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        model[0].weight.data = model[0].weight.data.t().contiguous().t()  # so strided its gradient
        optimizer = hvd.DistributedOptimizer(
            wrapper.make_optimizer(model.parameters()),
            model.named_parameters() if named else None,
            model=model,
            **wrapper.options,
        )
        self.kfac = hvd.KFAC(model, optimizer, damping=0.1) if wrapper.kfac else None
        super().__init__(model, optimizer, _loss)

    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        if self.kfac is not None:
            if scaler is not None and not self.reduced:
                self.unscale(scaler)
            self.kfac.step()
        super().step(scaler)


def _reduces(training):
    """Whether gradients are reduced, not changes of parameters."""
    return training.optimizer.op != hvd.Adasum


def _has_part(training):
    """Whether a rank updates a part of the parameters."""
    return hasattr(training.optimizer, "clip_grad_norm_")


def _drop_one(model):
    model[2].weight.grad = None


def _infinite_on_one_rank(model, rank, batch):
    bad = batch == 1 and rank == hvd.size() - 1
    return _loss(model, rank, batch) + (model[0].weight[0, 0] * float("inf") if bad else 0)


def _an_overflow_is_skipped_by_all(unscales, lacking, make):
    """Also by rank 0, which has no gradients of the batches ``lacking``."""
    training, scaler = make(), new_scaler(8.0)
    for batch in range(3):
        before = flat(training.model)
        training.zero_grad()
        if hvd.rank() > 0 or batch not in lacking:
            training.backward(batch, loss=_infinite_on_one_rank, scaler=scaler)
        if unscales:
            training.unscale(scaler)
        training.step(scaler)
        assert torch.equal(flat(training.model), before) == (batch == 1)
    assert scaler.get_scale() == 4.0
    return training


def _gradients_that_no_rank_has_are_those_of_a_step_without_scaler(make):
    training = train(make(), [0])
    training.zero_grad()
    if _reduces(training):
        training.step(new_scaler(8.0))
    else:
        training.refused(
            lambda training: training.step(new_scaler(8.0)), "No inf checks were recorded"
        )
    return train(training, [1])


def _a_step_may_be_left_out_by_all(scaled, make):
    """After gradients were clipped; in the next step rank 0 has none."""
    training, scaler = make(), new_scaler(8.0) if scaled else None
    for batch in range(3):
        training.zero_grad()
        if hvd.rank() > 0 or batch != 1:
            training.backward(batch, scaler=scaler)
        if batch == 0 or not scaled:
            training.clip(0.1)
        if batch > 0:
            training.step(scaler)
        training.reduced = False
    return training


def _unscaling_too_early_is_refused(make):
    """By ranks without gradients, too."""
    training = make()

    def unscales(training):
        scaler = new_scaler(8.0)
        if hvd.rank() > 0:
            training.backward(0, scaler=scaler)
        scaler.unscale_(training.optimizer)
        training.reduced = False
        Together.step(training, scaler)

    for _ in range(2):
        if _reduces(training):
            training.refused(unscales, r"(?s)before.*synchronize\(\)")
        else:
            unscales(training)
        if _has_part(training):
            training.optimizer.synchronize()
            break
        training.zero_grad()
    return train(training, [1])


def _gradients_dropped_once_they_have_left_are_refused(drop, make):
    """Where they are; the others are told when that rank ends. A rank's part may be left as is."""
    training = make()

    def steps(training):
        training.backward(0)
        if hvd.rank() == 0 or training.kfac:
            drop(training.model)
        training.step()

    if not _reduces(training) or _has_part(training):
        steps(training)
        return training
    if hvd.rank() == 0 or training.kfac:
        training.refused(steps, r"dropped between.*optimizer.synchronize\(\)")
    else:
        steps(training)
    return train(make(), [1])


def _a_step_of_gradients_that_are_not_reduced_is_refused(make):
    training = make()

    def closure():
        training.zero_grad()
        return training.backward(1)

    def steps(training, *arguments):
        if not arguments:
            training.backward(0)
        with training.optimizer.skip_synchronize():
            training.optimizer.step(*arguments)

    for action in (steps, lambda training: steps(training, closure)):
        training.refused(action, r"skip_synchronize\(\)")
        training.optimizer.synchronize()
    return training


def _late_writes_are_refused(write, make):
    def writes(training):
        training.backward(0)
        for parameter in training.model.parameters():
            write(parameter.grad)
        training.step()

    training = make()
    if _reduces(training):
        training.refused(writes, "written to")
    else:
        writes(training)
    return training


def _clipping_by_param_groups_is_that_of_all_ranks_or_refused(make):
    """As Lightning and others clip."""
    training = make()
    groups = training.optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    clip = partial(nn.utils.clip_grad_norm_, parameters, 1e-3)

    def clips(training):
        training.backward(0)
        clip()
        training.step()

    if _reduces(training):
        training.refused(clips, "clip_grad_norm_")
    else:
        clips(training)
    if _has_part(training):
        training.optimizer.synchronize()
    training.zero_grad()
    training.backward(1)
    training.synchronize()
    if _has_part(training):
        first = parameters[0].grad
        for norm in (clip, lambda: first.data.norm(2), lambda: first.pow(2).sum(), first.abs().max):
            with pytest.raises(ValueError, match=r"a part of the model.*clip_grad_norm_, whose"):
                norm()
    elif _reduces(training):
        assert hvd.allgather(clip().reshape(1)).unique().numel() == 1
    training.step()
    return training


def _parameters_that_nobody_reduces_are_refused(in_a_group, make):
    training = train(make(), [0])
    groups, new = training.optimizer.param_groups, nn.Parameter(torch.ones(2))
    before = list(groups), list(groups[-1]["params"])
    if in_a_group:
        groups[-1]["params"][-1] = new
    else:
        groups.append({**groups[0], "params": [new]})
    training.refused(lambda of: of.optimizer.step(), r"of shape \(2,\).*add_param_group")
    groups[:], groups[-1]["params"][:] = before
    return train(training, [1])


def _attributes_are_read_by_one_rank_alone(make):
    training = make()
    if hvd.rank() == 0:
        training.backward(0)
        assert dict(inspect.getmembers(training.optimizer))["op"] == training.optimizer.op
    hvd.barrier()
    if hvd.rank() > 0:
        training.backward(0)
    training.step()
    return training


def _passes_of_an_unfinished_window_are_forgotten(make):
    found = []
    for unfinished in (False, True):
        training = make()
        training.optimizer.set_backward_passes_per_step(2)
        if unfinished:
            training.backward(9)
            training.zero_grad()
        for batch in range(2):
            training.backward(batch)
        training.step()
        found.append(flat(training.model))
    if training.kfac is None:  # a factor has that pass
        torch.testing.assert_close(*found)
    return training


def _two_of_equal_names_learn_what_each_learns_alone(named, make):
    seeds = 1, 2
    pair = [make(named, seed) for seed in seeds]
    name = "0.weight" if named else "allreduce.noname.0.0"
    assert next(iter(pair[0].optimizer._parameter_names.values())) == name
    for batch in range(2):
        for training in pair:
            training.zero_grad()
        sum(_loss(training.model, hvd.rank(), batch) for training in pair).backward()
        handle = hvd.allreduce_async(torch.ones(1), op=hvd.Sum, name=name)
        for training in reversed(pair):
            training.step()
        assert hvd.synchronize(handle) == hvd.size()
    for seed, training in zip(seeds, pair, strict=True):
        alone = train(make(named, seed), range(2))
        torch.testing.assert_close(flat(training.model), flat(alone.model))
    return pair[0]


def _two_in_another_order_are_refused(jointly, make):
    pair = [make(True, seed) for seed in (1, 2)]
    first = pair[0 if hvd.rank() == 0 else 1]

    def steps(training):
        total = [_loss(one.model, hvd.rank(), 0) for one in (pair if jointly else [first])]
        sum(total).backward()
        training.step()

    first.refused(steps, "of another one on another rank")
    return pair[0]


GUARANTEES = [
    *(
        partial(_an_overflow_is_skipped_by_all, unscales, lacking)
        for unscales in (False, True)
        for lacking in [(), (1, 2)]
    ),
    _gradients_that_no_rank_has_are_those_of_a_step_without_scaler,
    *(partial(_a_step_may_be_left_out_by_all, scaled) for scaled in (False, True)),
    _unscaling_too_early_is_refused,
    partial(_gradients_dropped_once_they_have_left_are_refused, nn.Module.zero_grad),
    partial(_gradients_dropped_once_they_have_left_are_refused, _drop_one),
    _a_step_of_gradients_that_are_not_reduced_is_refused,
    partial(_late_writes_are_refused, lambda g: g.data.clamp_(-1e-3, 1e-3)),
    partial(_late_writes_are_refused, lambda g: g.is_contiguous() and hvd.allreduce_(g)),
    _clipping_by_param_groups_is_that_of_all_ranks_or_refused,
    *(partial(_parameters_that_nobody_reduces_are_refused, where) for where in (False, True)),
    _attributes_are_read_by_one_rank_alone,
    _passes_of_an_unfinished_window_are_forgotten,
    *(partial(_two_of_equal_names_learn_what_each_learns_alone, one) for one in (True, False)),
    *(partial(_two_in_another_order_are_refused, jointly) for jointly in (False, True)),
]


@on_ranks_over_tcp(2, each={"wrapper": WRAPPERS, "guarantee": GUARANTEES})
def test_every_guarantee_with_every_wrapper(wrapper, guarantee):
    check_same_everywhere(guarantee(partial(_Wrapped, WRAPPERS[wrapper])).model)
