"""One rank of a job in which contenders take turns; rank 0 writes what their steps took.

Started by `bench.network.planning.measure`, in a virtual host, with the path of a JSON file:
workload and seconds of its computation, contenders, steps, and where results go.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import aiacc.torch as hvd
from aiacc.collectives.objects import maxima
from aiacc.planning.plan import ALL_REDUCE, Plan
from bench.collectives.tensors import Tensors
from bench.network.planning.device import Device, LayeredModel, Update
from bench.network.workloads import workload

#: The step in which parameters are updated, so that they can be checked: the first one with a plan.
_LEARNS = 1

Trained = tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], dict[str, Any]]]


class SkippedError(Exception):
    """A contender that this aiacc does not know."""


def main() -> None:
    """Run the contenders, one after the other."""
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    rank, size = int(os.environ["AIACC_RANK"]), int(os.environ["AIACC_SIZE"])
    work = workload(job["workload"]).lasting(job["compute_s"])
    gradients = Tensors(work.shapes, rank, size)
    found: dict[str, Any] = {}
    for number, task in enumerate(job["contenders"]):
        gradients.fill()
        device = Device(work)
        model = LayeredModel(gradients, device)
        try:
            with _trained(task, model, gradients.names, number) as trained:
                found[task["name"]] = _measure(task, job["steps"], trained, device)
                if task["kind"] != "none":
                    parameters = [parameter.detach() for parameter in model.parameters()]
                    gradients.check(parameters, -(size + 1) / 2)
            if task["unsent"]:
                model = LayeredModel(gradients, device)
                with _trained(task, model, gradients.names, number, sent=False) as trained:
                    found[task["name"]]["unsent_s"] = _unsent(task, job["steps"], trained, device)
        except SkippedError as reason:
            found[task["name"]] = {"skipped": str(reason)}
        del model
        gc.collect()
        if rank == 0:
            Path(job["output"]).write_text(json.dumps(found))


def _measure(task: Any, steps: int, trained: Trained, device: Device) -> dict[str, Any]:
    forward_s, backward_s, seconds = [], [], []
    for number in range(1 + task["warmup"] + steps):
        Update.learning = number == _LEARNS
        began = time.perf_counter()
        forward, backward, end = _step(task, trained, device)
        forward_s.append(forward - began)
        backward_s.append(backward - forward)
        seconds.append(end - began)
    counted = slice(1 + task["warmup"], None)
    return {
        "seconds": seconds[counted],
        "forward_s": forward_s[counted],
        "backward_s": backward_s[counted],
        **trained[2](),
    }


def _step(task: Any, trained: Trained, device: Device) -> tuple[float, float, float]:
    """When the forward pass, the backward pass and the step have ended."""
    module, optimizer, _ = trained
    optimizer.zero_grad(set_to_none=not task["views"])
    device.begin()
    loss = module(torch.zeros(()))
    forward = time.perf_counter()
    loss.backward()
    del loss  # now, for it takes its time
    device.end()
    backward = time.perf_counter()
    optimizer.step()
    return forward, backward, time.perf_counter()


def _unsent(task: Any, steps: int, trained: Trained, device: Device) -> list[float]:
    """Seconds of steps in which nothing is sent, in each those of the slowest rank.

    Ranks begin together, as after a step in which they wait for each other.
    """
    found = []
    for _ in range(1 + steps):
        began = time.perf_counter()
        found += maxima([_step(task, trained, device)[-1] - began], "slowest")
    return found[1:]


@contextmanager
def _trained(
    task: Any, model: LayeredModel, names: list[str], number: int, sent: bool = True
) -> Iterator[Trained]:
    """What is called, what steps, and what the result says besides.

    Unless ``sent``, each rank trains in a process set of its own: it does all that the others'
    steps do, and nothing leaves it.
    """
    optimizer: torch.optim.Optimizer = Update(model.parameters())
    if task["kind"] == "none":
        yield model, optimizer, dict
    elif task["kind"] == "ddp":
        host, _, port = os.environ["AIACC_ADDR"].rpartition(":")
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{host}:{int(port) + 1 + number}",
            rank=int(os.environ["AIACC_RANK"]),
            world_size=int(os.environ["AIACC_SIZE"]),
        )
        module = DistributedDataParallel(
            model, init_sync=False, bucket_cap_mb_list=task["limits_mib"]
        )
        yield module, optimizer, lambda: _buckets_of(module)
        dist.destroy_process_group()
    else:
        os.environ["AIACC_LANES"] = str(task["lanes"])
        ranks = [] if sent else range(int(os.environ["AIACC_SIZE"]))
        sets = [hvd.ProcessSet([rank]) for rank in ranks]
        hvd.init(process_sets=sets)
        own = hvd.global_process_set if sent else sets[hvd.rank()]
        named = list(zip(names, model.parameters(), strict=True))
        ours = _ours(optimizer, named, task, model, own)
        yield model, ours, lambda: _counts(ours)
        hvd.barrier()  # a rank that is alone in its set may be ahead of the others
        hvd.shutdown()


def _ours(optimizer: torch.optim.Optimizer, named: Any, task: Any, model: Any, own: Any) -> Any:
    plan = task["plan"]
    if plan is None:
        return hvd.DistributedOptimizer(optimizer, named, process_set=own)
    if plan == "auto":
        try:
            return hvd.DistributedOptimizer(optimizer, named, plan=plan)  # type: ignore[arg-type]
        except (TypeError, ValueError, AttributeError) as error:
            hvd.shutdown()
            raise SkippedError(f'plan="auto": {error}') from error
    decoded = Plan.decode(plan)
    if decoded.schedule == ALL_REDUCE:
        return hvd.DistributedOptimizer(
            optimizer,
            named,
            plan=decoded,
            gradient_as_bucket_view=task["views"],
            process_set=own,
        )
    return hvd.DistributedOptimizer(
        optimizer, named, plan=decoded, schedule=decoded.schedule, model=model, process_set=own
    )


def _counts(optimizer: Any) -> dict[str, Any]:
    import aiacc

    if hasattr(optimizer, "flush"):
        optimizer.flush()
    stats = aiacc.stats()
    return {"lanes": stats["lanes"], "rounds": stats["rounds"]}


def _buckets_of(module: DistributedDataParallel) -> dict[str, Any]:
    """How many buckets DDP has made in the end; torch has no public way to ask."""
    sizes = str(module._get_ddp_logging_data().get("rebuilt_bucket_sizes", ""))
    return {"buckets": len(sizes.split(",")) if sizes else 0}


if __name__ == "__main__":
    main()
