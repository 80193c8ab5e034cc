"""Every wrong argument of every public function is named, with its value and what is expected."""

import inspect
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import aiacc
import aiacc.array
import aiacc.data
import aiacc.torch as hvd
from aiacc import arguments, optim
from aiacc.compression import codecs, feedback
from aiacc.compression.policy import Policy
from aiacc.planning import cost, plan, planners, trace
from tests.support.wrong_arguments import VALUES, parameters_of, public, refused, unexplained

pytestmark = pytest.mark.usefixtures("job_of_one")

MODEL = nn.Linear(2, 2)
SGD = torch.optim.SGD(MODEL.parameters(), 0.1)
ROWS = torch.ones(4, 2)
ONE = trace.Trace("", (trace.Tensor("", 1, "float32", 1.0, 0.0),), 0.0, 1.0, "modelled")


def _set_passes(backward_passes_per_step):
    hvd.DistributedOptimizer(SGD).set_backward_passes_per_step(backward_passes_per_step)


#: Of what has no default.
GIVEN = {
    **{"optimizer": SGD, "model": MODEL, "root_rank": 0, "obj": 1, "params": [ROWS], "k": 1},
    **{"function": torch.neg, "num_features": 2, "file_path": "never", "total": 10, "begin": 1},
    **{"end": 6, "dataset": [1], "read": len, "source": [1], "planner": "x", "fingerprint": "one"},
    **{
        "buckets": (("a",),),
        "name": "int8",
        "codec": codecs.MSTopK(),
        "trace": ONE,
        "cost": cost.Affine(1, 1),
    },
}
#: Of functions that are no attributes of a front-end.
OTHERS = SimpleNamespace(
    **{kind.__name__: kind for kind in (codecs.MSTopK, codecs.PowerSGD, codecs.Quantised)},
    **{kind.__name__: kind for kind in (feedback.Residual, feedback.Momentum, Policy)},
    set_passes=_set_passes,
    follow=optim.AdamSGD([ROWS]).follow,
    Plan=plan.Plan,
    decode=plan.Plan.decode,
    decode_trace=trace.Trace.decode,
    plan=planners.plan,
    parse=codecs.parse,
    power_of_two=aiacc.capabilities.num_rank_is_power_2,
)
OTHERS.__all__ = list(vars(OTHERS))
#: What is right, by the name of the function.
SPECIAL = {
    "KFAC": {"model": "", "lr": "None 5 1.5", "backward_passes_per_step": "None 5"},
    "HookState": {"process_set": "", "named_parameters": "bytes"},
    "SyncBatchNorm": {"momentum": "None 5 -1 1.5"},
    "parallel_map": {"tensors": "bytes"},
    "compile_blocks": {"model": ""},
    "poll": {"handle": "5 -1 True"},
    "add_process_set": {"process_set": "any"},
    "broadcast_parameters": {"params": ""},
    "CachedKeys": {"fingerprint": "x"},
    "follow": {"share": ""},
    "Quantised": {"name": "", "stochastic": "True"},
    "Momentum": {"momentum": "", "masking": "True", "nesterov": "True"},
    "Policy": {
        **dict.fromkeys(("least_elements", "dense_steps", "stages", "stage_steps"), "5"),
        **{"feedback": "None", "exclude": ""},
    },
    "PowerSGD": {"rank": "5"},
    "plan": {"name": "", "cost": ""},
}
#: Horovod's way to look for an extension, torch's to call a hook, and what is not a user's.
SKIPPED = ("check_extension", "allreduce_hook", "Statistics", "one_dimensional")
#: Also given, to functions that have them.
ALSO = ({}, {"compression": hvd.Compression.bf16}, {"tensor": nn.Parameter(ROWS)})


def _not_refused(front, name, also):
    """Calls with a wrong argument."""
    function = getattr(front, name)
    parameters = parameters_of(function)
    if also and not {"tensor", *also} <= parameters.keys():
        return []
    needed = {n for n, one in parameters.items() if one.default is inspect.Parameter.empty}
    rows = ROWS.numpy() if front is aiacc.array else ROWS.to_sparse() if "sparse" in name else ROWS
    given = {"tensor": rows, "tensors": [rows], "op": hvd.Sum, **GIVEN}
    given = {n: given[n] for n in needed & given.keys()} | also
    right = dict(SPECIAL.get(name, {}))
    if front is aiacc.array:
        right["tensor"] = "5 [0] -1 1.5 True nan inf"
    if "average" in parameters:
        right["op"] = "None 5"
    elif "scatter" in name:  # of another op it is a CollectiveError, as in Horovod
        right["op"] = "5 -1"
    return unexplained(function, given, right)


