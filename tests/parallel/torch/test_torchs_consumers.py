"""What torch makes of our work and futures in C++: whatever takes them, steps succeed or raise."""

import ctypes
import itertools
import os
import signal
import traceback
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import fsdp
from torch.distributed._composable.replicate import replicate
from torch.distributed._tensor import DTensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import aiacc
import aiacc.torch as hvd
from tests.support.process_group import leave
from tests.support.ranks import run_ranks


def _ddp(hook=None, state=lambda: None, builtin=None, bucket_cap_mb=0.001, **options):
    def wrap(model):
        model[0].weight.data.add_(dist.get_rank())  # those of rank 0 are sent
        wrapped = DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb, **options)
        if builtin is not None:
            wrapped._register_builtin_comm_hook(builtin)
        if hook is not None:
            wrapped.register_comm_hook(state(), hook)
        return wrapped

    return wrap


def _on_mesh(apply, *shape, **options):
    def wrap(model):
        mesh = init_device_mesh("cpu", shape or (dist.get_world_size(),), **options)
        return [apply(part, mesh=mesh) for part in (*model, model)][-1]

    return wrap


def _functional(model):
    def reduce(parameter):
        parameter.grad.copy_(functional.all_reduce(parameter.grad, "avg", dist.group.WORLD))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(reduce)
    return model


def _power_sgd():
    return powerSGD_hook.PowerSGDState(None, 3, start_powerSGD_iter=2, min_compression_rate=1)


#: How gradients are reduced.
CONSUMERS = {
    "DDP": _ddp(),
    "views": _ddp(gradient_as_bucket_view=True),
    "static graph": _ddp(static_graph=True),
    "unused parameters": _ddp(find_unused_parameters=True),
    "built-in all-reduce": _ddp(builtin=dist.BuiltinCommHookType.ALLREDUCE),
    "built-in float16": _ddp(builtin=dist.BuiltinCommHookType.FP16_COMPRESS),
    "torch's float16": _ddp(default_hooks.fp16_compress_hook),
    # In one bucket: callbacks of several ones call operations in any order.
    "torch's PowerSGD": _ddp(powerSGD_hook.powerSGD_hook, _power_sgd, bucket_cap_mb=25),
    "our hook": _ddp(hvd.allreduce_hook),
    "our hook on gloo": _ddp(hvd.allreduce_hook, lambda: hvd.global_process_set),
    "our hook on gloo, int8": _ddp(hvd.allreduce_hook, lambda: hvd.HookState(compression="int8")),
    "composable DDP": lambda model: replicate(model, bucket_cap_mb=0.0001),
    "functional": _functional,
}
if hasattr(fsdp, "fully_shard"):  # not in torch 2.4, whose FSDP2 is one for GPUs
    from torch.distributed._composable import replicate_with_fsdp

    CONSUMERS["FSDP2"] = _on_mesh(fsdp.fully_shard)
    CONSUMERS["HSDP"] = _on_mesh(fsdp.fully_shard, 2, 2, mesh_dim_names=("replicate", "shard"))
    CONSUMERS["replicate of FSDP2"] = _on_mesh(replicate_with_fsdp.replicate)
needs_fsdp2 = pytest.mark.skipif("FSDP2" not in CONSUMERS, reason="torch has no FSDP2 but on GPUs")
#: Those whose errors take ways of their own.
DIFFERENT = ("DDP", "static graph", "built-in float16", "our hook", "FSDP2", "functional")
NARROW = ("built-in float16", "torch's float16", "our hook on gloo, int8")


def _wait_for_the_other(store):
    store.wait(["raised"])


#: What rank 1 does before a step, what the other one is told, and settings.
EVENTS = {
    "succeeds": (None, None, {}),
    "dies": (lambda _: os.kill(os.getpid(), signal.SIGKILL), "rank 1", {}),
    "raises": (lambda _: {}["a key"], "rank 1", {}),
    "gives NaN": (None, "rank 1 gave NaN", {"AIACC_CHECK_FINITE": "raise"}),
    "is late": (_wait_for_the_other, r": rank 1 did not come within its timeout of 0\.5 s", {}),
    "stalls": (_wait_for_the_other, r"waited .* rank\(s\) 1", {"AIACC_STALL_FAIL_S": "4"}),
}
#: With which rank 1 ends; else with 1. What takes the future sees no other difference.
ENDS = {"succeeds": 0, "dies": -signal.SIGKILL}


