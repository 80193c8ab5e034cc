"""aiacc under torch's DistributedDataParallel: a communication hook."""

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from aiacc import _core, arguments, basics
from aiacc.collectives import submission
from aiacc.collectives.reduce_ops import Average
from aiacc.collectives.submission import AS_THEY_ARE
from aiacc.compression.codecs import PowerSGD
from aiacc.compression.policy import Policy
from aiacc.process_sets import ProcessSet, global_process_set, set_id
from aiacc.torch.adapter import SUMMED, view_of
from aiacc.torch.compression.compressors import CodedCompressor, Compression, compressor_of, name_of
from aiacc.torch.compression.wire_format import wire_of
from aiacc.torch.distributed.work import CollectiveWork, Futures, Step
from aiacc.torch.reducer.codec import Codec, Encoded
from aiacc.torch.reducer.consensus import Numbers, check_alike
from aiacc.torch.reducer.feedback import Feedback, warn_if_idle, warn_of_patterns
from aiacc.torch.reducer.gradients import checked_names
from aiacc.torch.reducer.options import Asked
from aiacc.torch.reducer.storage import Flat

# No `from __future__ import annotations` here: torch compares the annotations of a hook.
if TYPE_CHECKING:
    GradBucket = Any  # which torch's stubs do not have
else:
    from torch.distributed import GradBucket

#: Parameters without a name are called so, and by a number.
_UNNAMED = "parameter."


class HookState:
    """How `allreduce_hook` reduces the buckets of one model, and what codecs lose of them.

    Attributes:
        process_set: Ranks that take part, which are to be those of the model's process group.
        compression: As of `DistributedOptimizer`. Of a codec, or its name, all gradients of two
            dimensions at least are compressed; a `Policy` says which, from which step on, and what
            becomes of what is lost. A bucket is compressed if most of its elements would be.
        feedback: What codecs have lost, with its ``state_dict``, ``flush`` and ``follow``; None:
            nothing is coded.
    """

    def __init__(
        self,
        process_set: ProcessSet = global_process_set,
        compression: Any = Compression.none,
        named_parameters: Iterable[tuple[str, torch.Tensor]] = (),
    ) -> None:
        """Start without residuals.

        Args:
            process_set: See above.
            compression: See above.
            named_parameters: Of the model, for patterns of a policy and for states. Others are
                called by the order in which they are seen, ``parameter.0`` and so on.

        Raises:
            TypeError: ``process_set`` is no ProcessSet.
            ValueError: ``compression`` is none of the core's own forms; no names.
        """
        remedy = 'for a codec register HookState(compression="int8")'
        of_hook = arguments.RULES["process_set"]._replace(remedy=remedy)
        arguments.check({"process_set": process_set}, process_set=of_hook)
        self.process_set = process_set
        self.compression = compressor_of(compression)
        policy = self.compression
        if isinstance(policy, CodedCompressor):
            policy = Policy(policy.codec, least_elements=1)
        self.feedback = Feedback(policy) if isinstance(policy, Policy) else None
        #: Names of parameters that passes have used since their buckets were encoded.
        self._used: set[str] = set()
        if self.feedback is not None:
            # DistributedDataParallel drops what it is given for others, if it looks for them.
            self.feedback.used = self._used
        self._names: Any = WeakTensorKeyDictionary()
        self._watch_anew()
        names = []
        for name, parameter in checked_names(named_parameters):
            self._names[parameter] = name
            if self.feedback is not None:
                self.feedback.kept.shapes[name] = parameter.shape
                if parameter.requires_grad:
                    self._watch(parameter, name)
            names.append(name)
        if isinstance(policy, Policy):
            strange = policy.unmatched(names or [_UNNAMED + "0"])
            if not names:  # how many there will be is not known
                strange = [pattern for pattern in strange if not pattern.startswith(_UNNAMED)]
            warn_of_patterns(strange, names or [_UNNAMED + "0"])
        self._seen = 0
        #: Whether it is known that something is compressed, or has been said that nothing is.
        self._looked = False
        #: By the number of a bucket: of which parameters it was, where, and what encodes it.
        self._codecs: dict[int, tuple[tuple[str, ...], int, Codec]] = {}
        if self.feedback is not None and isinstance(self.feedback.policy.codec, PowerSGD):
            raise ValueError(
                f"{self.feedback.policy.codec} of a hook (expected a codec that the core has); use "
                "torch's own hook, powerSGD_hook, or DistributedOptimizer"
            )
        if self.feedback is None and wire_of(self.compression, (), Average) is None:
            raise ValueError(
                f"compression={name_of(self.compression)} of a hook (expected one of Compression, "
                "a codec, or a Policy); reduce with DistributedOptimizer"
            )

    def begin_pass(self, is_first: bool) -> None:
        """What is to be done before the first bucket of a backward pass.

        Collective: every rank of the process set. Blocks: in the first pass of a model, and after a
        `join`.

        Raises:
            ValueError: The ranks compress in different ways.
        """
        if is_first:  # on every rank, however it compresses
            how = name_of(self.compression) if self.feedback is None else self.feedback.policy
            check_alike(Asked(compression=str(how)), self.process_set)
        if self.feedback is None:
            return
        if not is_first and not self._looked:  # all buckets have been seen
            self._looked = True
            named = [(name, parameter) for parameter, name in self._names.items()]
            warn_if_idle(self.feedback.policy, named, self.process_set)
        self.feedback.settle(self.process_set)  # of the pass before, which has ended

    def encode(self, number: int, bucket: GradBucket) -> Encoded:
        """What is submitted for a bucket of this number, in this step."""
        buffer = bucket.buffer()
        if self.feedback is None:
            wire = wire_of(self.compression, [buffer], Average) or AS_THEY_ARE
            return Encoded([buffer], wire=wire)
        parameters = bucket.parameters()
        names = tuple(self._name(parameter) for parameter in parameters)
        for name, parameter in zip(names, parameters, strict=True):
            if name not in self._watched and parameter.requires_grad:
                self._watch(parameter, name)
                self._used.add(name)  # the pass under way may have used it
        known = self._codecs.get(number)
        address = buffer.data_ptr()
        if known is None or known[:2] != (names, address):
            named = list(zip(names, parameters, strict=True))
            codec = self.feedback.codec(Average, named, Flat(buffer, bucket.gradients()))
            self._forget_buckets_of(names)
            known = self._codecs[number] = names, address, codec
        return known[2]([buffer])

    def _watch(self, parameter: torch.Tensor, name: str) -> None:
        """Notice when a backward pass uses it."""
        used = self._used
        register: Any = parameter.register_post_accumulate_grad_hook  # untyped in torch
        self._watches.append(register(lambda _: used.add(name)))
        self._watched.add(name)

    def _watch_anew(self) -> None:
        #: Names of the parameters that are watched, by hooks that end with this state.
        self._watched: set[str] = set()
        self._watches: list[RemovableHandle] = []
        weakref.finalize(self, _remove, self._watches)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has hooks of its own."""
        return {**self.__dict__, "_watched": None, "_watches": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Watch each parameter when it is seen."""
        self.__dict__.update(state)
        self._watch_anew()

    def _forget_buckets_of(self, names: tuple[str, ...]) -> None:
        """Free the memory of buckets that these were in, which know nothing of what is kept now."""
        for number, (members, *_) in list(self._codecs.items()):
            if not set(names).isdisjoint(members):
                del self._codecs[number]

    def _name(self, parameter: torch.Tensor) -> str:
        if parameter not in self._names:
            self._names[parameter] = f"{_UNNAMED}{self._seen}"
            self._seen += 1
        return str(self._names[parameter])


