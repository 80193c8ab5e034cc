"""What an optimizer can do in addition once its gradients are reduced over all ranks."""

from __future__ import annotations

import contextlib
import copy
import operator
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import torch
from torch.amp.grad_scaler import OptState

from aiacc import _core, arguments
from aiacc.autotune.profile import Profile
from aiacc.collectives.reduce_ops import Average, Sum
from aiacc.compression.codecs import Codec
from aiacc.planning.plan import Plan
from aiacc.torch.auto_compression import AutoCompression
from aiacc.torch.auto_plan import AutoPlan
from aiacc.torch.mpi_ops import allreduce_
from aiacc.torch.recorder import profile_of
from aiacc.torch.reducer.feedback import Feedback
from aiacc.torch.reducer.options import ReductionOptions
from aiacc.torch.reducer.plan import planned, singly
from aiacc.torch.reducer.reducer import GradientReducer
from aiacc.torch.wrapped_optimizer import (
    ReducingOptimizer,
    instance_of,
    kept_shared,
    offered,
    setting,
    take_over,
    wrapped_class,
)


class DistributedOptimizerMixin(ReducingOptimizer):
    """Put before the class of the wrapped optimizer by `distribute`."""

    _aiacc_feedback: Feedback | None = None
    _aiacc_reducer: GradientReducer
    _aiacc_profile: Profile | None
    _aiacc_plan: AutoPlan | AutoCompression | None
    #: What that is to find: a plan, by name, or which of these codecs to use.
    _aiacc_wanted: str | tuple[Codec, ...] | None
    #: Whether `_aiacc_settle` was called since the last step.
    _aiacc_settled: bool = False

    @property
    def _aiacc_options(self) -> ReductionOptions:
        return self._aiacc_reducer.options

    def synchronize(self) -> None:
        """Wait until the gradients are reduced, for example to clip them before `step`.

        Call `step` inside `skip_synchronize` afterwards.

        Collective: every rank.
        Blocks: until every gradient is reduced.

        Raises:
            CollectiveError: A gradient could not be reduced.
        """
        self._aiacc_reduce()
        self._aiacc_synchronized = True
        self._aiacc_settled = False

    def _aiacc_settle(self) -> None:
        """`synchronize`, unless that was done; the next `step` takes gradients as they are then.

        What changes gradients between the two calls this. If a backward pass comes before the step,
        that reduces them as always.

        Collective: every rank.
        Blocks: until every gradient is reduced.

        Raises:
            CollectiveError: A gradient could not be reduced.
        """
        if not self._aiacc_synchronized or self._aiacc_reducer.under_way:
            self.synchronize()
        self._aiacc_synchronized, self._aiacc_settled, self._aiacc_account = False, True, {}

    @property
    def _aiacc_is_settled(self) -> bool:
        return self._aiacc_settled and not self._aiacc_is_over and not self._aiacc_reducer.under_way

    @offered
    def buckets(self) -> list[list[str]]:
        """Names of the gradients that are reduced as one operation each, in this step."""
        names = [name for name, _ in self._aiacc_reducer.named]
        return [
            [names[index] for index in bucket.members] for bucket in self._aiacc_reducer.buckets
        ]

    @offered
    def feedback(self) -> Feedback | None:
        """What codecs have lost of gradients; None: nothing is coded."""
        return self._aiacc_feedback

    @offered
    def plan_phase(self) -> str:
        """What ``plan="auto"`` does with steps now: "record", "visit", "watch" or "nothing"."""
        return self._aiacc_plan.phase if isinstance(self._aiacc_plan, AutoPlan) else "nothing"

    @property
    def _aiacc_unplanned(self) -> list[tuple[str, torch.Tensor]]:
        """Names and parameters, if each gradient is reduced by itself and nobody is to plan."""
        free = (
            self._aiacc_plan is None and self._aiacc_feedback is None and self._aiacc_reducer.single
        )
        return self._aiacc_reducer.named if free else []

    def _aiacc_follow(self, buckets: Sequence[Sequence[str]]) -> None:
        """Reduce gradients in these buckets, by name, from the next step on.

        Collective: every rank, between the same two steps. Blocks.
        """
        self._aiacc_reducer.follow(planned(Plan("given", tuple(map(tuple, buckets)))))

    def _aiacc_prepare_for(self, scaler: torch.amp.GradScaler, account: dict[str, Any]) -> None:
        if not self._aiacc_should_synchronize:
            self._aiacc_check_reduced(not self._aiacc_reducer.under_way)
        elif not self._aiacc_is_settled:
            # Also if no backward pass has run here: one has on another rank, perhaps.
            early = not self._aiacc_synchronized and account["stage"] is OptState.UNSCALED
            self._aiacc_settle()
            if early and self._aiacc_reducer.attached:
                self._aiacc_settled = False
                raise ValueError(
                    "scaler.unscale_(optimizer) was called before the gradients were reduced "
                    "(expected after it); call optimizer.synchronize() before, and scaler.step() "
                    "inside 'with optimizer.skip_synchronize():'"
                )
        self._aiacc_synchronized = False
        if self._aiacc_feedback is not None:
            self._aiacc_feedback.notice(scaler)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronise, then update the parameters.

        Collective: every rank, unless inside `skip_synchronize`.
        Blocks: until every gradient is reduced.

        Args:
            closure: Computes the loss and its gradients anew; they are reduced each time.

        Raises:
            CollectiveError: A gradient could not be reduced; no parameter was changed.
            ValueError: Inside `skip_synchronize`, and gradients of a backward pass are not reduced;
                or they were written to or dropped after ``backward()``; or a parameter was put into
                ``param_groups``.
        """
        if self._aiacc_reducer.attached:
            self._aiacc_check_groups()
        settled = closure is None and self._aiacc_is_settled
        self._aiacc_settled = False
        result = self._aiacc_reduce_and_step(closure, settled)
        _core.mark_step()
        return result

    # Pre- and post-hooks run in the step of the wrapped class; do not let torch add them here too.
    step.hooked = True  # type: ignore[attr-defined]

    def _aiacc_reduce_and_step(self, closure: Callable[[], Any] | None, settled: bool) -> Any:
        if not self._aiacc_should_synchronize:
            if closure is None:
                self._aiacc_check_reduced(not self._aiacc_reducer.under_way)
            else:
                closure = self._aiacc_checked(closure)
        elif not settled:
            if self._aiacc_synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): the gradients are reduced again; call it inside "
                    "'with optimizer.skip_synchronize():'",
                    stacklevel=2,
                )
            if closure is not None:
                closure = self._aiacc_reduced(closure)
            if closure is None or self._aiacc_reducer.under_way:
                self.synchronize()
        self._aiacc_synchronized = False
        return super().step(closure)

    def _aiacc_reduce(self) -> None:
        """Wait until gradients are reduced, and tell those who count that together with all ranks.

        They may call `step` more often or less, after an error of their own, but none ends a
        reduction without this one, whatever is raised after it here.
        """
        before = self._aiacc_reducer.reductions
        try:
            self._aiacc_reducer.finish()
        except Exception:
            if self._aiacc_reducer.reductions != before:
                with contextlib.suppress(Exception):  # the first error says more
                    self._aiacc_count_reduction()
            raise
        if self._aiacc_reducer.reductions != before:
            self._aiacc_count_reduction()

    def _aiacc_count_reduction(self) -> None:
        if self._aiacc_profile is not None:
            self._aiacc_profile.step_done()
        if self._aiacc_plan is not None:
            self._aiacc_plan.step_done()

    def _aiacc_checked(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def compute() -> Any:
            loss = closure()
            self._aiacc_check_reduced(not self._aiacc_reducer.under_way)
            return loss

        return compute

    def _aiacc_reduced(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def compute() -> Any:
            loss = closure()
            self._aiacc_reduce()
            return self._aiacc_reduced_loss(loss) if isinstance(self, torch.optim.LBFGS) else loss

        return compute

    def _aiacc_reduced_loss(self, loss: Any) -> Any:
        """The loss of all ranks: LBFGS decides by it how often to call the closure."""
        if not self._aiacc_reducer.attached:
            return loss
        device = loss.device if isinstance(loss, torch.Tensor) else "cpu"
        total = torch.as_tensor(loss, device=device).detach().clone()
        return allreduce_(
            total,
            name="loss_of_lbfgs",
            op=Sum if self._aiacc_reducer.options.op == Sum else Average,
            process_set=self._aiacc_reducer.options.process_set,
        )

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients; arguments as of the wrapped optimizer.

        Backward passes that were to be accumulated with others are forgotten.

        Raises:
            AssertionError: Gradients are being reduced: call it after `step` or `synchronize`.
        """
        if self._aiacc_reducer.under_way:
            self._aiacc_reducer.begin_anew()
            self._aiacc_check_clearable(self._aiacc_reducer.under_way)
        self._aiacc_synchronized = self._aiacc_settled = False
        super().zero_grad(*args, **kwargs)

    @setting
    def backward_passes_per_step(self) -> int:
        """Backward passes that are accumulated before each reduction."""
        return self._aiacc_reducer.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate ``passes`` backward passes locally before each reduction.

        Raises:
            TypeError: ``passes`` is no whole number.
            ValueError: It is not positive.
        """
        self._aiacc_reducer.set_passes(check_passes(passes))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over ``state_dict``; gradients that were under way are waited for and dropped."""
        if self._aiacc_reducer.under_way:
            self._aiacc_reducer.drop()
        self._aiacc_synchronized = False
        self._aiacc_should_synchronize = True
        with kept_shared(self):
            super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Optimize these parameters too; their gradients are reduced under default names."""
        before = len(self.param_groups)
        super().add_param_group(param_group)
        named = default_names(self.param_groups, before)
        self._aiacc_names.update((parameter, name) for name, parameter in named)
        self._aiacc_reducer.add(named)
        self._aiacc_expect_forms()

    def _aiacc_expect_forms(self) -> None:
        if isinstance(self, torch.optim.SparseAdam):
            self._aiacc_reducer.expect_sparse()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copies and pickles become distributed optimizers of the copied parameters.

        What searches for a plan or codecs begins anew in them.
        """
        del protocol
        reducer = self._aiacc_reducer
        options = reducer.options._replace(identity=copy.copy(reducer.options.identity))
        if self._aiacc_wanted is not None:
            options = options._replace(planner=singly())
        arguments = self._aiacc_feedback, self._aiacc_wanted, reducer.named, options, reducer.passes
        return _rebuild, (wrapped_class(self), *arguments), self.__getstate__()


