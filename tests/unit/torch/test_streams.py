"""aiacc.torch.streams against what it calls of torch.cuda, which this machine may not have."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from aiacc.torch import adapter as tensors
from aiacc.torch import streams


@pytest.fixture
def cuda(monkeypatch):
    """Numbers streams; the current one of every device is that of ``current``."""
    numbers = itertools.count(100)

    def stream(device):
        return SimpleNamespace(cuda_stream=next(numbers))

    def raw_stream(device):
        return fake.current.cuda_stream

    fake = SimpleNamespace(current=stream(3), used=[])
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda chosen: chosen)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: fake.current)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", raw_stream, raising=False)
    monkeypatch.setattr(streams, "_streams", {})
    monkeypatch.setattr(streams, "_of_thread", threading.local())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *pair: fake.used.append(pair))
    return fake


def test_the_allocator_is_told_of_the_stream_that_waits(cuda):
    one, two = torch.ones(1), torch.ones(2)
    streams.record_use([one, two], 3, streams.current_stream(3))
    first = cuda.current
    assert [(id(it), used) for it, used in cuda.used] == [(id(one), first), (id(two), first)]
    cuda.current = torch.cuda.Stream(3)
    streams.record_use([one], 3, streams.current_stream(3))
    assert cuda.used[-1][1] is cuda.current


def test_a_thread_has_one_stream_of_its_own_for_each_device(cuda):
    assert streams.aside(0) is streams.aside(0)
    assert streams.aside(1) is not streams.aside(0)
    with ThreadPoolExecutor(1) as other:
        both = [other.submit(streams.aside, 0).result(), streams.aside(0), cuda.current]
    assert len({id(stream) for stream in both}) == 3


def test_waiting_for_tensors_in_host_memory_asks_for_no_stream(cuda, monkeypatch):
    waited = []
    monkeypatch.setattr(tensors._core, "wait", lambda *arguments: waited.append(arguments))
    tensors.wait(5, (torch.ones(1),))
    tensors.wait(6, ())
    assert waited == [(5,), (6,)]
    assert cuda.used == []
    assert tensors.device_and_stream_of(torch.ones(1)) == (-1, 0)
