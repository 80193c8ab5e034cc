"""A rank of the job that is counted: trains two steps, and writes what it enters in the second."""

import ctypes
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType

import torch

import aiacc.torch as hvd

counting = ctypes.c_int.in_dll(ctypes.CDLL(None), "counting")  # entered.c has both
entered = (ctypes.c_size_t * (1 << 16)).in_dll(ctypes.CDLL(None), "entered")
codes: set[CodeType] = set()


def note(frame: FrameType, event: str, _: object) -> None:
    """The profiler of every thread."""
    if counting.value and event == "call":
        codes.add(frame.f_code)


threading.setprofile(note)
sys.setprofile(note)
hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for step in range(2):
    optimizer.zero_grad()
    loss = model(torch.ones(8, 64)).sum()
    time.sleep(0.5)  # threads go to rest, here and below
    counting.value = step
    loss.backward()
    optimizer.step()
time.sleep(0.5)
counting.value = 0
if hvd.rank() == 0:
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    starts = {words[5]: int(words[0].split("-")[0], 16) for words in maps[::-1] if "/" in words[-1]}
    for address in filter(None, entered):
        start, library = max((at, name) for name, at in starts.items() if at <= address)
        print("C++", library, hex(address - start))
    for code in codes:
        print("Python", code.co_filename, code.co_firstlineno, code.co_name)
hvd.shutdown()
