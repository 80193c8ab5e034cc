"""Arguments, their order and their defaults are Horovod's: scripts pass them by position."""

from __future__ import annotations

import inspect

import pytest

import aiacc.array as array
import aiacc.torch as hvd

REDUCE = "(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, PS)"
SIGNATURES = {
    "init": "(comm=None, process_sets=None)",
    "shutdown": "()",
    "is_initialized": "()",
    "start_timeline": "(file_path, mark_cycles=False)",
    "stop_timeline": "()",
    **dict.fromkeys(["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"], "()"),
    "allreduce": "(tensor, average=None, name=None, compression=NoneCompressor, op=None, "
    "prescale_factor=1.0, postscale_factor=1.0, PS)",
    **dict.fromkeys(["allreduce_async", "allreduce_", "allreduce_async_"], REDUCE),
    **dict.fromkeys(["allgather", "allgather_async"], "(tensor, name=None, PS)"),
    **dict.fromkeys(
        ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"],
        "(tensor, root_rank, name=None, PS)",
    ),
    "poll": "(handle)",
    "synchronize": "(handle)",
    "barrier": "(PS)",
    "broadcast_parameters": "(params, root_rank)",
    "broadcast_optimizer_state": "(optimizer, root_rank, model=None)",
    "broadcast_object": "(obj, root_rank=0, name=None, PS)",
    "DistributedOptimizer": "(optimizer, named_parameters=None, compression=NoneCompressor, "
    "backward_passes_per_step=1, op=0, gradient_predivide_factor=1.0, num_groups=0, groups=None, "
    "sparse_as_dense=False, PS)",
}


def _text(function):
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = parameter.default
        if parameter.name == "process_set":
            assert default is hvd.global_process_set
            parts.append("PS")
        elif default is inspect.Parameter.empty:
            parts.append(parameter.name)
        else:
            shown = default.__name__ if inspect.isclass(default) else repr(default)
            parts.append(f"{parameter.name}={shown}")
    return f"({', '.join(parts)})"


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_is_horovods(name):
    assert _text(getattr(hvd, name)) == SIGNATURES[name]


@pytest.mark.parametrize("name", sorted(set(SIGNATURES) & set(array.__all__)))
def test_array_front_end_has_the_same_signature(name):
    expected = SIGNATURES[name].replace("compression=NoneCompressor, ", "")  # which torch's has
    assert _text(getattr(array, name)) == expected


def test_constants_are_horovods():
    for module in (hvd, array):
        numbers = (module.Average, module.Sum, module.Adasum)
        assert numbers == (0, 1, 2)
        assert (module.Min, module.Max, module.Product) == (3, 4, 5)


@pytest.mark.parametrize("module", [hvd, array])
def test_everything_public_exists(module):
    for name in module.__all__:
        assert hasattr(module, name), name
