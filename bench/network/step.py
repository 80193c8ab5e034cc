"""Ranks that train as contenders say, each in a new optimizer, on a device that is modelled."""

from __future__ import annotations

import gc
import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import aiacc
import aiacc.torch as hvd
from aiacc.compression.compressor import AUTO
from aiacc.planning.plan import ALL_REDUCE, Plan
from aiacc.run import probe as aiacc_probe
from bench.collectives.tensors import BFLOAT16_EXACT, Tensors
from bench.network.device import Device, LayeredModel, Update
from bench.network.workloads import workload
from bench.shapes import Shape

#: The step in which parameters are updated, so that they can be checked: the first one with a plan.
_LEARNS = 1
#: Of torch's PowerSGD: rank of the matrices, and the first step in which it compresses, for DDP
#: forms its buckets anew after the first.
_RANK, _START = 4, 2

#: Operations at a time that are probed; more of them share what these had.
_PROBED_LANES = 2
#: So long threads of gloo have to drop what a communication hook has left there. Without that they
#: hold the last reference to the group, which cannot join itself, or need Python when that is gone.
_DROP_S = 1.0

Trained = tuple[torch.nn.Module, torch.optim.Optimizer]


class _Random:
    """Gradients that lossy codes leave unknown. They take a quarter of the memory of `Tensors`."""

    def __init__(self, shapes: list[tuple[str, Shape]]) -> None:
        self.names = [name for name, _ in shapes]
        self.tensors = [torch.empty(shape) for _, shape in shapes]

    def fill(self) -> None:
        for tensor in self.tensors:
            tensor.normal_()


def rank(task: Any) -> dict[str, Any]:
    """Run the contenders, see `bench.network.cells.Contender`.

    Args:
        task: Besides what `bench.network.cells.measured` adds: "workload"; "compute_s", which the
            device takes; "checked": whether gradients are numbers whose averages are known.
    """
    torch.set_num_threads(1)
    rank, size = task["rank"], int(os.environ["AIACC_SIZE"])
    torch.manual_seed(rank)
    work = workload(task["workload"]).lasting(task["compute_s"])
    checked, steps = task["checked"], task["steps"]
    data = Tensors(work.shapes, rank, size, BFLOAT16_EXACT) if checked else _Random(work.shapes)
    found: dict[str, Any] = {}
    for number, one in enumerate(task["contenders"]):
        data.fill()
        device, said = Device(work), io.StringIO()  # what "auto" has chosen
        model = LayeredModel(data.tensors, device, own=checked)
        hearing = redirect_stderr(said) if one["compression"].startswith(AUTO) else nullcontext()
        with hearing, _trained(one, model, data.names, number) as trained:
            seconds = _steps(one, one["warmup"] + steps, trained, device, learns=checked)
            found[one["name"]] = {"samples": seconds[-steps:]}
            if one["kind"] == "aiacc":
                found[one["name"]] |= _counted(len(seconds))
            if isinstance(data, Tensors) and one["kind"] != "none":
                parameters = [parameter.detach() for parameter in model.parameters()]
                data.check(parameters, -(size + 1) / 2)
        if said.getvalue():
            found[one["name"]]["said"] = said.getvalue().splitlines()
        if one["unsent"]:
            model = LayeredModel(data.tensors, device, own=checked)
            with _trained(one, model, data.names, number, sent=False) as trained:
                seconds = _steps(one, 1 + steps, trained, device, learns=False, sent=False)
                found[one["name"]]["unsent"] = seconds[1:]
        del model
        gc.collect()
    return found


def _counted(steps: int) -> dict[str, Any]:
    stats = aiacc.stats()
    means = {f"{name}_per_step": stats[name] / steps for name in ("rounds", "control_bytes")}
    return {"lanes": stats["lanes"], **means}


def _steps(
    one: Any, number: int, trained: Trained, device: Device, *, learns: bool, sent: bool = True
) -> list[float]:
    """Seconds of so many steps; where nothing is sent, ranks begin each of them together."""
    seconds = []
    for step in range(number):
        if not sent:
            hvd.barrier()
        Update.learning = learns and step == _LEARNS
        seconds.append(_step_s(one, trained, device))
    if hasattr(trained[1], "flush"):  # what is decoupled goes on in the next forward pass
        trained[1].flush()
    return seconds