def _train(wrap, rank=0, size=1, disturb=lambda batch: batch):
    """The parameters after six steps; before the fourth one ``disturb`` may change the batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.Linear(24, 10), nn.Linear(10, 3))
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.linspace(-1, 1, 72).reshape(12, 6).sin().chunk(size)[rank]
    for step in range(6):
        if step == 3:
            batch = disturb(batch)
        optimizer.zero_grad()
        wrapped(batch).square().mean().backward()
        optimizer.step()
    return [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]


def _be_rank(rank, size, consumer, event, path):
    misdeed, text, settings = EVENTS[event]
    os.environ.update(settings)
    backend, store = "aiacc", dist.FileStore(path, size)
    if "on gloo" in consumer:
        backend, os.environ["AIACC_ENGINE"] = "gloo", "tcp"  # where int8 is coded
        hvd.init()
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    before = aiacc.stats()["tensors"]

    def disturb(batch):
        if rank == 0 and event == "is late":
            dist.group.WORLD.set_timeout(timedelta(seconds=0.5))
        if rank == 1 and misdeed is not None:
            misdeed(store)
        return batch * float("nan") if rank == 1 and event == "gives NaN" else batch

    if text is not None and rank == 0:
        with pytest.raises(RuntimeError, match=text):
            _train(CONSUMERS[consumer], rank, size, disturb)
        store.set("raised", b"")
    else:
        trained = _train(CONSUMERS[consumer], rank, size, disturb)
        close = {"atol": 0.02 if consumer in NARROW else 1e-5, "rtol": 1e-4}
        torch.testing.assert_close(trained, _train(lambda model: model), **close)
        assert aiacc.stats()["tensors"] > before + 6
    leave()


def _end_as_expected(size, children, event, folder):
    """Be the rank in children, one after the other, which leave as programs do."""
    rank, code = int(os.environ["AIACC_RANK"]), 1
    for consumers in children:
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # before torch's own threads do, whose first calls race
            try:
                for consumer in consumers:
                    _be_rank(rank, size, consumer, event, f"{folder}/{consumer}")
                code = 0
            except BaseException as error:  # the code tells it
                getattr(error, "add_note", print)(f"with {consumer}")
                traceback.print_exc()
            ctypes.pythonapi.Py_Exit(code)
        end = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert end == (ENDS.get(event, 1) if rank == 1 else 0), consumers


#: Consumers of one process, which has one engine.
TOGETHER = [
    [name for name in CONSUMERS if name != "HSDP" and ("on gloo" in name) == on_gloo]
    for on_gloo in (False, True)
]


def _cases():
    """Numbers of ranks, consumers of each child, and what comes to pass."""
    yield 3, [[name for name in ("DDP", "FSDP2") if name in CONSUMERS]], "succeeds"
    yield pytest.param(4, [["HSDP"]], "succeeds", marks=needs_fsdp2)
    yield from ((2, TOGETHER, "succeeds"), (2, [[n] for n in DIFFERENT if n in CONSUMERS], "dies"))
    for consumer in itertools.chain(*TOGETHER):
        for event in EVENTS:
            if "our hook" not in consumer or event != "is late":  # it is no operation of a group
                by_day = consumer == "DDP" and event not in ENDS
                name, marks = f"{consumer} {event}", [] if by_day else pytest.mark.nightly
                yield pytest.param(2, [[consumer]], event, id=name, marks=marks)


@pytest.mark.parametrize(("size", "children", "event"), _cases())
def test_steps_succeed_or_raise(size, children, event, tmp_path):
    run_ranks(size, _end_as_expected, size, children, event, str(tmp_path))
