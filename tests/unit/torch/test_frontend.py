"""aiacc.torch in a job of one rank: what it refuses and why, names, optimizers."""

import ast
import functools
import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.distributed._tensor import Shard, distribute_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.masked import masked_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._device import _device_constructors

import aiacc
import aiacc.torch as hvd
from aiacc import _core
from aiacc.collectives.dtypes import core_code, factor_of
from aiacc.optim import AdamSGD
from aiacc.planning.plan import Plan
from aiacc.process_sets import ProcessSet
from aiacc.torch.adapter import DTYPE_CODES, MOVED
from aiacc.torch.distributed.work import Limit
from aiacc.torch.reducer.plan import numbered
from aiacc.torch.wrapped_optimizer import REPLACED

pytestmark = pytest.mark.usefixtures("job_of_one")

GOOD = torch.ones(2, 3)
REFUSED = [
    (GOOD.T, ValueError, r"strides \(1, 3\).*contiguous\(\)"),
    (GOOD.to("meta"), ValueError, r"device meta.*to_empty\(device=\.\.\.\)"),
    ([1.0], TypeError, r"list.*torch\.as_tensor"),
]


def _form(name, *args):
    return lambda tensor, **options: getattr(hvd, name)(tensor, *args, **options)


def _forms(verb, *args):
    names = [verb + form for form in ("", "_", "_async", "_async_")]
    return [_form(name, *args) for name in names if hasattr(hvd, name)]


SIMPLE = _forms("allreduce") + _forms("broadcast", 0) + _forms("allgather")


@pytest.mark.parametrize("call", SIMPLE)
@pytest.mark.parametrize(("tensor", "kind", "text"), REFUSED)
def test_refusal_names_value_expectation_and_remedy(call, tensor, kind, text):
    with pytest.raises(kind, match=rf"'bad'.*{text}"):
        call(tensor, name="bad")
    with pytest.raises(kind, match=rf"an unnamed (allreduce|allgather|broadcast): .*{text}"):
        call(tensor, name=None)


def _nested():
    return torch._nested_tensor_from_tensor_list([torch.ones(2), torch.ones(1)])


