"""Tensors in host memory that the core reads by itself, and those that it leaves to Python."""

import itertools

import pytest
import torch

import aiacc.torch as hvd
from aiacc import _core
from aiacc.torch import adapter
from aiacc.torch.adapter import DTYPE_CODES

pytestmark = pytest.mark.usefixtures("job_of_one")

GOOD = torch.ones(2, 3)
EXCHANGE = "__dlpack_c_exchange_api__"
reads = pytest.mark.skipif(not hasattr(torch.Tensor, EXCHANGE), reason=f"torch has no {EXCHANGE}")


def _reduced(tensor):
    """Whether the core has read ``tensor``, after which it is reduced."""
    handle = _core.allreduce_in_place(tensor, None, 0, hvd.Sum, 1.0, 3.0)
    if handle is not None:
        _core.wait(handle)
    return handle is not None


@reads
@pytest.mark.parametrize("dtype", DTYPE_CODES, ids=str)
def test_every_dtype_is_read_as_what_it_is(dtype):
    tensor = torch.arange(5).to(dtype)
    expected = tensor.clone() if dtype is torch.bool else (tensor.to(torch.float64) * 3).to(dtype)
    assert _reduced(tensor)
    assert tensor.equal(expected)


LEFT = {
    "complex": GOOD.to(torch.complex64),
    **{
        name: torch.ones(3, dtype=torch.uint8).view(getattr(torch, name))
        for name in ("int4", "uint1")
        if hasattr(torch, name)
    },
    "float8": GOOD.to(torch.float8_e5m2),
    "meta": GOOD.to("meta"),
    "sparse": GOOD.to_sparse(),
    "negated": torch._neg_view(GOOD),
    "subclass": GOOD.as_subclass(type("Other", (torch.Tensor,), {})),
    "numpy": GOOD.numpy(),
    "none": None,
}


@pytest.mark.parametrize("tensor", LEFT.values(), ids=LEFT)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_what_is_left_to_python(tensor):
    assert not _reduced(tensor)


@reads
def test_contiguous_is_what_torch_says():
    memory = torch.ones(64)
    found = set()
    for dimensions in range(4):
        for extents in itertools.product((0, 1, 2), repeat=dimensions):
            for strides in itertools.product((1, 2), repeat=dimensions):
                tensor = memory.as_strided(extents, strides)
                assert _reduced(tensor) == tensor.is_contiguous(), (extents, strides)
                found.add(tensor.is_contiguous())
    assert found == {True, False}


@reads
def test_a_copy_on_write_is_copied_before_it_is_written():
    original = torch.ones(3)
    copy = torch._lazy_clone(original)
    assert _reduced(copy)
    assert copy.eq(3).all()
    assert original.eq(1).all()


def _prepared(shapes, codes, device=-1):
    return _core.prepare(_core.ALLREDUCE, "allreduce", "x", shapes, codes, 0, device)


_SECOND = (GOOD.reshape(6), GOOD.double(), torch.ones(3, 2).t(), torch.ones(2, 4), None)


@pytest.mark.parametrize(
    "tensors", [(), (GOOD,), (GOOD, GOOD, GOOD), *((GOOD, one) for one in _SECOND)]
)
def test_others_do_not_start_it(tensors):
    code = DTYPE_CODES[torch.float32]
    assert _prepared(((2, 3), (2, 3)), (code, code)).start_in_place(*tensors) is None
    assert _prepared((2, 3), code, device=0).start_in_place(GOOD) is None
    assert GOOD.eq(1).all()


@reads
def test_arguments_are_looked_at():
    with pytest.raises(TypeError, match=r"of 2 arguments \(expected 6\)"):
        _core.allreduce_in_place(GOOD, None)
    with pytest.raises(ValueError, match="op"):
        _core.allreduce_in_place(GOOD, None, 0, 17, 1.0, 1.0)
    with pytest.raises(TypeError):
        _core.allreduce_in_place(GOOD, 3, 0, hvd.Sum, 1.0, 1.0)
    with pytest.raises(ValueError, match="PyCapsule"):
        _core.read_tensors_of((), object(), None, None, None)


def test_a_torch_without_exchange_does_the_same(request):
    _core.read_tensors_of((), None, None, None, None)  # what an older torch offers
    request.addfinalizer(adapter.let_core_read)
    tensor = GOOD.clone()
    assert not _reduced(tensor)
    hvd.allreduce_(tensor, op=hvd.Sum, postscale_factor=3.0)
    assert tensor.eq(3).all()