def _remove(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


def allreduce_hook(
    state: ProcessSet | HookState | None, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients of DistributedDataParallel.

    Use it so::

        model = DistributedDataParallel(model)
        model.register_comm_hook(None, aiacc.torch.allreduce_hook)

    or, to compress buckets, with ``HookState(compression="int8")`` in the place of None.

    Collective: every rank of the process set, with the same model.
    Blocks: where a bucket comes first, until all ranks have come to it; else never, for
        DistributedDataParallel waits at the end of the backward pass.

    Args:
        state: Ranks that take part, which are to be those of the model's process group; None for
            all ranks; or a `HookState` of this model alone.
        bucket: Its gradients are reduced in place.

    Returns:
        The reduced bucket, once it is there (on a CUDA device: queued, and the stream of whoever
        takes it waits); or RuntimeError with the text of a `CollectiveError` if that failed.

    Raises:
        ValueError: A bucket that the core does not take; ranks with different policies.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    tensor = bucket.buffer()
    if not isinstance(state, HookState):
        state = HookState(global_process_set if state is None else state)
    process_set = state.process_set
    view = view_of(tensor, f"bucket {bucket.index()} of gradients", SUMMED)
    number = _numbers.of(bucket.parameters()[0], process_set)
    name = f"ddp.{set_id(process_set)}.{number}.{tensor.numel()}"
    is_new = _known.add(bucket.parameters(), process_set)
    if bucket.index() == 0:
        state.begin_pass(is_new)
    encoded = state.encode(number, bucket)
    prepared = submission.allreduce(
        name, *view.spec, Average, process_set=process_set, wire=encoded.wire
    )
    given, residual = (
        tensors[0].data_ptr() if tensors else otherwise
        for tensors, otherwise in ((encoded.inputs, view.address), (encoded.residuals, 0))
    )
    handle = prepared.start(given, view.address, view.stream, residual)
    if bucket.is_last():
        _core.flush()
    decode = encoded.decode

    def finish(handle: int) -> None:
        if decode is not None:
            decode(handle, work.coded)

    step: Step = handle, finish, (tensor, *encoded.inputs, *encoded.residuals)
    work = CollectiveWork([step], [tensor], _futures)

    def result(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        try:
            return future.value()[0]
        except Exception:
            if encoded.undo is not None:
                encoded.undo()
            raise

    return work.get_future().then(result)


class _Known:
    """Parameters of which the ranks of a process set have compared how they are compressed."""

    def __init__(self) -> None:
        self._parameters: Any = weakref.WeakKeyDictionary()

    def add(self, parameters: Sequence[torch.Tensor], process_set: ProcessSet) -> bool:
        """Whether these, which are those of a bucket, are new. Buckets may be formed anew."""
        known = self._parameters.setdefault(process_set, WeakTensorKeyDictionary())
        if parameters[0] in known:
            return False
        known.update((parameter, True) for parameter in parameters)
        return True

    def reset(self) -> None:
        """There may be ranks that come anew."""
        self._parameters.clear()


_known = _Known()
basics.at_init(_known.reset)
_numbers = Numbers("ddp.number")
_futures = Futures()