_SINGLE = hvd.allreduce, hvd.allgather, _form("broadcast", 0), hvd.alltoall, hvd.reducescatter
_GROUPED = hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter
DIFFERENTIABLE = [
    *(lambda tensor, call=call: [call(tensor)] for call in _SINGLE),
    *(lambda tensor, call=call: call([GOOD, tensor]) for call in _GROUPED),
]
OTHER = ProcessSet([0])
CALLS = [
    (lambda: hvd.allgather(torch.tensor(1.0)), r"reshape\(1\)"),
    (lambda: hvd.allreduce(GOOD.to_sparse()), r"sparse_coo.*to_dense\(\)"),
    *(
        (lambda call=call, dtype=dtype: call(GOOD.to(dtype)), f"{dtype}.*bfloat16.*{remedy}")
        for call in (hvd.allreduce, hvd.allreduce_async_, hvd.reducescatter)
        for dtype, remedy in (
            (torch.complex64, r"view_as_real\(tensor\), and torch.view_as_complex"),
            (torch.float8_e5m2, r"tensor\.float\(\)"),
        )
    ),
    *(
        (lambda call=call: call(torch.ones(3, dtype=torch.uint8).view(torch.int4)), "int4.*uint8")
        for call in (hvd.allreduce, hvd.allreduce_, hvd.allreduce_async_, hvd.reducescatter)
        if hasattr(torch, "int4")
    ),
    (lambda: hvd.broadcast(GOOD.to(torch.complex64).conj(), 0), r"conjugate.*resolve_conj\(\)"),
    (lambda: hvd.broadcast_parameters([GOOD, _nested()], 0), r"nested Tensor.*tensor\.unbind\(\)"),
    *(
        (lambda call=call: call(GOOD, name="\ud800"), r"name='.ud800' .*UTF-8")
        for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather)
    ),
    (
        lambda: hvd.broadcast_parameters({"a": GOOD.T, "b": GOOD[0].expand(2, 3)}, 0),
        "'b'.*memory for",
    ),
    (lambda: hvd.broadcast_parameters(nn.LazyLinear(3).state_dict(), 0), "'bias'.*lazy module"),
    (lambda: hvd.allreduce_(nn.LazyLinear(3).weight), "lazy module"),
    (lambda: hvd.allreduce_(_nested()), r"nested Tensor.*tensor\.unbind\(\)"),
    (lambda: hvd.allgather(_nested()), r"nested Tensor.*tensor\.unbind\(\)"),
    (lambda: hvd.allgather(torch.quantize_per_tensor(GOOD, 1, 0, torch.qint8)), r"int_repr\(\)"),
    (lambda: hvd.grouped_allreduce_([GOOD[1:], torch.ones(2), GOOD]), "tensors 0 and 2 share"),
    (lambda: hvd.allreduce(GOOD, average=True, op=hvd.Sum), "average=True and op=Sum"),
    (lambda: hvd.allreduce_async_(GOOD, False, None, hvd.Sum), "average=False and op=Sum"),
    (lambda: hvd.allreduce(GOOD, process_set=OTHER), "not registered"),
    (lambda: hvd.allreduce_async_(GOOD, process_set=OTHER), "not registered"),
    (lambda: hvd.allreduce_async_(GOOD, op=6), r"op=6 \(expected Average, "),
    (lambda: hvd.allreduce(GOOD, average=True, op="x"), "average=True and op='x'"),
    *(
        (lambda path=path: hvd.start_timeline(path), r"file_path='.*expected the path of a file")
        for path in ("", "t.json\0.json", "\ud800")
    ),
    # In a job that runs.
    (lambda: hvd.init("x"), r"comm='x' on rank 0 \(expected None, or all 1 ranks"),
    (lambda: hvd.init(comm=[0, 1]), r"comm=\[0, 1\] on rank 0 \(expected None"),
    (lambda: hvd.init(process_sets=[OTHER]), r"sets=\[ProcessSet.*use hvd.add_process_set"),
    (lambda: ProcessSet([0.5]), r"ProcessSet\(.*expected"),
]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks", "ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("call", "text"), CALLS)
def test_mistakes_in_calls_are_explained(call, text):
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # torch's own, in forward mode
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("call", DIFFERENTIABLE)
def test_derivatives_in_forward_mode_and_of_torch_func_are_refused(call, wanted):
    def total(tensor):
        return sum(one.sum() for one in call(tensor))

    for transform in (torch.func.grad, torch.func.jacrev, torch.func.vmap):
        with pytest.raises(
            ValueError, match=r"(all|broadcast|reducescatter).*outside of torch\.func"
        ):
            transform(total)(GOOD)
    with forward_ad.dual_level():
        tensor = forward_ad.make_dual(GOOD.clone().requires_grad_(wanted), GOOD)
        text = r"(all|broadcast|reducescatter).*tangent .*torch\.autograd\.grad"
        with pytest.raises(NotImplementedError, match=text):
            call(tensor)


