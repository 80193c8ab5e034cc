"""Reduces gradients to shards in the backward pass, gathers parameters in the next forward pass."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from aiacc import _core
from aiacc.collectives.objects import broadcast_object
from aiacc.collectives.reduce_ops import Min
from aiacc.exceptions import CollectiveError
from aiacc.process_sets import first_rank, rank_and_size
from aiacc.torch.decoupled import in_flight
from aiacc.torch.decoupled.bucket import Bucket
from aiacc.torch.decoupled.checks import check_apart
from aiacc.torch.decoupled.guards import Guards, check_owned
from aiacc.torch.mpi_ops import allreduce_
from aiacc.torch.reducer.consensus import check_optimizers
from aiacc.torch.reducer.gradients import NamedParameters, too_many_passes
from aiacc.torch.reducer.options import ReductionOptions
from aiacc.torch.reducer.places import may_move
from aiacc.torch.reducer.storage import strides_in

_HALF = (
    "the last step has updated this rank's part of the parameters, and those of other ranks have "
    "not all come; load parameters (model.load_state_dict) or broadcast them"
)


class Exchange:
    """The buckets of a model, hooks for its gradients, and guards of its parameters.

    Threads: hooks of gradients run in autograd's thread; the other methods must not run during a
    backward pass.
    Ranks: every rank of the process set has the same parameters in the same buckets.

    Attributes:
        named: Names and parameters, by number.
        buckets: In the order of the forward pass.
        passes: Backward passes that are accumulated before a bucket is reduced.
    """

    def __init__(
        self,
        model: nn.Module,
        named: NamedParameters,
        plan: Sequence[Sequence[int]],
        options: ReductionOptions,
        passes: int,
        lanes: int,
    ) -> None:
        """Move the parameters to flat memory.

        ``plan`` has the numbers of each bucket, and ``lanes`` share each.
        """
        check_owned(model, named)  # before anything is changed
        check_apart(model, named)
        self.named = list(named)
        self.passes = passes
        self._options = options
        self.rank, self.size = rank_and_size(options.process_set)
        parameters = [parameter for _, parameter in named]
        self.buckets = [
            Bucket(
                number,
                members,
                [parameters[index] for index in members],
                named[members[0]][0],
                self.rank,
                self.size,
                lanes,
            )
            for number, members in enumerate(plan)
        ]
        self._cover()
        self._bucket_of = {index: bucket for bucket in self.buckets for index in bucket.members}
        self._left = [passes] * len(parameters)
        self._awaited = len(self.buckets)  # by their hooks, in this step
        #: Numbers of the gradients that there were when they were reduced last.
        self._given: list[int] = []
        self._agreed = False
        #: Why parameters are not current, until they are overwritten.
        self._failure: CollectiveError | None = None
        self._settling = threading.RLock()
        self.guards = Guards(model, self.named, self.buckets, self._settle, self.overwrite)
        self._hooks: list[RemovableHandle] = []
        for index, parameter in enumerate(parameters):
            register: Any = parameter.register_post_accumulate_grad_hook  # untyped in torch
            self._hooks.append(register(self._hook(index)))
        in_flight.register(self)

    @property
    def under_way(self) -> bool:
        """Whether a backward pass has run since the last `reduce`."""
        return self._left.count(self.passes) != len(self._left) or any(
            bucket.scattered for bucket in self.buckets
        )

    def begin_anew(self) -> None:
        """Forget backward passes that are to be accumulated, if no gradient has had its last one.

        None of them has left this rank then.
        """
        if 0 not in self._left and not any(bucket.scattered for bucket in self.buckets):
            self._start_step()

    def names_of(self, bucket: Bucket) -> list[str]:
        """Names of the parameters in ``bucket``."""
        return [self.named[index][0] for index in bucket.members]

    def set_passes(self, passes: int) -> None:
        """Accumulate this many backward passes before a bucket is reduced.

        Blocks: until gradients under way are reduced, which are dropped: those of the next backward
        pass have their memory.
        """
        self.passes = passes
        if any(bucket.scattered for bucket in self.buckets):
            self.drop()
        self._start_step()

    def reduce(self, fault: str = "") -> None:
        """Submit what no backward pass did, and wait until the shards have their gradients.

        Collective: every rank of the process set.
        Blocks: until every gradient is reduced or failed; of CUDA tensors until that is queued.

        Args:
            fault: Why this rank cannot take part, which all are told that have not agreed yet.

        Raises:
            CollectiveError: The first failure. Gradients are dropped, parameters as they were.
            ValueError: Parameters were moved, frozen parameters changed, the ranks do not share
                them, or gradients were written to after they had left.
        """
        self.flush()  # parameters that nobody has used since the last step
        self._check_parameters()
        if not self._agreed:
            self._agree(fault)
        elif fault:
            raise ValueError(fault)
        left = self._left
        for bucket in self.buckets:
            bucket.check_writes([index for index in bucket.members if self._is_taken(index)])
            if bucket.awaited:
                self._complete(bucket)
                bucket.scatter()
        self._given = [
            index
            for index, (_, parameter) in enumerate(self.named)
            if left[index] == 0 or parameter.grad is not None
        ]
        _core.flush()
        self._finish()

    def dropped(self) -> set[int]:
        """The ids of parameters whose gradient took part in `reduce`, and is None by now.

        Somebody wants such a parameter unchanged.
        """
        given = (self.named[index][1] for index in self._given)
        return {id(parameter) for parameter in given if parameter.grad is None}

    def check_again(self) -> None:
        """What was done since `reduce`, of which a step would see nothing.

        Raises:
            ValueError: Parameters were moved; or the model's gradients were written to, replaced or
                given other memory: the step takes the reduced ones.
        """
        self._check_parameters()
        for bucket in self.buckets:
            if bucket.written or bucket.replaced(bucket.members):
                raise self._written(bucket)

    def drop(self) -> None:
        """Wait for gradients under way, whatever comes of it, and start the step anew."""
        _core.flush()
        with contextlib.suppress(CollectiveError, ValueError):
            self._finish()

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """A context in which the shards are updated; parameters are gathered at its end.

        Collective: every rank of the process set.
        Blocks: never, except for buckets that `Guards` has found, or that somebody has views of;
        and at the end of the first step.

        Raises:
            CollectiveError: An earlier failure was fatal; parameters are not current.
        """
        versions = [bucket.version for bucket in self.buckets]
        try:
            yield
        except BaseException as error:
            if versions != [bucket.version for bucket in self.buckets]:
                self._fail(f"the step ended by {type(error).__name__}: {error}")
            raise
        try:
            self._gather()
        except CollectiveError as error:
            raise self._fail(str(error)) from None
        except BaseException as error:
            self._fail(f"the step ended by {type(error).__name__}: {error}")
            raise

    def flush(self) -> None:
        """Wait until all parameters are current.

        Collective: no; but every rank has to end the step that gathers them.
        Blocks: until they are; of CUDA tensors until that is queued.

        Raises:
            CollectiveError: They cannot be.
        """
        if self._failure is not None:
            raise self._failure
        for number in range(len(self.buckets)):
            self._settle(number)

    def has_one_of(self, tensors: Sequence[object]) -> bool:
        """Whether one of these is a parameter of this, itself."""
        own = {id(parameter) for _, parameter in self.named}
        return any(id(tensor) in own for tensor in tensors)

    def overwrite(self) -> None:
        """`flush`, whatever comes of it, since parameters are about to be written."""
        with self._settling:
            for bucket in self.buckets:
                with contextlib.suppress(CollectiveError, ValueError):
                    bucket.finish_gather()
                bucket.show()
            self._failure = None

    def clear_gradients(self, set_to_none: bool) -> None:
        """As `torch.optim.Optimizer.zero_grad`, for the model's parameters."""
        with torch._C.DisableTorchFunctionSubclass():  # it is no use of parameters
            for _, parameter in self.named:
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.requires_grad_(False).zero_()

    def forget(self) -> CollectiveError | None:
        """Drop what was under way when the core has let go of it, in a job that starts anew.

        Why parameters are not current, if they are not.
        """
        unfinished = [bucket.forget() for bucket in self.buckets]
        if any(unfinished):
            self._fail("the job ended during a step")
        self._start_step()
        return self._failure

    def inherit(self, failure: CollectiveError) -> None:
        """Let every use of parameters raise ``failure``, until they are overwritten."""
        self._failure = failure
        for number, bucket in enumerate(self.buckets):
            bucket.show()  # of some it may not have come to its end
            bucket.hide(partial(self._settle, number))

    def detach(self) -> None:
        """Remove all hooks; parameters stay where they are."""
        self.overwrite()
        self.guards.remove()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    # --- gradients

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        bucket, left, guards = self._bucket_of[index], self._left, self.guards

        def hook(parameter: torch.Tensor) -> None:
            passes = left[index] - 1
            if passes < 0:
                raise too_many_passes(self.named[index][0], self.passes)
            if not bucket.open:
                guards.check_gradient(index)
            if may_move(parameter.grad, passes):
                self._take(index, parameter)
            left[index] = passes
            if passes == 0:
                if bucket.awaited == 1 and self._agreed:
                    bucket.scatter()
                    self._awaited -= 1
                    if self._awaited == 0:
                        _core.flush()
                elif bucket.awaited == 1:
                    return  # `reduce` starts it when the ranks have agreed
                bucket.awaited -= 1

        return hook

    def _take(self, index: int, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None and gradient.layout is not torch.strided:
            if not self._options.sparse_as_dense:
                raise ValueError(
                    f"gradient of {self.named[index][0]!r} is sparse (expected a dense one with "
                    "schedule='decoupled'); use sparse_as_dense=True or schedule='all_reduce'"
                )
            parameter.grad = gradient.to_dense()
        self._bucket_of[index].take(index, parameter)

    def _is_taken(self, index: int) -> bool:
        """Whether a backward pass has brought the gradient to its place."""
        passes = self._left[index]
        return passes < self.passes and may_move(self.named[index][1].grad, passes)

    def _complete(self, bucket: Bucket) -> None:
        """Let a gradient take part that no backward pass gave, if there is one."""
        for index in bucket.members:
            if self._left[index] > 0:
                self._take(index, self.named[index][1])
        bucket.awaited = 0

    def _finish(self) -> None:
        failure: CollectiveError | ValueError | None = None
        for bucket in reversed(self.buckets):
            try:
                if bucket.scattered and not bucket.finish_scatter():
                    failure = failure or self._written(bucket)
            except CollectiveError as error:
                failure = failure or error
        self._start_step()
        if failure is not None:
            raise failure

    def _written(self, bucket: Bucket) -> ValueError:
        name = self.named[bucket.members[0]][0]
        return ValueError(
            f"gradients of the bucket of {name!r} were written to after backward(), replaced or "
            "given other memory, by torch.nn.utils.clip_grad_norm_ or model.to() perhaps (expected "
            "no such writes: they had left for the other ranks); use optimizer.clip_grad_norm_, "
            "move the model after step(), or use schedule='all_reduce'"
        )

    def _start_step(self) -> None:
        self._left[:] = [self.passes] * len(self._left)
        self._awaited = len(self.buckets)
        for bucket in self.buckets:
            bucket.awaited = len(bucket.members)

    # --- parameters

    def _cover(self) -> None:
        """Let the buckets of one dtype and device share memory of NaN."""
        kinds: dict[tuple[torch.dtype, torch.device], list[Bucket]] = {}
        for bucket in self.buckets:
            kinds.setdefault((bucket.gradient.dtype, bucket.gradient.device), []).append(bucket)
        for buckets in kinds.values():
            most = max(bucket.layout.elements for bucket in buckets)
            nothing = buckets[0].gradient.new_full((most,), float("nan"))
            for bucket in buckets:
                bucket.cover(nothing)

    def _gather(self) -> None:
        guards, buckets = self.guards, self.buckets
        at_once = guards.synchronous | {n for n, bucket in enumerate(buckets) if bucket.viewed}
        for _, parameter in self.named:  # autograd refuses to use values of before for gradients
            torch.autograd.graph.increment_version(parameter)
        with self._settling:  # other threads wait for what was started
            for number, bucket in enumerate(buckets):
                bucket.hide(partial(self._settle, number))
            for number in dict.fromkeys([*guards.order, *range(len(buckets))]):
                buckets[number].gather()
            _core.flush()
            for number in at_once:
                self._settle(number)
            guards.end_step()

    def _settle(self, number: int) -> None:
        """Wait until the parameters of a bucket are current, and let everybody use them."""
        bucket = self.buckets[number]
        if bucket.open:
            return
        with self._settling:  # others wait, too
            if self._failure is not None:
                raise self._failure
            try:
                bucket.finish_gather()
            except (CollectiveError, ValueError) as error:
                raise self._fail(str(error)) from None
            bucket.show()

    def _fail(self, why: str) -> CollectiveError:
        """Let every use of parameters raise, until they are overwritten."""
        if self._failure is None:
            self.inherit(CollectiveError(f"{why}; {_HALF}"))
        assert self._failure is not None
        return self._failure

    def _check_parameters(self) -> None:
        """Bring them back to their buckets, if they have other memory, with their values."""
        for index, (name, parameter) in enumerate(self.named):
            if not self._bucket_of[index].reclaim(index):
                raise ValueError(
                    f"parameter {name!r} is now of {parameter.dtype}, shape "
                    f"{tuple(parameter.shape)} and on {parameter.device} (expected as it was), by "
                    "model.to() or half() perhaps; make the DistributedOptimizer after that"
                )

    def _agree(self, fault: str) -> None:
        """Compare the buckets with those of the other ranks. Collective, blocks."""
        mine = (
            [(name, tuple(p.shape), strides_in(p), str(p.dtype)) for name, p in self.named],
            [(bucket.members, bucket.layout.parts) for bucket in self.buckets],
        )
        process_set = self._options.process_set
        try:
            check_optimizers("schedule='decoupled'", self._options.identity, process_set)
        except ValueError:
            self._start_step()
            raise
        root = first_rank(process_set)
        digest = hashlib.sha256(repr(mine).encode()).hexdigest()
        first = broadcast_object(digest, root, "decoupled_layout", process_set)
        facts = torch.tensor([first == digest, not fault], dtype=torch.uint8, device="cpu")
        allreduce_(facts, None, "decoupled_layouts", Min, process_set=process_set)
        equal, able = facts.tolist()
        if not equal or not able:
            self._start_step()
        if not able:
            raise ValueError(fault or "another rank cannot take part in steps; see its error")
        if not equal:
            raise ValueError(
                "schedule='decoupled': the ranks have parameters of different names, shapes, "
                "dtypes, memory formats or order, or other buckets (expected the same everywhere, "
                f"here {len(self.named)} parameters in {len(self.buckets)} buckets); pass the same "
                "model, named_parameters, bucket_bytes and plan on every rank"
            )
        for bucket in self.buckets:
            bucket.prepare(self._options)
        self._agreed = True
