"""aiacc under torch's DistributedDataParallel: a communication hook."""

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from aiacc import _core, basics
from aiacc.collectives import submission
from aiacc.collectives.reduce_ops import Average
from aiacc.process_sets import ProcessSet, global_process_set, set_id
from aiacc.torch.adapter import view_of
from aiacc.torch.distributed.work import CollectiveWork, Futures

# No `from __future__ import annotations` here: torch compares the annotations of a hook.
if TYPE_CHECKING:
    GradBucket = Any  # which torch's stubs do not have
else:
    from torch.distributed import GradBucket


def allreduce_hook(
    state: ProcessSet | None, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients of DistributedDataParallel.

    Use it so::

        model = DistributedDataParallel(model)
        model.register_comm_hook(None, aiacc.torch.allreduce_hook)

    Collective: every rank of the process set, with the same model.
    Blocks: never; DistributedDataParallel waits at the end of the backward pass.

    Args:
        state: Ranks that take part, which are to be those of the model's process group; None for
            all ranks.
        bucket: Its gradients are reduced in place.

    Returns:
        The reduced bucket, once it is there (on a CUDA device: queued, and the stream of whoever
        takes it waits); or `CollectiveError` if that failed.

    Raises:
        ValueError: A bucket that the core does not take.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    tensor = bucket.buffer()
    process_set = global_process_set if state is None else state
    view = view_of(tensor, f"bucket {bucket.index()} of gradients")
    name = f"ddp.{set_id(process_set)}.{_numbers.of(bucket.parameters()[0])}.{tensor.numel()}"
    prepared = submission.allreduce(name, *view.spec, Average, process_set=process_set)
    handle = prepared.start(view.address, view.address, view.stream)
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