class _Wrapper(torch.Tensor):
    """Of a tensor, as libraries make them."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, (2, 3), (3, 1), storage_offset=4)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


def _sharded():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    return distribute_tensor(GOOD, init_device_mesh("cpu", (1,)), [Shard(0)])


def _freed(begin):
    memory = torch.ones(12)
    view = memory[begin : begin + 6].view(2, 3)
    memory.untyped_storage().resize_(0)
    return view


#: By the class that errors name.
WITHOUT_MEMORY = {
    "DTensor": (_sharded, r"tensor\.to_local\(\).*tensor\.full_tensor\(\)"),
    "FakeTensor": (lambda: FakeTensorMode().from_tensor(GOOD), "stands for it"),
    "MaskedTensor": (lambda: masked_tensor(GOOD, GOOD > 0), r"get_data\(\)"),
    "_Wrapper": (lambda: _Wrapper(GOOD), "use the tensors that it wraps"),
    "Tensor of shape": (lambda: _freed(0), "freed"),
    "Tensor": (lambda: _freed(3), "freed"),
    "Parameter": (lambda: nn.Parameter(_freed(3)), "freed"),
    "Tensor of": (lambda: torch._efficientzerotensor((2, 3)), r"tensor\.clone\(\)"),
    "": (lambda: torch._to_functional_tensor(GOOD), r"torch\.func"),
}


def _grouped(verb):
    return [lambda tensor, call=call: call([GOOD, tensor]) for call in _forms("grouped_" + verb)]


USES = [
    *(SIMPLE + _forms("alltoall") + _forms("reducescatter")),
    *(_grouped("allreduce") + _grouped("allgather") + _grouped("reducescatter")),
    lambda tensor: hvd.allreduce_async_(tensor, compression=hvd.Compression.bf16),
    lambda tensor: hvd.allreduce(tensor, op=hvd.Adasum),
    lambda tensor: hvd.broadcast_parameters({"a": GOOD, "b": tensor}, 0),
    lambda tensor: hvd.broadcast_parameters([GOOD, tensor], 0),
    lambda tensor: hvd.topk_threshold(tensor, 1),
    lambda tensor: hvd.parallel_map([GOOD], lambda _: tensor),
]


@pytest.mark.filterwarnings("ignore:Accessing the data pointer", "ignore:.*MaskedTensors is in")
@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
def test_tensors_without_memory_of_their_own_are_refused_everywhere(kind, request):
    make, text = WITHOUT_MEMORY[kind]
    tensor = make()
    if dist.is_initialized():
        request.addfinalizer(dist.destroy_process_group)
    for use in USES:
        with pytest.raises(ValueError, match=f"{kind}.*no memory of its own.*{text}"):
            use(tensor)
    assert _core.prepare(0, "allreduce", "x", (2, 3), 7, 0, -1).start_in_place(tensor) is None
    assert _core.allreduce_in_place(tensor, "x", 0, hvd.Sum, 1.0, 1.0) is None


_HERE = GOOD.data_ptr()
_LARS = dict.fromkeys(("nesterov", "larc", "adapt", "first"), False)
_LARS |= dict.fromkeys(("momentum", "dampening", "weight_decay", "trust_coefficient", "eps"), 0)
_LARS |= dict.fromkeys(("lr", "least_ratio", "largest_ratio"), 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: _core.prepare(_core.ALLREDUCE, "op", "x", (2, 3), 7, 0, -1).start(_HERE, 0),
        lambda: _core.send(0, 4, 0, "k"),
        lambda: _core.receive(0, 4, 0, "k"),
        lambda: _core.select_largest(0, _HERE, 6, 1, 1),
        lambda: _core.select_largest(_HERE, 0, 6, 1, 1),
        lambda: _core.lars_step([(0, _HERE, 0, 6)], _core.LarsOptions(**_LARS), 1),
        lambda: _core.lars_step([(_HERE, 0, 0, 6)], _core.LarsOptions(**_LARS), 1),
    ],
)
def test_the_core_refuses_address_0(call):
    with pytest.raises(ValueError, match=r"(NULL|address 0) \(.*memory of (its|their) own"):
        call()


def test_dtypes_that_are_moved_are_told_apart():
    sizes = {DTYPE_CODES[dtype]: dtype.itemsize for dtype in DTYPE_CODES}
    for dtype, (code, behind) in MOVED.items():
        assert sizes[core_code(code)] * math.prod(behind) == dtype.itemsize, dtype
    codes = [code for code, _ in MOVED.values()]
    assert len({factor_of([code]) for code in [*codes, *sizes]}) == len(codes) + 1 > 10
    # Of a group the dtype of each counts, and its place.
    groups = ([0, codes[0]], [codes[0], 0], [0, codes[1]], [0, 0])
    assert len({factor_of(group) for group in groups}) == 4


def test_a_broadcast_that_fails_part_way_leaves_nothing_under_way():
    with pytest.raises(ValueError, match="a name of 70010 bytes"):
        hvd.broadcast_parameters([("a", GOOD), ("b", GOOD), ("x" * 70_000, GOOD)], 0)
    hvd.broadcast_parameters([("a", GOOD), ("b", GOOD)], 0)


def test_average_is_deprecated():
    with pytest.warns(DeprecationWarning, match="op=Average") as record:
        hvd.allreduce(GOOD, average=True)
    assert record[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="op=Average") as record:
        hvd.synchronize(hvd.allreduce_async_(GOOD.clone(), False))
    assert record[0].filename == __file__


def test_what_a_process_set_knows_before_it_is_registered():
    assert (OTHER.size(), OTHER.rank(), OTHER.included()) == (None, None, True)
    assert not ProcessSet([1]).included()


def test_subset_arguments_of_init_are_refused_clearly():
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"comm=\[1\].*expected None"):
        hvd.init(comm=[1])
    hvd.init(None, [])
    hvd.shutdown()
    hvd.init(process_sets="Dynamic")


def test_calls_before_init_fail():
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"aiacc has not been initialized; use hvd\.init\(\)\."):
        hvd.size()
    sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    for call in (lambda: hvd.start_timeline("x"), lambda: hvd.DistributedOptimizer(sgd)):
        with pytest.raises(ValueError, match="not been initialized"):
            call()
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(GOOD)
    with pytest.raises(aiacc.CollectiveError):
        hvd.barrier()


@pytest.mark.parametrize("name", ["none", "fp16", "bf16"])
def test_compression_keeps_dtype_and_leaves_integers_alone(name):
    compression = getattr(hvd.Compression, name)
    for tensor in (GOOD, GOOD.double(), GOOD.half(), GOOD.long()):
        compressed, ctx = compression.compress(tensor)
        restored = compression.decompress(compressed, ctx)
        assert restored.dtype == tensor.dtype
        assert torch.equal(restored, tensor)
        if name != "none" and tensor.is_floating_point():
            assert compressed.element_size() == 2


# --- DistributedOptimizer


def _model():
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def test_optimizer_is_of_the_wrapped_class_with_its_state_and_arguments():
    model = _model()
    sgd = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    sgd.step()
    wrapped = hvd.DistributedOptimizer(sgd, model.named_parameters())
    assert isinstance(wrapped, torch.optim.SGD)
    assert type(wrapped).__name__ == "SGD"
    assert wrapped.state is sgd.state
    assert wrapped.defaults == sgd.defaults
    assert list(wrapped._parameter_names.values()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert wrapped._parameter_names[model[1].bias] == "1.bias"

    class Odd(torch.optim.SGD):
        def __init__(self, params, *, lr, secret):
            super().__init__(params, lr)
            self.secret = secret

    wrapped = hvd.DistributedOptimizer(Odd(_model().parameters(), lr=0.1, secret=7))
    assert wrapped.secret == 7


def test_tensors_that_are_made_say_on_which_device():
    """Whatever torch.set_default_device says, which moves even those that are given."""
    made = {function.__name__ for function in _device_constructors()} | {"Generator"}
    for file in Path(aiacc.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                f"torch.{n}" for n in made
            }:
                device = node.args if node.func.attr == "Generator" else node.keywords
                said = [getattr(one, "arg", "device") for one in device]
                assert {"device", None} & set(said), f"{file}:{node.lineno}"


@pytest.mark.parametrize("options", [{}, {"op": hvd.Adasum}, {"schedule": "decoupled"}], ids=str)
def test_what_a_wrapped_optimizer_calls_its_own_stays_so(options):
    def wrap(cls):
        model = _model()
        model(torch.ones(1, 2)).sum().backward()
        of = {"model": model} if "schedule" in options else {}
        return hvd.DistributedOptimizer(cls(model.parameters(), 0.1), **options, **of)

    plain = wrap(torch.optim.SGD)
    mixins = [cls for cls in type(plain).__mro__ if cls.__module__.startswith("aiacc")]
    added = {name for cls in mixins for name in vars(cls)} - REPLACED
    names = {name for name in added if not name.startswith(("__", "_aiacc", "_step_supports"))}
    assert {"op", "process_set", "_parameter_names"} < names
    names |= {"_reducer", "_exchange", "_options", "_compression", "settle", "follow"}
    with pytest.raises(AttributeError, match=r"op = 'x' .*pass it to DistributedOptimizer"):
        plain.op = "x"

    def init(self, *args):
        torch.optim.SGD.__init__(self, *args)
        for name in names - vars(type(self)).get("class", set()):
            setattr(self, name, "mine")

    def step(self, closure=None):
        assert {getattr(self, name) for name in names} == {"mine"}
        for name in names:
            setattr(self, name, "anew")
        return torch.optim.SGD.step(self, closure)

    of_class = dict.fromkeys(names, "mine") | {"class": names}
    for members in ({}, of_class, {"__slots__": tuple(names)}):
        methods = {"__init__": init, "step": step, "is_elementwise": True}
        optimizer = wrap(type("Own", (torch.optim.SGD,), members | methods))
        optimizer.step()
        assert {getattr(optimizer, name) for name in names} == {"anew"}
    hybrid = wrap(AdamSGD)
    hybrid.follow(lambda number: 1.0)
    hybrid.step()
    assert hybrid.param_groups[0]["share"] == 1


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_optimizer_tells_how_it_reduces(op):
    options = {"backward_passes_per_step": 3, "op": op, "process_set": hvd.global_process_set}
    if op == hvd.Average:
        options |= {"gradient_predivide_factor": 4.0, "sparse_as_dense": True}
    wrapped = hvd.DistributedOptimizer(torch.optim.SGD(_model().parameters(), 0.1), **options)
    assert {name: getattr(wrapped, name) for name in options} == options
    wrapped.set_backward_passes_per_step(2)
    assert wrapped.backward_passes_per_step == 2


def test_hooks_of_the_wrapped_optimizer_run_once_per_step():
    model = _model()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    calls = []
    sgd.register_step_pre_hook(lambda *_: calls.append("before"))
    wrapped = hvd.DistributedOptimizer(sgd)
    wrapped.register_step_post_hook(lambda *_: calls.append("after"))
    wrapped.step()
    assert calls == ["before", "after"]


PLAN = Plan("mine", (("1.bias", "1.weight"), ("0.bias", "0.weight")))
DECOUPLED = {"schedule": "decoupled", "model": ...}
#: Options, of which ... stands for the model, or its parameters with their names.
MISTAKES = [
    ({"backward_passes_per_step": 0}, r"per_step=0 \(expected a whole number, 1 or more\)"),
    ({"gradient_predivide_factor": 2.0, "op": 1}, r"op=Sum \(expected op=Average\)"),
    ({"op": hvd.Min, "compression": "powersgd"}, r"op=Min .*powersgd \(expected Average or Sum"),
    ({"op": hvd.Max, "compression": "auto"}, r"op=Max .*auto \(expected Average or Sum"),
    *(({"groups": 0}, "groups=0"), ({"groups": [[1]]}, "groups")),
    ({"gradient_as_bucket_view": True, "groups": 2}, "leave out one"),
    ({"gradient_as_bucket_view": True, "bucket_bytes": 0}, "bucket_bytes=0"),
    *(({"named_parameters": [one]}, r"\(name, parameter\)") for one in (("a",), torch.ones(1))),
    ({"named_parameters": []}, r"leaves out 4 of the optimizer's 4"),
    ({"process_set": ProcessSet([0])}, "not registered"),
    *(({"plan": plan, "groups": 2}, "plan and groups are given") for plan in ("auto", PLAN)),
    ({"compression": "auto", "groups": 2}, "compression='auto' with plan, groups"),
    ({"plan": "auto", "op": hvd.Adasum}, "op=Adasum with groups, a plan"),
    ({"plan": "best"}, "plan='best' .expected 'auto', a planner"),
    ({"plan": Path("plan.json")}, r"plan=PosixPath\('plan.json'\) \(expected a Plan"),
    (
        {"plan": Plan("x", (("0.weight", "head"),)), "named_parameters": ...},
        "plan has 1 gradient that .* 'head' for one",
    ),
    ({"plan": Plan("x", PLAN.buckets, schedule="decoupled")}, "plan with schedule 'decoupled'"),
    (
        {"compression": "auto", "op": hvd.Adasum},
        r"op=Adasum with compression='auto' \(expected none, fp16 or bf16",
    ),
    ({"plan": "auto", **DECOUPLED}, "plan='auto' with schedule='decoupled'"),
    ({"plan": {"buckets": []}, **DECOUPLED}, r"plan={'buckets': \[\]} \(expected a Plan"),
    ({"compression": "auto", **DECOUPLED}, r"decoupled' with compression='auto' "),
    ({"gradient_predivide_factor": 0.0}, r"predivide_factor=0\.0 \(expected a finite number that"),
    ({"gradient_predivide_factor": math.nan}, r"predivide_factor=nan \(expected a finite number"),
    ({"gradient_predivide_factor": math.inf}, r"predivide_factor=inf \(expected a finite number"),
    *(
        ({**what, "bucket_bytes": size}, rf"bucket_bytes={size!r} \(expected a finite number of")
        for what in ({"gradient_as_bucket_view": True}, {"schedule": "decoupled"})
        for size in (math.nan, -1)
    ),
]


@pytest.mark.parametrize(("options", "text"), MISTAKES)
def test_mistakes_are_explained(options, text):
    model = _model()
    own = {"model": model, "named_parameters": model.named_parameters()}
    options = {name: own[name] if given is ... else given for name, given in options.items()}
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), **options)


@pytest.mark.parametrize("make", [dict, lambda named: _model(), lambda named: nn.Linear(2, 2)])
def test_a_model_and_a_dict_are_no_named_parameters(make):
    model = _model()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    named = make(model.named_parameters())
    text = r"named_parameters.*\(expected \(name, parameter\).*pass model.named_parameters\(\)"
    for wrap in (functools.partial(hvd.DistributedOptimizer, sgd), hvd.HookState):
        with pytest.raises(ValueError, match=text):
            wrap(named_parameters=named)


def test_mistaken_names_and_groups_are_explained():
    model = _model()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    twice = [("same", parameter) for parameter in model.parameters()]
    for wrap in (functools.partial(hvd.DistributedOptimizer, sgd), hvd.HookState):
        with pytest.raises(ValueError, match="same more than once"):
            wrap(named_parameters=twice)
    with pytest.raises(ValueError, match="twice"):
        hvd.DistributedOptimizer(sgd, groups=[[model[0].weight], [model[0].weight]])
    with pytest.raises(ValueError, match="wrap it once"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd))
    with pytest.warns(DeprecationWarning, match="num_groups") as record:
        hvd.DistributedOptimizer(sgd, num_groups=2)
    assert record[0].filename == __file__


@pytest.mark.parametrize(
    ("others", "whom"),
    [((1,), "rank 1"), ((0, 2), "one of ranks 0, 2"), (range(9), "another rank")],
)
def test_a_timeout_names_who_may_be_missing(others, whom):
    text = str(Limit(2.5, "recv", others).error())
    assert f"recv: {whom} did not come within its timeout of 2.5 s" in text


def test_ranks_that_number_their_devices_differently_may_have_divided_alike():
    assert (mine := numbered({"b": 1, "a": 0, "c": 0})) == {"a": 0, "b": 1, "c": 0}
    assert numbered({"a": 5, "b": 2, "c": 5}) == mine
    assert numbered({"c": 1, "b": 0, "a": 1}) == mine
    assert numbered({"a": 0, "b": 0, "c": 0}) != mine
    assert numbered({"a": 0, "b": 1, "c": 1}) != mine