def _step_s(one: Any, trained: Trained, device: Device) -> float:
    module, optimizer = trained
    began = time.perf_counter()
    optimizer.zero_grad(set_to_none=one["kind"] == "ddp" or not one["views"])
    device.begin()
    loss = module(torch.zeros(()))
    loss.backward()
    del loss  # now, for it takes its time
    device.end()
    optimizer.step()
    return time.perf_counter() - began


@contextmanager
def _trained(
    one: Any, model: LayeredModel, names: list[str], number: int, sent: bool = True
) -> Iterator[Trained]:
    """What is called, and what steps.

    Unless ``sent``, each rank trains in a process set of its own: it does all that the others'
    steps do, and nothing leaves it.
    """
    optimizer: torch.optim.Optimizer = Update(model.parameters())
    if one["kind"] == "none":
        yield model, optimizer
    elif one["kind"] == "ddp":
        with _gloo(number, one["contexts"]):
            yield _ddp(one, model), optimizer
    else:
        with mock.patch.dict(os.environ, one["variables"]):
            ranks = [] if sent else range(int(os.environ["AIACC_SIZE"]))
            sets = [hvd.ProcessSet([rank]) for rank in ranks]
            hvd.init(process_sets=sets)
            own = hvd.global_process_set if sent else sets[hvd.rank()]
            named = zip(names, model.parameters(), strict=True)
            options = {"process_set": own, **_options(one, model)}
            yield model, hvd.DistributedOptimizer(optimizer, named, **options)
            hvd.barrier()  # a rank that is alone in its set may be ahead of the others
            hvd.shutdown()


def _options(one: Any, model: LayeredModel) -> dict[str, Any]:
    """Of `DistributedOptimizer`."""
    plan, codec = one["plan"], one["compression"]
    if plan is not None and plan != "auto":
        plan = Plan.decode(plan)
        if plan.schedule != ALL_REDUCE:
            return {"plan": plan, "schedule": plan.schedule, "model": model}
    return {
        "plan": plan,
        "groups": one["groups"],
        "compression": attrgetter(codec)(hvd) if codec.startswith("Compression.") else codec,
        "gradient_as_bucket_view": one["views"],
    }


def _ddp(one: Any, model: LayeredModel) -> DistributedDataParallel:
    buckets: dict[str, Any] = {"bucket_cap_mb": one["cap_mb"]}
    if one["limits_mib"]:
        buckets = {"bucket_cap_mb_list": one["limits_mib"]}
    views = one["views"]
    module = DistributedDataParallel(
        model, init_sync=False, gradient_as_bucket_view=views, **buckets
    )
    if one["hook"] == "fp16":
        module.register_comm_hook(None, fp16_compress_hook)
    elif one["hook"] == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=_RANK, start_powerSGD_iter=_START
        )
        module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return module


@contextmanager
def _gloo(number: int, contexts: int = 1) -> Iterator[None]:
    """Open a process group of torch over gloo.

    Args:
        number: Of those that the job has had, for a port of its own.
        contexts: How often the interface is listed, each time with connections of its own.
    """
    host, _, port = os.environ["AIACC_ADDR"].rpartition(":")
    os.environ["GLOO_SOCKET_IFNAME"] = ",".join(["eth0"] * contexts)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{host}:{int(port) + 1 + number}",
        rank=int(os.environ["AIACC_RANK"]),
        world_size=int(os.environ["AIACC_SIZE"]),
    )
    yield
    time.sleep(_DROP_S)
    dist.destroy_process_group()


def probe(task: Any) -> Any:
    """The network as `aiacc-plan probe` measures it, on rank 0."""
    path = Path(task["folder"], "network.json")
    aiacc_probe.probe(path, task["mib"] << 20, _PROBED_LANES)
    return json.loads(path.read_text()) if task["rank"] == 0 else None
