"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from aiacc import arguments, basics
from aiacc.collectives.reduce_ops import Sum
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.torch.mpi_ops import allgather, allreduce_
from aiacc.torch.reducer.consensus import Numbers

_numbers = Numbers("sync_batch_norm.number")


class Statistics(NamedTuple):
    """Mean and biased variance per channel, and of how many ``values``; all in float64."""

    mean: torch.Tensor
    var: torch.Tensor
    values: torch.Tensor


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation with the statistics of all ranks while training.

    For inputs of shape (N, C, ...), of any N on each rank, 0 among them. Output and gradients are
    those of one process that has the batches of all ranks. Gradients of weight and bias are those
    of this rank's outputs, as `DistributedOptimizer` expects them.

    In evaluation mode, or in a job of one rank, it is `torch.nn.BatchNorm1d` and its like.

    Collective: every rank of ``process_set``, in forward and in backward while training, with its
    layers in the same order.
    Blocks: until the statistics of all ranks are there.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """See `torch.nn.BatchNorm1d`; ``process_set``: ranks that take part.

        Raises:
            TypeError: An argument of a wrong type.
            ValueError: Another wrong argument.
        """
        arguments.check(
            locals(),
            num_features=arguments.whole(0, most=arguments.LARGEST),
            momentum=arguments.or_none(arguments.FINITE),
            affine=arguments.FLAG,
            track_running_stats=arguments.FLAG,
        )
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"[torch] SyncBatchNorm: input of shape {tuple(input.shape)} (expected at least "
                "two dimensions, (N, C, ...)); use input.unsqueeze(0)"
            )
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"[torch] SyncBatchNorm: input of shape {tuple(input.shape)} has {input.shape[1]} "
                f"channels (expected num_features={self.num_features})"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise ``input``.

        Raises:
            ValueError: An input that does not fit, or all ranks together have a single value per
                channel.
            CollectiveError: The ranks could not exchange their statistics.
        """
        self._check_input_dim(input)
        if not self.training or basics.size() == 1 or not self.process_set.included():
            return super().forward(input)
        wire_name = f"sync_batch_norm.{_numbers.of(self, self.process_set)}"
        everyones = _gathered(local_statistics(input.detach()), wire_name, self.process_set)
        statistics = combined(everyones)
        # Two values here are enough, without asking a GPU how many there are.
        if input.numel() < 2 * input.shape[1] and float(statistics.values) <= 1:
            raise ValueError(
                f"[torch] SyncBatchNorm: input of shape {tuple(input.shape)} on this rank, and "
                f"{float(statistics.values):g} values per channel on all ranks together (expected "
                "at least 2 while training); use larger batches, or eval()"
            )
        self._track(statistics)
        output: torch.Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, statistics, self.eps, wire_name, self.process_set
        )
        return output

    def _track(self, statistics: Statistics) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            share = self.momentum
            if share is None:  # a cumulative average
                share = 1.0 / int(self.num_batches_tracked)
            unbiased = statistics.var * (statistics.values / (statistics.values - 1))
            self.running_mean.lerp_(statistics.mean.to(self.running_mean), share)
            self.running_var.lerp_(unbiased.to(self.running_var), share)


def local_statistics(batch: torch.Tensor) -> Statistics:
    """Statistics of the channels of ``batch`` on this rank; zeros of an empty one."""
    channels = batch.shape[1]
    count = batch.numel() // channels if channels else 0
    if count == 0:
        nothing = batch.new_zeros(channels, dtype=torch.float64)
        return Statistics(nothing, nothing, nothing.new_zeros(()))
    precise = batch if batch.dtype == torch.float64 else batch.float()
    var, mean = torch.var_mean(precise, _all_but_channels(batch), correction=0)
    values = mean.new_full((), count, dtype=torch.float64)
    return Statistics(mean.double(), var.double(), values)


def _gathered(own: Statistics, name: str, process_set: ProcessSet) -> list[Statistics]:
    channels = len(own.mean)
    row = torch.cat([own.mean, own.var, own.values.reshape(1)])
    rows = allgather(row.reshape(1, -1), name, process_set)
    return [Statistics(row[:channels], row[channels:-1], row[-1]) for row in rows]


def combined(parts: list[Statistics]) -> Statistics:
    """Statistics of the union of the ``parts``."""
    counts = torch.stack([part.values for part in parts]).reshape(-1, 1)
    count = counts.sum()
    divisor = count.clamp(min=1.0)  # of nothing: zeros
    means = torch.stack([part.mean for part in parts])
    mean = (counts * means).sum(0) / divisor
    var = (counts * (torch.stack([part.var for part in parts]) + (means - mean) ** 2)).sum(0)
    return Statistics(mean, var / divisor, count)


def _all_but_channels(batch: torch.Tensor) -> list[int]:
    return [0, *range(2, batch.dim())]


class _Normalize(torch.autograd.Function):
    """Normalises with given statistics, to which every rank's input has contributed."""

    @staticmethod
    def forward(
        ctx: Any,
        batch: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        statistics: Statistics,
        eps: float,
        wire_name: str,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        ctx.save_for_backward(batch, weight)
        ctx.others = statistics, eps, wire_name, process_set
        if batch.numel() == 0:
            return torch.empty_like(batch)
        precise = torch.float64 if batch.dtype == torch.float64 else torch.float32
        mean = statistics.mean.to(precise)
        var = statistics.var.to(precise)
        if weight is not None and bias is not None:  # all four have to be of one dtype
            weight, bias = weight.to(precise), bias.to(precise)
        return functional.batch_norm(batch, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        batch, weight = ctx.saved_tensors
        statistics, eps, wire_name, process_set = ctx.others
        gradient = grads[0]
        dims = _all_but_channels(batch)
        shape = [1, -1] + [1] * (batch.dim() - 2)
        precise = torch.float64 if batch.dtype == torch.float64 else torch.float32
        mean = statistics.mean.to(precise)
        scale = (statistics.var + eps).rsqrt().to(precise)  # 1 / deviation

        gradient = gradient.to(precise)
        normal = (batch.to(precise) - mean.reshape(shape)) * scale.reshape(shape)
        sum_of_gradient = gradient.sum(dims)
        sum_of_product = (gradient * normal).sum(dims)

        input_gradient = None
        if ctx.needs_input_grad[0]:
            sums = torch.cat([sum_of_gradient, sum_of_product]).double()
            allreduce_(sums, None, wire_name + ".backward", Sum, process_set=process_set)
            means = (sums / statistics.values).to(precise).reshape(2, -1)
            factor = scale if weight is None else scale * weight.to(precise)
            gradient = gradient - means[0].reshape(shape) - normal * means[1].reshape(shape)
            input_gradient = (gradient * factor.reshape(shape)).to(batch.dtype)
        weight_gradient = None if weight is None else sum_of_product.to(weight.dtype)
        bias_gradient = sum_of_gradient.to(weight.dtype) if ctx.needs_input_grad[2] else None
        return input_gradient, weight_gradient, bias_gradient, None, None, None, None
