"""Messages between two ranks of a process group: its send and recv.

The core moves bytes, so every dtype and shape will do, and pairs them by group and tag. It knows
host memory only: tensors elsewhere pass through a copy there, like those that are not contiguous.
"""

from __future__ import annotations

import torch

from aiacc import _core
from aiacc.torch.adapter import address_of, plain, refusal
from aiacc.torch.distributed.groups import Group
from aiacc.torch.distributed.work import CollectiveWork, Futures, Limit, Step


def send_to(group: Group, tensor: torch.Tensor, target: int, tag: int) -> Step:
    """Send ``tensor`` to rank ``target`` of the group.

    Raises:
        ValueError: There is no such rank; or a sparse tensor, or one without memory.
    """
    _check(tensor, "send")
    sent = plain(tensor, "send").cpu()
    to = group.number_of(target)
    handle = _core.send(sent.data_ptr(), sent.nbytes, to, _key(group, tag))
    return handle, None, (sent,)


class Receive(CollectiveWork):
    """One tensor from another rank."""

    def __init__(
        self,
        group: Group,
        tensor: torch.Tensor,
        source: int | None,
        tag: int,
        futures: Futures,
        limit: Limit,
    ) -> None:
        """Receive into ``tensor`` from rank ``source`` of the group; None: from any.

        Raises:
            ValueError: There is no such rank; or a sparse tensor, or one without memory.
        """
        _check(tensor, "recv")
        given = tensor.detach()
        direct = given.is_cpu and given.is_contiguous() and not (given.is_neg() or given.is_conj())
        received = given if direct else torch.empty_like(given, device="cpu").contiguous()
        start = -1 if source is None else group.number_of(source)
        handle = _core.receive(received.data_ptr(), received.nbytes, start, _key(group, tag))
        self._group = group
        self._source = source

        def finish(handle: int) -> None:
            if self._source is None:
                self._source = group.ranks.index(_core.take_source(handle))
            if not direct:
                given.copy_(received)

        super().__init__([(handle, finish, (received, given))], [tensor], futures, limit)

    def source_rank(self) -> int:
        """The rank in the group that sent it, once `wait` has returned."""
        return -1 if self._source is None else self._source

    _source_rank = source_rank


def _key(group: Group, tag: int) -> str:
    if tag < 0:
        raise ValueError(f"[torch] a message with tag={tag} (expected 0 or more)")
    return f"{group.series}, tag {tag}"


def _check(tensor: torch.Tensor, what: str) -> None:
    address_of(tensor, what)
    if not (tensor.is_cpu or tensor.is_cuda):
        raise refusal(tensor, what)
