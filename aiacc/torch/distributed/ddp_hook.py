"""aiacc under torch's DistributedDataParallel: a communication hook."""

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from aiacc import _core, basics
from aiacc.collectives import submission
from aiacc.collectives.reduce_ops import Average
from aiacc.collectives.submission import AS_THEY_ARE
from aiacc.compression.codecs import PowerSGD
from aiacc.compression.feedback import NoFeedback, Residual
from aiacc.compression.wire import wire_of as wire_of_codec
from aiacc.process_sets import ProcessSet, global_process_set, set_id
from aiacc.torch.adapter import view_of
from aiacc.torch.compression.compressors import Compression, compressor_of, name_of
from aiacc.torch.compression.wire_format import wire_of
from aiacc.torch.distributed.work import CollectiveWork, Futures
from aiacc.torch.reducer.feedback import feedback_of

# No `from __future__ import annotations` here: torch compares the annotations of a hook.
if TYPE_CHECKING:
    GradBucket = Any  # which torch's stubs do not have
else:
    from torch.distributed import GradBucket


class HookState:
    """How `allreduce_hook` reduces the buckets of one model, and what codecs lose of them.

    Attributes:
        process_set: Ranks that take part, which are to be those of the model's process group.
        compression: As of `DistributedOptimizer`, except that whole buckets are compressed,
            whatever gradients they have; of a `Policy` codec and feedback count.
    """

    def __init__(
        self, process_set: ProcessSet = global_process_set, compression: Any = Compression.none
    ) -> None:
        """Start without residuals.

        Raises:
            ValueError: ``compression`` is none of the core's own forms.
        """
        self.process_set = process_set
        self.compression = compressor_of(compression)
        feedback = feedback_of(self.compression)
        self._codec = None if feedback is None else feedback.policy.codec
        self._keeps = feedback is not None and isinstance(feedback.policy.keeps, Residual)
        self._residuals: dict[tuple[int, int], torch.Tensor] = {}
        if feedback is not None and not isinstance(feedback.policy.keeps, NoFeedback | Residual):
            raise ValueError(
                f"feedback {feedback.policy.keeps} of a hook (expected residual or none); reduce "
                "with DistributedOptimizer"
            )
        if isinstance(self._codec, PowerSGD):
            raise ValueError(
                f"{self._codec} of a hook (expected a codec that the core has); use torch's own "
                "hook, powerSGD_hook, or DistributedOptimizer"
            )
        if feedback is None and wire_of(self.compression, (), Average) is None:
            raise ValueError(
                f"compression={name_of(self.compression)} of a hook (expected one of Compression, "
                "a codec, or a Policy); reduce with DistributedOptimizer"
            )

    def wire(self, tensor: torch.Tensor) -> int:
        """How a bucket travels."""
        if self._codec is None:
            return wire_of(self.compression, [tensor], Average) or AS_THEY_ARE
        return wire_of_codec(self._codec) if tensor.dtype == torch.float32 else AS_THEY_ARE

    def residual(self, number: int, tensor: torch.Tensor) -> int:
        """Address of the residual of a bucket; 0: it has none."""
        if not self._keeps or tensor.dtype != torch.float32:
            return 0
        key = number, tensor.numel()
        if key not in self._residuals:
            self._residuals[key] = torch.zeros_like(tensor)
        return self._residuals[key].data_ptr()


def allreduce_hook(
    state: ProcessSet | HookState | None, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients of DistributedDataParallel.

    Use it so::

        model = DistributedDataParallel(model)
        model.register_comm_hook(None, aiacc.torch.allreduce_hook)

    or, to compress buckets, with ``HookState(compression="int8")`` in the place of None.

    Collective: every rank of the process set, with the same model.
    Blocks: never; DistributedDataParallel waits at the end of the backward pass.

    Args:
        state: Ranks that take part, which are to be those of the model's process group; None for
            all ranks; or a `HookState` of this model alone.
        bucket: Its gradients are reduced in place.

    Returns:
        The reduced bucket, once it is there (on a CUDA device: queued, and the stream of whoever
        takes it waits); or `CollectiveError` if that failed.

    Raises:
        ValueError: A bucket that the core does not take.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    tensor = bucket.buffer()
    if not isinstance(state, HookState):
        state = HookState(global_process_set if state is None else state)
    process_set = state.process_set
    view = view_of(tensor, f"bucket {bucket.index()} of gradients")
    number = _numbers.of(bucket.parameters()[0])
    name = f"ddp.{set_id(process_set)}.{number}.{tensor.numel()}"
    wire = state.wire(tensor)
    prepared = submission.allreduce(name, *view.spec, Average, process_set=process_set, wire=wire)
    residual = state.residual(number, tensor)
    handle = prepared.start(view.address, view.address, view.stream, residual)
    if bucket.is_last():
        _core.flush()
    done = CollectiveWork([(handle, None, (tensor,))], [tensor], _futures).get_future()
    return done.then(lambda future: future.value()[0])


class _Numbers:
    """Tells buckets apart, also those of several models in one backward pass.

    Ranks see new buckets in the same order, so they count them alike. What is under way does not
    matter, for that differs between ranks.
    """

    def __init__(self) -> None:
        self._known: Any = WeakTensorKeyDictionary()
        self._next = 0

    def of(self, first_parameter: torch.Tensor) -> int:
        """Number of the bucket that begins with this parameter."""
        number: int | None = self._known.get(first_parameter)
        if number is None:
            number, self._next = self._next, self._next + 1
            self._known[first_parameter] = number
        return number

    def reset(self) -> None:
        """Restart counting, as ranks do that join with this `init`."""
        self._known.clear()
        self._next = 0


_numbers = _Numbers()
basics.at_init(_numbers.reset)
_futures = Futures()
