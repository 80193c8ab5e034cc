"""The optimizer of the decoupled schedule: each rank updates 1/N of the parameters."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from aiacc import _core, arguments, basics
from aiacc.autotune.tuner import step_done
from aiacc.exceptions import CollectiveError
from aiacc.process_sets import has_company
from aiacc.torch.decoupled import division, norms
from aiacc.torch.decoupled.checks import check_any
from aiacc.torch.decoupled.exchange import Exchange
from aiacc.torch.decoupled.guards import in_order_of
from aiacc.torch.decoupled.setup import Setup
from aiacc.torch.decoupled.shards import Shards
from aiacc.torch.optimizer_mixin import check_passes
from aiacc.torch.reducer.consensus import describe
from aiacc.torch.reducer.options import ReductionOptions
from aiacc.torch.wrapped_optimizer import ReducingOptimizer, kept_shared, offered, setting

#: What reduces gradients before a step that does not.
_CALLS = "synchronize() or clip_grad_norm_()"


class DecoupledDistributed(ReducingOptimizer):
    """Put before the class of the wrapped optimizer by `distribute_decoupled`.

    ``param_groups`` have this rank's segments of the parameters, which the wrapped class updates
    and has the state of. Where there is no other rank they have the parameters themselves.
    """

    _aiacc_setup: Setup
    _aiacc_passes: int
    _aiacc_exchange: Exchange | None
    _aiacc_shards: Shards
    #: Whether the ranks have told each other of infinity in what was reduced last.
    _aiacc_spread: bool
    _aiacc_finalizer: weakref.finalize[Any, Any]

    @property
    def _aiacc_options(self) -> ReductionOptions:
        return self._aiacc_setup.options

    @offered
    def buckets(self) -> list[list[str]]:
        """Names of the parameters that travel together, in the order of the forward pass."""
        if self._aiacc_exchange is None:
            return []
        return [self._aiacc_exchange.names_of(bucket) for bucket in self._aiacc_exchange.buckets]

    @offered
    def awaited(self) -> list[str]:
        """Names of the parameters that are under way: whoever uses one waits for its bucket."""
        exchange = self._aiacc_exchange
        if exchange is None:
            return []
        under_way = [bucket for bucket in exchange.buckets if bucket.gathering]
        return [name for bucket in under_way for name in exchange.names_of(bucket)]

    def synchronize(self) -> None:
        """Wait until this rank's part of the gradients is reduced, for example to unscale them.

        `step` does not wait again. If a rank's part has NaN or infinity, every rank's has infinity
        afterwards: a GradScaler of each comes to the same decision.

        Collective: every rank.
        Blocks: until every gradient is reduced.

        Raises:
            CollectiveError: A gradient could not be reduced.
            ValueError: As `step` does.
        """
        exchange = self._aiacc_exchange
        if exchange is None:
            return
        if not self._aiacc_has_reduced(exchange):
            self._aiacc_reduce(exchange)
        self._aiacc_spread_infinity()

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Scale the gradients of all parameters so that their norm is at most ``max_norm``.

        Call it between ``backward()`` and `step`, in the place of
        ``torch.nn.utils.clip_grad_norm_``, which sees a rank's own gradients only.

        Collective: every rank.
        Blocks: until every gradient is reduced, and for an all-reduce of one number.

        Args:
            max_norm: Largest norm of all gradients together.
            norm_type: Of the norm; ``inf`` for the largest element.
            error_if_nonfinite: Raise if the norm is NaN or infinite.

        Returns:
            The norm before, in host memory. Where gradients were not all finite, a GradScaler of
            every rank sees it.

        Raises:
            CollectiveError: A gradient could not be reduced.
            RuntimeError: The norm is not finite.
            TypeError: ``max_norm`` or ``norm_type`` is no number.
            ValueError: ``norm_type`` is 0, -inf or NaN.
        """
        arguments.check(locals())
        exchange = self._aiacc_exchange
        if exchange is None:
            parameters = [p for group in self.param_groups for p in group["params"]]
            norm = torch.nn.utils.clip_grad_norm_(
                parameters, max_norm, norm_type, error_if_nonfinite
            )
            return norm.cpu()
        if not self._aiacc_has_reduced(exchange):
            self._aiacc_reduce(exchange)
        gradients = self._aiacc_shards.gradients()
        total = norms.total_norm(gradients, norm_type, self._aiacc_options.process_set)
        if not total.isfinite():
            # A factor of 0 leaves NaN to this rank or to another one: a GradScaler of each is to
            # see it. All ranks have the same total and get here together.
            self._aiacc_spread_infinity()
        if error_if_nonfinite and not total.isfinite():
            raise RuntimeError(
                f"the norm of order {norm_type} of the gradients is {total.item()} (expected a "
                "finite number); pass error_if_nonfinite=False to go on"
            )
        norms.scale(gradients, max_norm, total)
        return total

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update this rank's part of the parameters, and start gathering those of all ranks.

        Whatever uses a parameter next waits for it.

        Collective: every rank.
        Blocks: until every gradient is reduced; in the first step until parameters are current.

        Args:
            closure: Computes the loss and its gradients anew; it is called once.

        Raises:
            CollectiveError: A gradient could not be reduced, and no parameter was changed; or
                parameters could not be gathered, which a later call, forward pass or `flush` may
                raise too.
            ValueError: Parameters that the ranks do not share or that were moved, gradients that
                were written to after ``backward()``, or replaced; or one that was put into
                ``param_groups``.
        """
        exchange = self._aiacc_exchange
        if exchange is None:
            loss = super().step(closure)
            _core.mark_step()
            return loss
        self._aiacc_check_groups()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        reduced_before = self._aiacc_has_reduced(exchange)
        if not reduced_before:
            self._aiacc_check_reduced(self._aiacc_should_synchronize, _CALLS)
            self._aiacc_reduce(exchange)
        self._aiacc_synchronized = False
        if reduced_before:
            self._aiacc_look_again(exchange)
        self._aiacc_shards.changed()
        with exchange.updating(), self._aiacc_hooks_apart(exchange):
            super().step()
            self._aiacc_shards.bring_back()
        for hook in list(self._optimizer_step_post_hooks.values()):
            hook(self, (self,), {})
        self._aiacc_shards.drop_gradients()
        step_done()
        _core.mark_step()
        return loss

    @contextlib.contextmanager
    def _aiacc_hooks_apart(self, exchange: Exchange) -> Iterator[None]:
        """Let the wrapped class call no post-hooks, and look at what its pre-hooks have done.

        Post-hooks would find parameters of which other ranks' parts are those of before; pre-hooks
        may write to gradients of the model, which the step does not take.
        """
        post_hooks = self._optimizer_step_post_hooks
        self._optimizer_step_post_hooks = OrderedDict()
        had_hooks = bool(self._optimizer_step_pre_hooks)

        def after_the_others(*_: Any) -> None:
            if had_hooks:
                self._aiacc_look_again(exchange)
            self._aiacc_shards.show_gradients()

        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_optimizer_step_post_hooks", post_hooks)
            stack.callback(self.register_step_pre_hook(after_the_others).remove)
            stack.callback(self._aiacc_shards.guard_gradients)
            yield

    def _aiacc_look_again(self, exchange: Exchange) -> None:
        """After something may have been done to gradients since they were reduced."""
        exchange.check_again()
        self._aiacc_shards.leave_out(exchange.dropped())

    def _aiacc_prepare_for(self, scaler: torch.amp.GradScaler, account: dict[str, Any]) -> None:
        del scaler, account
        if self._aiacc_should_synchronize:
            self.synchronize()
        elif self._aiacc_exchange is not None:
            self._aiacc_check_reduced(self._aiacc_has_reduced(self._aiacc_exchange), _CALLS)

    # Pre- and post-hooks run in the step of the wrapped class; do not let torch add them here too.
    step.hooked = True  # type: ignore[attr-defined]

    def _aiacc_reduced_parameters(self) -> Iterable[torch.Tensor]:
        return self._aiacc_shards.owned()

    def _aiacc_has_reduced(self, exchange: Exchange) -> bool:
        return self._aiacc_synchronized and not self._aiacc_is_over and not exchange.under_way

    def _aiacc_reduce(self, exchange: Exchange) -> None:
        exchange.reduce(self._aiacc_shards.fault())
        self._aiacc_shards.put_gradients(exchange.dropped())
        self._aiacc_synchronized, self._aiacc_account = True, {}
        self._aiacc_spread = False

    def _aiacc_spread_infinity(self) -> None:
        if not self._aiacc_spread:
            gradients = self._aiacc_shards.gradients()
            norms.spread_infinity(
                gradients, not norms.are_finite(gradients), self._aiacc_options.process_set
            )
            self._aiacc_spread = True

    def flush(self) -> None:
        """Wait until all parameters are current, before code uses them that torch does not see.

        ``model.state_dict()``, `broadcast_parameters`, forward passes in evaluation mode, forks,
        ``hvd.shutdown()`` and the end of the script do so by themselves.

        Collective: no; but every rank has to come to the end of the same step.
        Blocks: until they are current.

        Raises:
            CollectiveError: They could not be gathered.
        """
        if self._aiacc_exchange is not None:
            self._aiacc_exchange.flush()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the model's parameters.

        Backward passes that were to be accumulated with others are forgotten.

        Raises:
            AssertionError: Gradients are being reduced: call it after `step` or `synchronize`.
        """
        if self._aiacc_exchange is None:
            super().zero_grad(set_to_none)
            return
        if self._aiacc_exchange.under_way:
            self._aiacc_exchange.begin_anew()
            self._aiacc_check_clearable(self._aiacc_exchange.under_way)
        self._aiacc_synchronized = False
        self._aiacc_exchange.clear_gradients(set_to_none)

    # --- state

    def consolidate_state_dict(self, to: int | None = 0) -> None:
        """Collect the state of all ranks, for `state_dict`, in host memory.

        Collective: every rank, with the same ``to``.
        Blocks: until the state is there.

        Args:
            to: Index of the rank in the process set that gets it; None: every rank.

        Raises:
            ValueError: The ranks have done different numbers of steps, or have lost state.
            CollectiveError: The operation failed.
        """
        if self._aiacc_exchange is not None:
            self._aiacc_exchange.flush()
            self._aiacc_shards.consolidate(self._aiacc_own_state_dict(), to)

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks, as a plain optimizer of the same parameters has it.

        Collective: no. `consolidate_state_dict` is, and comes before, on every rank::

            optimizer.consolidate_state_dict()
            if hvd.rank() == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

        Raises:
            RuntimeError: The state was not collected on this rank since the last step.
        """
        if self._aiacc_exchange is None:
            return super().state_dict()
        self._aiacc_exchange.flush()
        return self._aiacc_shards.whole(self._aiacc_own_state_dict())

    def _aiacc_own_state_dict(self) -> dict[str, Any]:
        """That of this rank's segments."""
        state = self.state
        for key in [key for key, entries in state.items() if not entries]:
            del state[key]  # left by somebody who looked for the state of a whole parameter
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take this rank's part of what `state_dict` or a plain optimizer has given.

        Gradients that were under way are waited for and dropped. The number of ranks may be another
        than it was.

        Collective: no; but every rank loads the same.

        Raises:
            ValueError: It is of other parameters.
        """
        exchange = self._aiacc_exchange
        if exchange is None:
            with kept_shared(self):
                super().load_state_dict(state_dict)
            return
        if exchange.under_way:
            exchange.drop()
        self._aiacc_synchronized, self._aiacc_should_synchronize = False, True
        with kept_shared(self):
            super().load_state_dict(self._aiacc_shards.cut(state_dict))
        self._aiacc_shards.loaded(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not available.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"add_param_group of {len(list(param_group.get('params', ())))} parameters with "
            "schedule='decoupled' (expected all of them from the start); make another "
            "DistributedOptimizer, or use schedule='all_reduce'"
        )

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Not available: shards belong to a rank. Raises TypeError."""
        raise TypeError(
            "an optimizer of schedule='decoupled' cannot be copied or pickled (expected a wrapped "
            "one of the copied model); copy its state_dict()"
        )

    # --- as of the other schedule

    @setting
    def backward_passes_per_step(self) -> int:
        """Backward passes that are accumulated before each reduction."""
        return self._aiacc_passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate ``passes`` backward passes locally before each reduction.

        Raises:
            ValueError: ``passes`` is not positive.
        """
        self._aiacc_passes = check_passes(passes)
        if self._aiacc_exchange is not None:
            self._aiacc_exchange.set_passes(passes)

    # --- jobs

    def _aiacc_form(self, failure: CollectiveError | None = None) -> None:
        """Divide parameters and state among the ranks of the job, if there are several.

        After a ``failure`` these still have different parts of the parameters.
        """
        self._aiacc_synchronized, self._aiacc_should_synchronize = False, True
        setup = self._aiacc_setup
        if not has_company(setup.options.process_set):
            return
        trainable = [(name, p) for name, p in setup.named if p.requires_grad]
        check_any(trainable, len(setup.named))
        trainable = in_order_of(setup.model, trainable)
        planner = setup.options.planner
        # Several operations at a time share what is between hosts.
        planned = planner.argument == "plan" and basics.local_size() < basics.size()
        lanes = _core.lanes() if planned else 1
        plan = division.buckets(planner, describe(trainable))
        self._aiacc_exchange = Exchange(
            setup.model, trainable, plan, setup.options, self._aiacc_passes, lanes
        )
        self._aiacc_finalizer = finalizer = weakref.finalize(self, self._aiacc_exchange.detach)
        finalizer.atexit = False  # type: ignore[misc]  # a property
        self._aiacc_shards.attach(self.param_groups, self.state, self._aiacc_exchange)
        for bucket in self._aiacc_exchange.buckets:
            bucket.count()
        if failure is not None:
            self._aiacc_exchange.inherit(failure)

    def _aiacc_renew(self) -> None:
        """In a job that starts anew, with other ranks perhaps."""
        failure = None
        if self._aiacc_exchange is not None:
            failure = self._aiacc_exchange.forget()
            self._aiacc_shards.detach(self.param_groups, self.state)
            self._aiacc_exchange = None
            self._aiacc_finalizer()
        self._aiacc_form(failure)
