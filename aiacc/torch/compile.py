"""torch.compile in pieces, so that gradients still come one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn

from aiacc import arguments

Model = TypeVar("Model", bound=nn.Module)

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def compile_blocks(
    model: Model,
    *,
    is_block: Callable[[nn.Module], bool] | None = None,
    **options: Any,
) -> Model:
    """Compile the blocks of ``model`` one by one, in place, instead of the whole.

    The backward pass of a compiled module is one function: autograd gets all its gradients at its
    end. If the whole model is compiled, no gradient can travel while others are computed. Between
    blocks autograd is at work, so the gradients of a block travel while the blocks before it are
    computed.

    Parameters, their names and ``state_dict()`` stay as they are, so call it before or after
    `DistributedOptimizer`.

    Args:
        model: Model to compile. Its own ``forward`` runs as before.
        is_block: Whether a module is a block; asked from the top downwards, not inside blocks.
            Default: the children of ``model``, where a ``Sequential``, ``ModuleList`` or
            ``ModuleDict`` stands for its own children.
        **options: Passed on to ``torch.compile``.

    Returns:
        ``model`` itself.

    Raises:
        TypeError: ``model`` is no module, or ``is_block`` no function.
        ValueError: There is no block that has parameters.
    """
    arguments.check(
        locals(), model=arguments.MODULE, is_block=arguments.or_none(arguments.FUNCTION)
    )
    chosen = [
        block for block in _blocks(model, is_block) if next(block.parameters(), None) is not None
    ]
    if not chosen:
        raise ValueError(
            f"compile_blocks: {type(model).__name__} has no block with parameters (expected some); "
            "pass is_block, or use torch.compile for the whole model"
        )
    for block in chosen:
        block.compile(**options)
    return model


def is_compiled(module: nn.Module) -> bool:
    """Whether a call of ``module`` itself runs compiled code."""
    dynamo = sys.modules.get("torch._dynamo")  # without it nothing is
    if isinstance(module, torch.jit.ScriptModule):
        return False  # it has no hooks
    return module._compiled_call_impl is not None or (
        dynamo is not None and isinstance(module, dynamo.OptimizedModule)
    )


def _blocks(model: nn.Module, is_block: Callable[[nn.Module], bool] | None) -> Iterator[nn.Module]:
    """Every block once, even if the model has it in several places."""
    seen: set[nn.Module] = set()

    def search(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if child in seen:
                continue
            seen.add(child)
            if not isinstance(child, _CONTAINERS) if is_block is None else is_block(child):
                yield child
            elif is_block is not None or isinstance(child, _CONTAINERS):
                yield from search(child)

    return search(model)
