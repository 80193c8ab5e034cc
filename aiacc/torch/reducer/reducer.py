"""Reduces gradients while the backward pass still computes others."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils.hooks import RemovableHandle

from aiacc import _core, basics
from aiacc.autotune.tuner import step_done
from aiacc.collectives.objects import sums
from aiacc.exceptions import CollectiveError, MismatchError
from aiacc.planning.fit import Operation
from aiacc.process_sets import has_company
from aiacc.torch.adapter import wait
from aiacc.torch.ops.sparse import with_remedy
from aiacc.torch.reducer.bucket import Bucket, InFlight, form
from aiacc.torch.reducer.consensus import (
    agree,
    agree_on_views,
    any_failed,
    check_alike,
    check_optimizers,
    forms_of,
)
from aiacc.torch.reducer.gradients import (
    Form,
    Gradients,
    NamedParameters,
    too_many_passes,
)
from aiacc.torch.reducer.options import ReductionOptions
from aiacc.torch.reducer.places import may_move
from aiacc.torch.reducer.plan import Plan, Planner, singly
from aiacc.torch.reducer.storage import own_memory
from aiacc.torch.reducer.under_way import UnderWay, forget_what_is_done, leave

#: By name, buckets about which the ranks disagree, and in what.
Disputed: TypeAlias = dict[str, tuple[Bucket, MismatchError]]


class GradientReducer:
    """Submits each bucket as soon as autograd has its last gradient, and waits for all.

    Which gradients form a bucket is up to the planner of the options, where they are to their
    storage, and in which form they travel to the codec of each bucket. A gradient that the plan
    leaves out, or that has come since, is a bucket of its own, in memory of its own.

    Threads: hooks run in autograd's thread; the other methods must not run during a backward pass.
    Ranks: every rank has the same parameter names, in any order.

    Attributes:
        options: How gradients are reduced.
        passes: Backward passes that are accumulated before a gradient is submitted.
        buckets: What is reduced in a step.
        operations: Those of the step, in host memory, are added to it; None: nobody asks.
        reductions: How often `finish` has reduced gradients, though it may have raised then; other
            ranks have done so as often, unless one has joined.
    """

    def __init__(
        self,
        named_parameters: NamedParameters,
        options: ReductionOptions,
        backward_passes_per_step: int,
    ) -> None:
        """Attach to the parameters, if there is another rank to reduce with."""
        self.options = options
        self.passes = backward_passes_per_step
        self._gradients = Gradients(options.sparse_as_dense)
        #: Backward passes until the gradient is there. Hooks hold this very object and the next
        #: two, so all are only changed in place.
        self._left: list[int] = []
        self._bucket_of: dict[int, Bucket] = {}
        #: The gradients that have come in this step, in their order.
        self._arrivals: dict[int, None] = {}
        self.buckets: list[Bucket] = []
        self.operations: list[Operation] | None = None
        self.reductions = 0
        self._in_flight: deque[UnderWay] = deque()
        self._hooks: dict[int, RemovableHandle] = {}
        #: Whether the end of this step is to form buckets, and the order of those that there are.
        self._undecided = True
        self._order: list[int] = []
        #: Whether the end of this step is to show that views of flat buckets pay.
        self._on_trial = False
        self._told_of_missing = False
        #: Whether the ranks have found that they were asked for the same.
        self._alike = False
        #: Gradients that some rank has had, of which all ranks know the form that optimizers get.
        self._told: set[int] = set()
        self.add(named_parameters)
        self._decide_alone()
        basics.at_init(self.reset)

    @property
    def named(self) -> list[tuple[str, torch.Tensor]]:
        """Name and parameter of every gradient that is reduced."""
        return list(zip(self._gradients.names, self._gradients.parameters, strict=True))

    def sparse_names(self) -> set[str]:
        """Of gradients that are sparse, which no bucket can have; to be asked after a step."""
        names = {self._gradients.names[index] for index in self._gradients.sparse}
        if self.options.sparse_as_dense:
            return names
        gradients = [(name, p.grad) for name, p in self.named if p.grad is not None]
        return names | {name for name, g in gradients if g.layout is not torch.strided}

    @property
    def attached(self) -> bool:
        """Whether there is anything to reduce; never in a job of one rank."""
        return bool(self._hooks)

    @property
    def single(self) -> bool:
        """Whether each gradient is reduced by itself, where autograd puts it."""
        return self.options.planner == singly() and self.options.storage is own_memory

    @property
    def under_way(self) -> bool:
        """Whether a backward pass has run since the last `finish`."""
        return bool(self._in_flight) or self._left.count(self.passes) != len(self._left)

    def add(self, named_parameters: NamedParameters) -> None:
        """Reduce the gradients of these parameters too."""
        for name, parameter in named_parameters:
            self._gradients.names.append(name)
            self._gradients.parameters.append(parameter)
            self._left.append(self.passes)
        self._attach()

    def expect_sparse(self) -> None:
        """Let gradients that no rank has had yet be sparse: the optimizer takes no others."""
        self._gradients.expect_sparse()

    def begin_anew(self) -> None:
        """Forget backward passes that are to be accumulated, if no gradient has had its last one.

        None of them has left this rank then.
        """
        if not self._in_flight and 0 not in self._left:
            self._start_step()

    def set_passes(self, backward_passes_per_step: int) -> None:
        """Accumulate this many backward passes before a gradient is submitted."""
        self.passes = backward_passes_per_step
        self._start_step()

    def follow(self, planner: Planner) -> None:
        """Form other buckets at once, by a planner that needs no order of arrival.

        Collective: every rank, between the same steps. Blocks.

        Raises:
            ValueError: The ranks have different planners or gradients; there are no buckets then.
        """
        self.options = self.options._replace(planner=planner)
        if self._hooks:
            self._decide()

    def reset(self) -> None:
        """Forget what was under way, without waiting. Call it when the core has let go of it."""
        self._in_flight.clear()
        self.detach()  # operations know the number of a process set that may have another now
        self._form(())  # ranks that come anew have no buckets either
        self._on_trial = False
        self._alike = False
        self._told.clear()
        self._attach()
        self._undecided = True
        self._decide_alone()

    def drop(self) -> None:
        """Wait for what is under way, whatever comes of it, and start the step anew.

        Collective: every rank that has begun the step. Gradients that have not come here take part,
        for they may have left other ranks.
        """
        self._check_writes()
        self._submit_missing()
        _core.flush()
        self._wait()
        if self.options.drop is not None:
            self.options.drop()
        self._start_step()

    def detach(self) -> None:
        """Remove the hooks. What is under way keeps its memory until it is done."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        leave(self._in_flight)
        forget_what_is_done()

    def finish(self) -> None:
        """Submit gradients that no backward pass did, then wait for all in order of submission.

        A parameter without gradient takes part with zeros, for another rank may have one. May agree
        with the other ranks on buckets for later steps.

        Collective: every rank of the process set.
        Blocks: until every gradient is reduced or failed; of CUDA tensors until that is queued.

        Raises:
            CollectiveError: The first failure. The reducer is ready for the next step.
            ValueError: A gradient that cannot be reduced, or that somebody has written to or
                dropped since it left; parameters or a plan that the ranks do not share, or a plan
                that is none.
        """
        self._attach()  # parameters that were frozen until now, a process set that is new
        if not self._hooks:
            if not has_company(self.options.process_set):
                self.reductions += 1  # nobody else counts
            return
        if not self._alike:
            self._check_optimizers()
        failure = self._check_writes()
        failure = self._submit_missing() or failure
        _core.flush()
        disputed: Disputed = {}
        failure = self._wait(disputed) or failure
        if disputed:
            failure = self._reduce_anew(disputed) or failure
        self.reductions += 1
        forget_what_is_done()
        step_done()
        try:
            if self.options.settle is not None:
                others = [
                    self._gradients.parameters[index].grad for index in self._gradients.sparse
                ]
                self.options.settle(self.options.process_set, others)
            if not self._alike:
                self._alike = check_alike(self.options.asked, self.options.process_set)
            if self.options.sparse_as_dense:
                self._tell_forms()
            if self._undecided:  # whatever failed here need not have failed on the other ranks
                self._decide()
            elif self._on_trial:
                self._try_views()
        except (CollectiveError, ValueError) as error:
            failure = failure or error
        finally:
            self._gradients.end_step()
            self._start_step()
        if failure is not None:
            raise failure

    # --- hooks

    def _attach(self) -> None:
        """Put hooks on the parameters that need one and have none."""
        parameters = self._gradients.parameters
        if len(self._hooks) == len(parameters) or not has_company(self.options.process_set):
            return
        for index, parameter in enumerate(parameters):
            if parameter.requires_grad and index not in self._hooks:
                register: Any = parameter.register_post_accumulate_grad_hook  # untyped in torch
                self._hooks[index] = register(self._hook(index))
                self._put_alone(index)
                self._undecided = self._undecided or self.options.planner.order == "arrival"

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        """What autograd calls with the parameter, once per backward pass."""
        # Locals of a closure are the fastest names that Python has.
        left, arrivals, bucket_of = self._left, self._arrivals, self._bucket_of
        views, move, submit = self._gradients.views, self._gradients.move, self._submit

        def hook(parameter: torch.Tensor) -> None:
            passes = left[index] - 1
            if passes < 0:
                raise too_many_passes(self._gradients.names[index], self.passes)
            arrivals[index] = None
            if views and may_move(parameter.grad, passes):
                move(index)
            if passes == 0:
                bucket = bucket_of[index]
                if bucket.awaited == 1:
                    submit(bucket)
                bucket.awaited -= 1
            left[index] = passes  # last: what has failed may be tried again

        return hook

    # --- a step

    def _start_step(self) -> None:
        self._left[:] = [self.passes] * len(self._left)
        for bucket in self.buckets:
            bucket.awaited = len(bucket.members)
        self._arrivals.clear()
        self._gradients.copied = 0
        self._gradients.missing.clear()

    def _check_optimizers(self) -> None:
        """Raise before the step waits for ranks that reduce nothing by the names of gradients."""
        try:
            _core.flush()
            options = self.options
            check_optimizers("schedule='all_reduce'", options.identity, options.process_set)
        except (CollectiveError, ValueError):
            leave(self._in_flight)
            self._in_flight.clear()
            self._start_step()
            raise

    def _submit(self, bucket: Bucket) -> None:
        """Start reducing a bucket whose gradients are all there."""
        in_flight = self._in_flight
        in_flight.append((bucket.start_again() or bucket.start(), bucket.mark(), bucket))
        if len(in_flight) == len(self.buckets):
            _core.flush()

    def _check_writes(self) -> Exception | None:
        """The first gradient that somebody has changed or dropped while it was reduced."""
        failure: ValueError | None = None
        for bucket in self.buckets:
            what = bucket.written()
            if what is not None and failure is None:
                name = self._gradients.names[bucket.members[0]]
                failure = ValueError(
                    f"the gradient of {name!r}, or one of its bucket, was {what} between "
                    "backward() and step(), by torch.nn.utils.clip_grad_norm_, model.zero_grad(), "
                    "model.to() or another backward pass perhaps (expected nothing of the kind: "
                    "it had left for the other ranks); call optimizer.synchronize() before, and "
                    "step() inside 'with optimizer.skip_synchronize():'"
                )
        return failure

    def _submit_missing(self) -> Exception | None:
        """The first failure, or None. The others are submitted, for other ranks wait for them."""
        failure: Exception | None = None
        if len(self._in_flight) == len(self.buckets):
            return None
        for bucket in self.buckets:
            if bucket.awaited == 0:
                continue
            if not self._told_of_missing and len(bucket.members) > 1:
                self._tell_of_missing(bucket)
            try:
                for index in bucket.members:
                    self._gradients.complete(index)
                self._in_flight.append((bucket.start(), [], bucket))
            except (CollectiveError, ValueError) as error:
                failure = failure or error
            else:
                bucket.awaited = 0
        return failure

    def _tell_of_missing(self, bucket: Bucket) -> None:
        """Say once that a bucket of a plan leaves late, if some of its gradients have come."""
        missing = [index for index in bucket.members if self._left[index] > 0]
        if self.options.planner.argument != "plan" or len(missing) == len(bucket.members):
            return
        self._told_of_missing = True
        warnings.warn(
            f"plan: no gradient of {self._gradients.names[missing[0]]!r} came in a step; the "
            f"bucket of {len(bucket.members)} that it is in leaves at the end of such a step, with "
            "what there is of it or zeros in its place",
            stacklevel=2,
        )

    def _reduce_anew(self, disputed: Disputed) -> Exception | None:
        """Reduce buckets about which the ranks disagree, if some miss a gradient, as others do not.

        Collective: every rank of the process set, with the same buckets. Blocks.

        Returns:
            The first failure of which that was not the reason.
        """
        gradients, process_set = self._gradients, self.options.process_set
        errors = [disputed[name] for name in sorted(disputed)]
        mine = [
            gradients.form(bucket.members[0]) if bucket.single else Form(0, False)
            for bucket, _ in errors
        ]
        try:
            everyones = forms_of(mine, "forms_of_disputed_gradients", process_set)
        except (CollectiveError, ValueError):  # the first error says more
            return with_remedy(errors[0][1]) if mine[0].dims else errors[0][1]
        failure: Exception | None = None
        for (bucket, error), form_here, forms in zip(errors, mine, everyones, strict=True):
            ranks = forms.sparse + forms.dense + forms.missing
            if not forms.mendable or ranks != process_set.size():
                failure = failure or (with_remedy(error) if forms.sparse else error)
                continue
            if form_here.missing:
                gradients.stand_in(bucket.members[0], forms.common or 0)
            try:
                self._in_flight.append((bucket.start(), [], bucket))
            except (CollectiveError, ValueError) as refused:
                failure = failure or refused
        _core.flush()
        again: Disputed = {}
        failure = self._wait(again) or failure
        return failure or next((with_remedy(error) for _, error in again.values()), None)

    def _tell_forms(self) -> None:
        """Let optimizers of all ranks get sparse what was so on one. Collective.

        Ranks tell of a gradient until one of them has had it in a step of all: one that has joined
        does not know of it when it comes back.
        """
        gradients, process_set = self._gradients, self.options.process_set
        if len(self._told) == len(gradients.names):
            return
        # Nobody may have any: of 6,000 that are frozen all would tell in every step.
        come = any(i not in self._told and not gradients.form(i).missing for i in self._hooks)
        if sums([come + gradients.expected], "news_of_gradients", process_set) == [0]:
            return
        untold = set(range(len(gradients.names))) - self._told
        order = sorted(untold, key=gradients.names.__getitem__)
        mine = [
            Form(gradients.made_dense.get(index, 0), gradients.form(index).missing)
            for index in order
        ]
        everyones = forms_of(mine, "forms_of_gradients", process_set)
        for index, forms in zip(order, everyones, strict=True):
            came = forms.sparse + forms.dense
            agreed = forms.common if came else gradients.expected
            if agreed:
                gradients.made_dense[index] = agreed
            if came and came + forms.missing == process_set.size():
                self._told.add(index)

    def _wait(self, disputed: Disputed | None = None) -> Exception | None:
        """The first failure, or None. What an interrupt leaves can be waited for again.

        Buckets about which the ranks disagree come to ``disputed``, if that is given.
        """
        in_flight = self._in_flight
        failure: Exception | None = None
        while in_flight:
            (handle, used, then, undo), left, bucket = in_flight[0]
            more: InFlight | None = None
            try:
                if self.operations is not None and used[0].is_cpu:
                    self._note(handle, used, self.operations)
                coded = wait(handle, used)
                if then is not None:
                    more = then(handle, coded)
            except Exception as error:
                if disputed is not None and isinstance(error, MismatchError):
                    disputed[bucket.name] = bucket, error
                else:
                    failure = failure or error
                if undo is not None:
                    undo()
            in_flight.popleft()
            if more is not None:
                in_flight.append((more, left, bucket))
                _core.flush()
        return failure

    @staticmethod
    def _note(handle: int, used: Sequence[torch.Tensor], operations: list[Operation]) -> None:
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in used)
        operations.append(Operation(*_core.times(handle), nbytes))

    # --- buckets

    def _decide_alone(self) -> None:
        """Form the buckets that need no other rank."""
        if self.options.planner.order == "own" and self._hooks:
            self._decide()

    def _decide(self) -> None:
        """Form the buckets that the planner wants. Collective, unless its order is "own"."""
        self._undecided = False
        order = list(self._hooks)
        if self.options.planner.order == "arrival":
            order = list(dict.fromkeys([*self._arrivals, *self._order, *reversed(order)]))
        order = [i for i in order if i in self._hooks and i not in self._gradients.sparse]
        try:
            self._order, plan = agree(order, self._gradients, self.options)
            self._form_alike(plan)
        except ValueError:
            self._form(())
            raise
        self._on_trial = bool(self._gradients.views)

    def _form_alike(self, plan: Plan) -> None:
        """Form these buckets; without memory of their own if a rank has none for them."""
        options, failure = self.options, None
        try:
            self._form(plan)
        except RuntimeError as error:  # out of memory, on this rank alone perhaps
            failure = error
        if options.planner.order == "own" or options.storage is own_memory:
            if failure is not None:
                raise failure
        elif any_failed(failure, options.process_set):
            self._form(plan, options._replace(storage=own_memory))

    def _try_views(self) -> None:
        """Give up the memory of the buckets, and keep the buckets, unless it pays. Collective."""
        pays = agree_on_views(self._gradients, self.options.process_set)
        self._on_trial = pays is None
        if pays is False:
            plan = [bucket.members for bucket in self.buckets if bucket.flat is not None]
            self._form(plan, self.options._replace(storage=own_memory))

    def _form(self, plan: Plan, options: ReductionOptions | None = None) -> None:
        """Form these buckets, and one for each gradient that is in none of them."""
        self.buckets[:] = form(plan, self._gradients, options or self.options)
        self._bucket_of.clear()
        self._bucket_of.update((index, b) for b in self.buckets for index in b.members)
        for index in self._hooks:
            if index not in self._bucket_of:
                self._put_alone(index)
        self._start_step()

    def _put_alone(self, index: int) -> None:
        bucket = Bucket(len(self.buckets), [index], self._gradients, self.options)
        self.buckets.append(bucket)
        self._bucket_of[index] = bucket
