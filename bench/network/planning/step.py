"""Ranks of `bench.network.planning.row`: each contender trains in a new optimizer."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import aiacc.torch as hvd
from aiacc.planning.plan import ALL_REDUCE, Plan
from bench.collectives.tensors import Tensors
from bench.network.planning.device import Device, LayeredModel, Update
from bench.network.ranks import gloo
from bench.network.workloads import workload

#: The step in which parameters are updated, so that they can be checked: the first one with a plan.
_LEARNS = 1

Trained = tuple[torch.nn.Module, torch.optim.Optimizer]


def rank(task: Any) -> dict[str, Any]:
    """Run the contenders."""
    torch.set_num_threads(1)
    size = int(os.environ["AIACC_SIZE"])
    work = workload(task["workload"]).lasting(task["compute_s"])
    gradients = Tensors(work.shapes, int(os.environ["AIACC_RANK"]), size)
    found: dict[str, Any] = {}
    for number, one in enumerate(task["contenders"]):
        gradients.fill()
        device = Device(work)
        model = LayeredModel(gradients, device)
        with _trained(one, model, gradients.names, number) as trained:
            found[one["name"]] = {"samples": _steps(one, task["steps"], trained, device)}
            if one["kind"] != "none":
                parameters = [parameter.detach() for parameter in model.parameters()]
                gradients.check(parameters, -(size + 1) / 2)
        if one["kind"] == "aiacc" and one["plan"] != "auto":
            model = LayeredModel(gradients, device)
            with _trained(one, model, gradients.names, number, sent=False) as trained:
                found[one["name"]]["unsent"] = _unsent(one, task["steps"], trained, device)
        del model
        gc.collect()
    return found


def _steps(one: Any, steps: int, trained: Trained, device: Device) -> list[float]:
    seconds = []
    for number in range(1 + one["warmup"] + steps):
        Update.learning = number == _LEARNS
        seconds.append(_step_s(one, trained, device))
    if hasattr(trained[1], "flush"):  # what is decoupled goes on in the next forward pass
        trained[1].flush()
    return seconds[-steps:]


def _unsent(one: Any, steps: int, trained: Trained, device: Device) -> list[float]:
    """Steps in which nothing is sent; ranks begin together, as after one in which they wait."""
    seconds = []
    for _ in range(1 + steps):
        hvd.barrier()
        seconds.append(_step_s(one, trained, device))
    return seconds[1:]


def _step_s(one: Any, trained: Trained, device: Device) -> float:
    module, optimizer = trained
    began = time.perf_counter()
    optimizer.zero_grad(set_to_none=not one["views"])
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
        buckets = {"bucket_cap_mb": one["cap_mb"]}
        if one["limits_mib"]:
            buckets = {"bucket_cap_mb_list": one["limits_mib"]}
        with gloo(number, one["contexts"]):
            yield DistributedDataParallel(model, init_sync=False, **buckets), optimizer
    else:
        os.environ["AIACC_LANES"] = str(one["lanes"])
        ranks = [] if sent else range(int(os.environ["AIACC_SIZE"]))
        sets = [hvd.ProcessSet([rank]) for rank in ranks]
        hvd.init(process_sets=sets)
        own = hvd.global_process_set if sent else sets[hvd.rank()]
        ours = _ours(optimizer, zip(names, model.parameters(), strict=True), one, model, own)
        yield model, ours
        hvd.barrier()  # a rank that is alone in its set may be ahead of the others
        hvd.shutdown()


def _ours(optimizer: torch.optim.Optimizer, named: Any, one: Any, model: Any, own: Any) -> Any:
    plan = one["plan"]
    if plan is None or plan == "auto":
        return hvd.DistributedOptimizer(optimizer, named, plan=plan, process_set=own)
    decoded = Plan.decode(plan)
    if decoded.schedule == ALL_REDUCE:
        views = one["views"]
        return hvd.DistributedOptimizer(
            optimizer, named, plan=decoded, gradient_as_bucket_view=views, process_set=own
        )
    return hvd.DistributedOptimizer(
        optimizer, named, plan=decoded, schedule=decoded.schedule, model=model, process_set=own
    )
