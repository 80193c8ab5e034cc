"""What ranks do in the jobs of `bench.collectives.blocking`."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from bench.collectives.gloo import beside_aiacc
from bench.collectives.tensors import Tensors
from bench.turns import Contender, take_turns

#: Spans by contender and size.
Seen = dict[str, dict[str, list[float]]]
#: Makes a call that sums a tensor over the ranks, where it is.
Sum = Callable[[torch.Tensor], Callable[[], object]]


def aiacc_and_gloo(task: Mapping[str, Any]) -> Seen:
    """Both in the same processes."""
    import aiacc.torch as hvd

    with beside_aiacc(task) as gloo:
        ways: dict[str, Sum] = {
            "aiacc": lambda tensor: partial(
                hvd.allreduce_, tensor, name=f"blocking.{tensor.nbytes}", op=hvd.Sum
            ),
            "gloo_1": lambda tensor: partial(dist.all_reduce, tensor),
            "gloo_cut_4": partial(gloo.summed, pieces=4),
        }
        return _by_size(ways, task, gloo.align)


def mpi(task: Mapping[str, Any]) -> Seen:
    """MPI's own call."""
    from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]

    everybody = MPI.COMM_WORLD

    def make(tensor: torch.Tensor) -> Callable[[], object]:
        return partial(everybody.Allreduce, MPI.IN_PLACE, [tensor.numpy(), MPI.FLOAT], MPI.SUM)

    return _by_size({task["name"]: make}, task, everybody.Barrier)


def oneccl(task: Mapping[str, Any]) -> Seen:
    """OneCCL's call, from a library in C++."""
    library = ctypes.CDLL(task["library"])
    library.start(task["rank"], task["ranks"], f"{task['folder']}/address".encode())

    def make(tensor: torch.Tensor) -> Callable[[], object]:
        given = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel())
        return partial(library.all_reduce, *given)

    seen = _by_size({"oneccl": make}, task, library.barrier)
    library.stop()
    return seen


def ucc(task: Mapping[str, Any]) -> Seen:
    """UCC's own program, which is the rank; that of rank 0 prints means for each size."""
    most = str(max(task["sizes"]) // 4)
    command = [task["program"], "-c", "allreduce", "-o", "sum", "-d", "float32", "-m", "host"]
    command += ["-i", "-b", "1", "-e", most, "-n", "20", "-w", "5"]
    # The launcher has left it a way to the other ranks in open files.
    ran = subprocess.run(command, capture_output=True, text=True, check=True, close_fds=False)
    means = {}
    for line in ran.stdout.splitlines():
        words = line.split()  # count, size, and of all ranks the average, the least and the most
        if len(words) == 5 and words[0].isdigit():
            means[int(words[1])] = float(words[2]) / 1e6
    if task["rank"] == 0 and not means.keys() >= set(task["sizes"]):
        raise RuntimeError(f"{task['program']} printed no time of some size:\n{ran.stdout}")
    return {
        f"ucc:{size}": {"starts": [0.0], "ends": [means.get(size, 0.0)], "cpu": [0.0]}
        for size in task["sizes"]
    }


def _by_size(ways: Mapping[str, Sum], task: Mapping[str, Any], align: Callable[[], object]) -> Seen:
    torch.set_num_threads(1)
    seen: Seen = {}
    for size in task["sizes"]:
        calls = 20 if size <= 1 << 16 else 5 if size <= 1 << 22 else 2
        data = Tensors([(str(size), (size // 4,))], task["rank"], task["ranks"])
        contenders = [
            Contender(
                name,
                make(data.tensors[0]),
                data.fill,
                check=partial(data.check_repeated_sum, calls),
            )
            for name, make in ways.items()
        ]
        found = take_turns(contenders, task["rounds"], align, calls=calls)
        seen |= {f"{name}:{size}": spans for name, spans in found.items()}
    return seen
