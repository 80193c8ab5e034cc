"""Adasum: what is combined are the changes that the ranks would make to the parameters."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from aiacc import _core, basics
from aiacc.collectives.objects import sums
from aiacc.collectives.reduce_ops import Adasum
from aiacc.exceptions import CollectiveError
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.torch.compression.compressors import Compressor
from aiacc.torch.decoupled.norms import are_finite
from aiacc.torch.mpi_ops import allreduce_async_, synchronize
from aiacc.torch.optimizer_mixin import check_passes, default_names
from aiacc.torch.recorder import tell_of_no_profile
from aiacc.torch.reducer.consensus import check_optimizers
from aiacc.torch.reducer.identity import Identity
from aiacc.torch.wrapped_optimizer import (
    ScaledOptimizer,
    instance_of,
    kept_shared,
    setting,
    take_over,
    wrapped_class,
)


class AdasumDistributed(ScaledOptimizer):
    """Put before the class of the wrapped optimizer by `distribute_adasum`.

    `step` lets the wrapped optimizer step with this rank's gradients, and replaces the change of
    each parameter by the combination of all ranks' changes.
    """

    _aiacc_compression: type[Compressor]
    _aiacc_identity: Identity

    _aiacc_passes: int = 1

    @setting
    def op(self) -> int:
        """Combination of the changes."""
        return Adasum

    @setting
    def process_set(self) -> ProcessSet:
        """Ranks that take part."""
        return global_process_set

    @setting
    def backward_passes_per_step(self) -> int:
        """As given; gradients accumulate until `step` anyway."""
        return self._aiacc_passes

    def synchronize(self) -> None:
        """Do nothing: gradients are not reduced."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Not available.

        Raises:
            AssertionError: Always, as in Horovod.
        """
        raise AssertionError(
            "skip_synchronize() with op=Adasum (expected op=Average): step() is what reduces; "
            "call step() alone"
        )

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set `backward_passes_per_step`.

        Raises:
            ValueError: ``passes`` is not positive.
        """
        self._aiacc_passes = check_passes(passes)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step with this rank's gradients, then combine the changes of all ranks.

        Collective: every rank.
        Blocks: until the changes of all ranks are combined.

        Args:
            closure: Computes this rank's loss and gradients anew.

        Raises:
            CollectiveError: Changes could not be combined; those parameters are as before.
            ValueError: In the first step, which is one of another optimizer on another rank; or a
                parameter was put into ``param_groups``.
        """
        if not basics.is_initialized() or basics.size() == 1:
            loss = super().step(closure)
            _core.mark_step()
            return loss
        self._aiacc_check_groups()
        self._aiacc_agree()
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        starts = [parameter.detach().clone() for parameter in parameters]
        loss = super().step(closure)
        with torch.no_grad():
            self._aiacc_combine(parameters, starts)
        _core.mark_step()
        return loss

    # Pre- and post-hooks run in the step of the wrapped class; do not let torch add them here too.
    step.hooked = True  # type: ignore[attr-defined]

    def _aiacc_agree(self) -> None:
        """That this is a step of the same optimizer on all ranks. Collective, blocks, once."""
        self._aiacc_identity.number(global_process_set)  # of this job
        if not self._aiacc_identity.agreed:
            check_optimizers("op=Adasum", self._aiacc_identity, global_process_set)
            self._aiacc_identity.agreed = True

    def _aiacc_prepare_for(self, scaler: torch.amp.GradScaler, account: dict[str, Any]) -> None:
        del scaler
        if not basics.is_initialized() or basics.size() == 1:
            return
        self._aiacc_agree()
        given = [p.grad for group in self.param_groups for p in group["params"]]
        gradients = [
            gradient if gradient.layout is torch.strided else gradient._values()
            for gradient in given
            if gradient is not None
        ]
        # What the scaler has found, if `unscale_` was called, counts in the place of gradients.
        found = list(account["found_inf_per_device"].values())
        here = any(map(bool, found)) or not are_finite(gradients)
        infinite, given = sums([int(here), int(bool(gradients))], "finite_gradients")
        if given and not gradients:
            # Nothing is to be unscaled here; but this rank skips the steps that others skip.
            device = self.param_groups[0]["params"][0].device
            record = torch.tensor(float(infinite > 0), dtype=torch.float32, device=device)
            account.update(stage=OptState.UNSCALED, found_inf_per_device={device: record})
        elif infinite:
            for gradient in gradients[:1]:
                gradient.fill_(math.inf)  # whatever its strides
            for one in found:
                one.fill_(1.0)

    def _aiacc_combine(self, parameters: list[torch.Tensor], starts: list[torch.Tensor]) -> None:
        under_way = []
        prefix = f"optimizer.{self._aiacc_identity.number(global_process_set)}.adasum."
        for parameter, start in zip(parameters, starts, strict=True):
            change, ctx = self._aiacc_compression.compress((parameter - start).contiguous())
            name = prefix + self._aiacc_names[parameter]
            under_way.append((allreduce_async_(change, name=name, op=Adasum), change, ctx))
        _core.flush()
        failure: CollectiveError | None = None
        for parameter, start, (handle, change, ctx) in zip(
            parameters, starts, under_way, strict=True
        ):
            try:
                synchronize(handle)
            except CollectiveError as error:  # raised below, after the others are done
                failure = failure or error
                parameter.copy_(start)
            else:
                parameter.copy_(start + self._aiacc_compression.decompress(change, ctx))
        if failure is not None:
            raise failure

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over ``state_dict``."""
        with kept_shared(self):
            super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Optimize these parameters too; their changes are combined under default names."""
        before = len(self.param_groups)
        super().add_param_group(param_group)
        named = default_names(self.param_groups, before)
        self._aiacc_names.update((parameter, name) for name, parameter in named)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copies and pickles become distributed optimizers of the copied parameters."""
        del protocol
        names = list(self._aiacc_names.items())
        arguments = (
            wrapped_class(self),
            names,
            self._aiacc_compression,
            copy.copy(self._aiacc_identity),
        )
        return _new, arguments, self.__getstate__()


def distribute_adasum(
    optimizer: torch.optim.Optimizer,
    named_parameters: list[tuple[str, torch.Tensor]],
    compression: type[Compressor],
    identity: Identity,
) -> AdasumDistributed:
    """Make one that shares the state of ``optimizer``."""
    tell_of_no_profile("op=Adasum", global_process_set)
    names = [(parameter, name) for name, parameter in named_parameters]
    distributed = _new(type(optimizer), names, compression, identity)
    take_over(distributed, optimizer)
    return distributed


def _new(
    wrapped: Any,
    names: list[tuple[torch.Tensor, str]],
    compression: type[Compressor],
    identity: Identity,
) -> AdasumDistributed:
    distributed = instance_of(AdasumDistributed, wrapped)
    distributed._aiacc_names = dict(names)
    distributed._aiacc_compression, distributed._aiacc_identity = compression, identity
    return distributed