def distribute(
    optimizer: torch.optim.Optimizer,
    reducer: GradientReducer,
    plan: str | None = None,
    feedback: Feedback | None = None,
    allowed: tuple[Codec, ...] | None = None,
) -> DistributedOptimizerMixin:
    """Make one that shares the state of ``optimizer`` and steps with reduced gradients.

    Args:
        optimizer: Whose state it shares.
        reducer: Of its gradients.
        plan: What `AutoPlan` is to find, if anything.
        feedback: What codes its gradients, if anything.
        allowed: What `AutoCompression` is to choose from, if it is to find out how.
    """
    distributed = _new(type(optimizer), reducer)
    take_over(distributed, optimizer)
    distributed._aiacc_profile = profile_of(reducer)
    if distributed._aiacc_profile is not None:
        weakref.finalize(distributed, distributed._aiacc_profile.end)
    distributed._aiacc_feedback = feedback
    _search(distributed, plan if allowed is None else allowed)
    return distributed


def _search(
    distributed: DistributedOptimizerMixin,
    wanted: str | tuple[Codec, ...] | None,
    at_once: bool = True,
) -> None:
    distributed._aiacc_wanted = wanted
    reducer, feedback = distributed._aiacc_reducer, distributed._aiacc_feedback
    if isinstance(wanted, str):
        distributed._aiacc_plan = AutoPlan(reducer, wanted, at_once)
        weakref.finalize(distributed, distributed._aiacc_plan.end)
    elif wanted is not None and feedback is not None:
        distributed._aiacc_plan = AutoCompression(reducer, feedback, wanted)


