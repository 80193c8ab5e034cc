"""What segments of parameters have as ``grad``: a part of the gradients, and no norm of all."""

from __future__ import annotations

from typing import Any

import torch


class Unreduced(torch.Tensor):
    """What a segment has as ``grad`` until gradients are reduced: nobody can use it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raise ValueError."""
        raise ValueError(
            "schedule='decoupled': gradients in optimizer.param_groups are used before they are "
            "reduced (expected synchronize() or optimizer.clip_grad_norm_() first); call one of "
            "them, or use schedule='all_reduce'"
        )


#: Functions of all elements, of which norms are made, besides those that are called norms.
_OF_ALL = {
    *("sum", "mean", "max", "min", "amax", "amin", "prod", "std", "var", "std_mean", "var_mean"),
    *("dot", "vdot", "inner", "einsum", "_foreach_max"),
}


class Reduced(torch.Tensor):
    """A reduced gradient of a segment, of which there is no norm or sum that counts."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``, unless that is a norm, or what one is made of: ValueError."""
        name = str(getattr(func, "__name__", func))
        if name.endswith("norm") or name in _OF_ALL:
            raise ValueError(
                f"schedule='decoupled': {name} of gradients in optimizer.param_groups, which are a "
                "part of the model's (expected optimizer.clip_grad_norm_, whose norm is that of "
                "all ranks); use that, or schedule='all_reduce'"
            )
        parent: Any = super()
        return parent.__torch_function__(func, types, args, kwargs or {})


def seen(gradient: torch.Tensor, kind: type[torch.Tensor]) -> torch.Tensor:
    """The memory of ``gradient`` in a tensor of this class."""
    with torch._C.DisableTorchFunctionSubclass():
        alias: torch.Tensor = gradient.detach()
        return alias if kind is torch.Tensor else alias.as_subclass(kind)