@pytest.mark.parametrize("front", [hvd, aiacc.array, aiacc.data, optim, OTHERS])
def test_each_wrong_argument_is_refused(front):
    found = []
    for _, name in public(front, SKIPPED):
        for also in ALSO if front is hvd and "sparse" not in name else ALSO[:1]:
            found += _not_refused(front, name, also)
    assert found == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    {
        "root_rank": "None x [0] -1 1.5 True object nan inf bytes",
        "op": "None x [0] -1 1.5 True object nan inf bytes",
        "name": "5 [0] -1 1.5 True object nan inf bytes",
        "average": "5 x [0] -1 1.5 object nan inf bytes",
        "prescale_factor": "None x [0] object nan inf bytes",
        "process_set": "None 5 x [0] -1 1.5 True object nan inf bytes",
        "backward_passes_per_step": "None x [0] -1 1.5 True object nan inf bytes",
        "sparse_as_dense": "None 5 x [0] -1 1.5 object nan inf bytes",
        "lr": "None x [0] -1 True object nan bytes",
        "seed": "None x [0] 1.5 True object nan inf bytes",
        "exclude": "5 [0] -1 1.5 True object nan inf bytes",
        "evict": "None 5 x [0] -1 1.5 True object nan inf bytes",
    }.items(),
)
def test_what_the_table_refuses(name, wrong):
    assert " ".join(label for label in VALUES if refused(name, VALUES[label])) == wrong


@pytest.mark.parametrize("name", ["bucket_bytes", "gradient_predivide_factor"])
@pytest.mark.parametrize(
    "wrong", [np.str_("z"), np.ones(2), torch.tensor([1j]), torch.ones(1, device="meta")]
)
def test_what_only_looks_like_a_number_is_none(name, wrong):
    with pytest.raises((TypeError, ValueError), match=rf"^{name}=.*\(expected a "):
        hvd.DistributedOptimizer(SGD, **{name: wrong})


@pytest.mark.parametrize(
    "call",
    [
        lambda: hvd.allgather(ROWS, ROWS),
        lambda: hvd.allreduce_(ROWS.clone(), name=ROWS),
        lambda: hvd.allreduce_(ROWS.clone(), postscale_factor=ROWS),
        lambda: hvd.allreduce(ROWS, prescale_factor=ROWS),
        lambda: aiacc.array.broadcast(1.0, 0, ROWS),
    ],
)
def test_a_tensor_is_refused_in_the_place_of_another_argument(call):
    with pytest.raises(TypeError, match=r"(?s)^(name|\w+_factor)=tensor\(.* \(expected a "):
        call()


@pytest.mark.parametrize(
    ("function", "name", "wrong"),
    [
        (hvd.poll, "handle", 1 << 70),
        (hvd.SyncBatchNorm, "num_features", 1 << 70),
        (partial(hvd.KFAC, MODEL, SGD), "loss_terms", torch.ones(2)),
        (partial(aiacc.data.CachedKeys, len), "fingerprint", torch.ones(2)),
    ],
)
def test_what_fits_no_place_is_refused(function, name, wrong):
    with pytest.raises((TypeError, ValueError), match=rf"^{name}=.* \(expected "):
        function(**{name: wrong})


def test_what_horovod_takes_is_taken():
    for given in (
        {"root_rank": np.int64(0), "op": np.int32(1), "seed": torch.tensor(3), "average": 1},
        {"prescale_factor": np.float32(2), "lr": torch.tensor(0.1), "average": np.bool_(True)},
    ):
        arguments.check(given)
    aiacc.shutdown()
    aiacc.init([])
    total = hvd.allreduce(ROWS, op=np.int64(1), prescale_factor=np.float32(2))
    assert torch.equal(total, 2 * ROWS)
    assert torch.equal(hvd.allreduce_(ROWS.clone(), op=np.int64(1), name=np.str_("n")), ROWS)
    assert torch.equal(hvd.broadcast(ROWS, np.int64(0), name=""), ROWS)