def check_passes(passes: SupportsIndex) -> int:
    """``passes`` as an int; TypeError and ValueError unless it is a whole number and positive."""
    arguments.check({"backward_passes_per_step": passes})
    return operator.index(passes)


def default_names(
    groups: Sequence[dict[str, Any]], begin: int = 0
) -> list[tuple[str, torch.Tensor]]:
    """Names by position of the parameters of ``groups[begin:]``, as Horovod makes them.

    An optimizer may make several groups of one that is added to it.
    """
    return [
        (f"allreduce.noname.{number}.{index}", parameter)
        for number, group in enumerate(groups[begin:], begin)
        for index, parameter in enumerate(group["params"])
    ]


def _rebuild(
    wrapped: type,
    feedback: Feedback | None,
    wanted: str | tuple[Codec, ...] | None,
    *arguments: Any,
) -> DistributedOptimizerMixin:
    distributed = _new(wrapped, GradientReducer(*arguments))
    distributed._aiacc_feedback = feedback  # that of the codec in the options
    if feedback is not None and wanted is not None:
        feedback.flush()  # the search begins with gradients as they are
    _search(distributed, wanted, at_once=False)
    return distributed


def _new(wrapped: Any, reducer: GradientReducer) -> DistributedOptimizerMixin:
    distributed = instance_of(DistributedOptimizerMixin, wrapped)
    distributed._aiacc_names = {parameter: name for name, parameter in reducer.named}
    distributed._aiacc_synchronized = False
    distributed._aiacc_should_synchronize = True
    distributed._aiacc_profile = None
    distributed._aiacc_plan, distributed._aiacc_wanted = None, None
    distributed._aiacc_reducer = reducer
    distributed._aiacc_expect_forms()
    weakref.finalize(distributed, reducer.detach)
    return distributed
