"""CUDA streams and events of torch: all that `aiacc.torch` needs of ``torch.cuda``.

Nothing here makes the host wait for a GPU. Nothing here is called for tensors in host memory.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

#: What torch has for a device and a stream of the driver; making it anew takes a microsecond.
_streams: dict[tuple[int, int], Any] = {}
#: Streams of `aside`, by device.
_of_thread = threading.local()


def current_stream(device: int) -> int:
    """The stream on which this thread uses a CUDA device now, as the driver knows it."""
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream


def record_use(tensors: Sequence[torch.Tensor], device: int, stream: int) -> None:
    """Tell torch's allocator that ``stream``, the current one, uses memory that another may own."""
    known = _streams.get((device, stream))
    if known is None:
        known = _streams[device, stream] = torch.cuda.current_stream(device)
    for tensor in tensors:
        tensor.record_stream(known)


def aside(device: int) -> AbstractContextManager[Any]:
    """A context in which a stream that only this thread uses is the current one of ``device``.

    What a helper thread makes wait is then no stream of the user's.
    """
    streams: dict[int, Any] = _of_thread.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return torch.cuda.stream(streams[device])


def mark(device: int) -> Any:
    """An event that is done when what the current stream of ``device`` has queued is."""
    event: Any = torch.cuda.current_stream(device).record_event()
    return event


def wait_for_mark(event: Any, device: int) -> None:
    """Let what the current stream of ``device`` runs from now on come after `mark`."""
    torch.cuda.current_stream(device).wait_event(event)


def future_on(devices: Sequence[int]) -> Any:
    """A future of tensors on ``devices`` that makes whoever takes them wait on their streams."""
    return torch.futures.Future(devices=[torch.device("cuda", device) for device in devices])
