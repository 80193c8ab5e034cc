"""Every wrong argument of every public function is named, with its value and what is expected."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn

import aiacc
import aiacc.array
import aiacc.torch as hvd
from aiacc import arguments, optim
from aiacc.capabilities import num_rank_is_power_2
from aiacc.collectives import handles
from aiacc.compression import codecs
from aiacc.data import CachedDataset, CachedIterable, CachedKeys, Topology
from aiacc.planning import planners
from aiacc.planning.plan import Plan
from aiacc.planning.trace import Trace
from tests.support.wrong_arguments import VALUES, refused, unexplained

MODEL = nn.Linear(2, 2)
SGD = torch.optim.SGD(MODEL.parameters(), 0.1)
ROWS = torch.ones(4, 2)
OF_KFAC = {"model": "", "lr": "None 5 1.5", "backward_passes_per_step": "None 5"}


def _set_passes(backward_passes_per_step):
    hvd.DistributedOptimizer(SGD).set_backward_passes_per_step(backward_passes_per_step)


OPERATIONS = [
    (front, name, rows, right)
    for front, rows, right in (
        (hvd, ROWS, {}),
        (hvd, nn.Parameter(ROWS), {}),
        (aiacc.array, ROWS.numpy(), {"tensor": "5 [0] -1 1.5 True"}),
    )
    for name in front.__all__
    if inspect.isfunction(function := getattr(front, name))
    if {"tensor", "tensors"} & set(inspect.signature(function).parameters)
    if name not in ("topk_threshold", "sparse_allreduce_async", "parallel_map")
]
SECONDS = dict.fromkeys(("predicted_s", "bound_s"), "5 -1 1.5")
OTHERS = [
    (hvd.sparse_allreduce_async, {"tensor": ROWS.to_sparse(), "name": "s", "op": hvd.Sum}, {}),
    (hvd.barrier, {}, {}),
    (hvd.poll, {}, {"handle": "5 -1 True"}),
    (hvd.synchronize, {}, {}),
    (hvd.init, {}, {}),
    (hvd.start_timeline, {"file_path": "never"}, {}),
    (hvd.ProcessSet, {}, {}),
    (hvd.remove_process_set, {}, {}),
    (hvd.broadcast_object, {"obj": 1}, {}),
    (hvd.allgather_object, {"obj": 1}, {}),
    (hvd.broadcast_parameters, {"params": [ROWS], "root_rank": 0}, {"params": ""}),
    (hvd.broadcast_optimizer_state, {"optimizer": SGD, "root_rank": 0}, {}),
    (hvd.DistributedOptimizer, {"optimizer": SGD}, {}),
    (_set_passes, {}, {}),
    (hvd.KFAC, {"model": MODEL, "optimizer": SGD}, OF_KFAC),
    (hvd.HookState, {}, {"named_parameters": "", "process_set": ""}),
    (hvd.SyncBatchNorm, {"num_features": 2}, {"momentum": "None 5 -1 1.5"}),
    (hvd.parallel_map, {"tensors": [ROWS], "function": torch.neg}, {"tensors": ""}),
    (hvd.topk_threshold, {"tensor": ROWS, "k": 1}, {}),
    (hvd.compile_blocks, {"model": MODEL}, {"model": ""}),
    (optim.LARS, {"params": [ROWS]}, {}),
    (optim.LAMB, {"params": [ROWS]}, {}),
    (optim.AdamSGD, {"params": [ROWS]}, {}),
    (optim.AdamSGD([ROWS]).follow, {}, {"share": ""}),
    (optim.linear_decay, {"optimizer": SGD, "total": 10}, {}),
    (optim.interpolation, {"begin": 1, "end": 6}, {}),
    (CachedDataset, {"dataset": [1], "fingerprint": "one"}, {"fingerprint": "None x"}),
    (CachedKeys, {"read": len, "fingerprint": "one"}, {"fingerprint": "x"}),
    (CachedIterable, {"source": [1]}, {"fingerprint": "None x"}),
    (Topology, {}, {"local_sizes": "", "node": "", "local_rank": ""}),
    (Plan, {"planner": "x", "buckets": (("a",),)}, {"lanes": "5", **SECONDS}),
    (Plan.decode, {}, {"text": "x"}),
    (Trace.decode, {}, {"text": "x"}),
    (codecs.parse, {}, {"text": "x"}),
    (planners.plan, {"trace": None, "cost": None}, {"name": "", "trace": "any", "cost": "any"}),
    (num_rank_is_power_2, {}, {"num_rank": "5 -1"}),
]


@pytest.fixture(autouse=True)
def job_of_one():
    aiacc.init()
    yield
    assert not handles.pending
    aiacc.shutdown()


@pytest.mark.parametrize(("front", "name", "rows", "right"), OPERATIONS)
def test_operations_refuse_each_wrong_argument(front, name, rows, right):
    function = getattr(front, name)
    names = inspect.signature(function).parameters
    given = {"tensor": rows} if "tensor" in names else {"tensors": [rows]}
    if "root_rank" in names:
        given["root_rank"] = 0
    if "op" in names:  # a scatter of another op is a CollectiveError, as in Horovod
        right = {**right, "op": "None 5" if "average" in names else "5 -1"}
    assert unexplained(function, given, **right) == []


@pytest.mark.parametrize(("function", "given", "right"), OTHERS)
def test_each_wrong_argument_is_refused(function, given, right):
    assert unexplained(function, given, **right) == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    {
        "root_rank": "None x [0] -1 1.5 True object",
        "op": "None x [0] -1 1.5 True object",
        "name": "5 [0] -1 1.5 True object",
        "average": "5 x [0] -1 1.5 object",
        "prescale_factor": "None x [0] object",
        "process_set": "None 5 x [0] -1 1.5 True object",
        "backward_passes_per_step": "None x [0] -1 1.5 True object",
        "sparse_as_dense": "None 5 x [0] -1 1.5 object",
        "lr": "None x [0] -1 True object",
        "seed": "None x [0] 1.5 True object",
        "exclude": "5 [0] -1 1.5 True object",
        "evict": "None 5 x [0] -1 1.5 True object",
    }.items(),
)
def test_what_the_table_refuses(name, wrong):
    assert " ".join(label for label in VALUES if refused(name, VALUES[label])) == wrong


def test_what_horovod_takes_is_taken():
    for given in (
        {"root_rank": np.int64(0), "op": np.int32(1), "seed": torch.tensor(3), "average": 1},
        {"prescale_factor": np.float32(2), "lr": torch.tensor(0.1), "average": np.bool_(True)},
    ):
        arguments.check(given)
    total = hvd.allreduce(ROWS, op=np.int64(1), prescale_factor=np.float32(2))
    assert torch.equal(total, 2 * ROWS)
    assert torch.equal(hvd.allreduce_(ROWS.clone(), op=np.int64(1), name=np.str_("n")), ROWS)
    assert torch.equal(hvd.broadcast(ROWS, np.int64(0), name=""), ROWS)
