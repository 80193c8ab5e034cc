"""Rates that differ between tensors by a ratio of norms: what LARS and LAMB have in common."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeAlias

import torch
from torch.optim.optimizer import Optimizer

from aiacc import arguments

#: Says of a parameter, by its name ("" if it has none) and itself, whether it is excluded.
Exclusion: TypeAlias = Callable[[str, torch.Tensor], bool]
#: Least and largest ratio.
Clamp: TypeAlias = tuple[float, float]


def one_dimensional(name: str, parameter: torch.Tensor) -> bool:
    """Whether a parameter has at most one dimension, as biases and those of norms do."""
    return parameter.ndim <= 1


class CheckedOptimizer(Optimizer):
    """Refuses options of groups, and states, that make no sense."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As of `torch.optim.Optimizer`.

        Raises:
            TypeError: An option of a wrong type.
            ValueError: A number that makes no sense.
        """
        if not isinstance(param_group, dict):
            raise TypeError(
                f"param_group={param_group!r:.100} (expected a dictionary); use "
                '{"params": parameters}'
            )
        own = {name: value for name, value in param_group.items() if name in self.defaults}
        check_options({**self.defaults, **own})
        super().add_param_group(param_group)


class TrustRatioOptimizer(CheckedOptimizer):
    """Says of each parameter whether it is excluded, and leaves the groups as they were given.

    A group has ``adapt``: whether its parameters have ratios; and ``excluded``, a bool for each of
    its parameters: those have neither ratios nor weight decay.
    """

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        exclude: Exclusion | Collection[str] | None,
    ) -> None:
        """As of `torch.optim.Optimizer`, and what to exclude; see `LARS`."""
        self._exclude = exclude
        check_options({**defaults, "exclude": exclude})
        super().__init__(params, {**defaults, "adapt": True})

    def __getstate__(self) -> dict[str, Any]:
        """Of copies and pickles, which exclude the same of groups that are added to them."""
        return {**super().__getstate__(), "_exclude": self._exclude}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; nothing is excluded of one with ``adapt``.

        Raises:
            ValueError: A parameter without a name, where ``exclude`` has patterns of names.
        """
        group = dict(param_group) if isinstance(param_group, dict) else param_group
        super().add_param_group(group)
        exclude = None if "adapt" in param_group else self._exclude
        try:
            group.setdefault("excluded", _excluded(group, exclude))
        except Exception:
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As of `torch.optim.Optimizer`; options that another optimizer has not saved stay.

        What is excluded stays as it is here.
        """
        flags = [group["excluded"] for group in self.param_groups]
        super().load_state_dict(completed(state_dict, self.param_groups))
        for group, excluded in zip(self.param_groups, flags, strict=True):
            group["excluded"] = excluded


def parts(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups of parameters that have the same options: what is excluded is apart. Pure.

    Raises:
        ValueError: A group's parameters are more or fewer than its ``excluded``.
    """
    found = []
    for number, group in enumerate(groups):
        params, excluded = group["params"], group["excluded"]
        if len(params) != len(excluded):
            raise ValueError(
                f"group {number} has {len(params)} parameters and 'excluded' of {len(excluded)} "
                "(expected one for each parameter); change both, or use add_param_group"
            )
        for options in ({}, {"adapt": False, "weight_decay": 0.0}):
            some = [
                one for one, flag in zip(params, excluded, strict=True) if flag == bool(options)
            ]
            if some:
                found.append({**group, **options, "params": some})
    return found


def completed(state_dict: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """A state whose groups have all options that ``groups`` have. Pure.

    Raises:
        TypeError: It is no dictionary.
        ValueError: No state of an optimizer.
    """
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
        kind = ValueError if isinstance(state_dict, dict) else TypeError
        raise kind(
            f"state_dict={state_dict!r:.100} (expected a dictionary with 'state' and "
            "'param_groups'); give what state_dict() of an optimizer gave"
        )
    saved = state_dict["param_groups"]
    if len(saved) != len(groups):  # which torch refuses
        return state_dict
    both = [{**own, **other} for own, other in zip(groups, saved, strict=True)]
    return {**state_dict, "param_groups": both}


def rate_of(group: dict[str, Any]) -> Any:
    """Learning rate of a group: a number, or a tensor without dimensions, as lists of it need."""
    lr = group["lr"]
    return lr.reshape(()) if isinstance(lr, torch.Tensor) else lr


def _excluded(
    group: dict[str, Any], exclude: Exclusion | Collection[str] | None
) -> tuple[bool, ...]:
    params = group["params"]
    if exclude is None:
        return (False,) * len(params)
    names = group.get("param_names", [""] * len(params))
    if callable(exclude):
        return tuple(bool(exclude(*named)) for named in zip(names, params, strict=True))
    if not all(names):
        raise ValueError(
            f"exclude={exclude!r} and a parameter without a name (expected names to match); pass "
            "model.named_parameters() instead of model.parameters()"
        )
    patterns = (exclude,) if isinstance(exclude, str) else exclude
    return tuple(any(fnmatch.fnmatchcase(name, one) for one in patterns) for name in names)


def check_options(options: dict[str, Any]) -> None:
    """Raise TypeError or ValueError for options that make no sense."""
    arguments.check(options)
    if options.get("nesterov") and (not options["momentum"] or options["dampening"]):
        raise ValueError(
            f"nesterov=True with momentum={options['momentum']}, dampening={options['dampening']} "
            "(expected a momentum and no dampening)"
        )
    if options.get("fused") and (options["foreach"] or options["differentiable"]):
        raise ValueError("fused=True with foreach=True or differentiable=True (expected one)")
    if options.get("differentiable") and options.get("foreach"):
        raise ValueError("differentiable=True with foreach=True (expected one of them)")


def gradients_of(group: dict[str, Any], kind: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Parameters of a group that have gradients, and those.

    Raises:
        ValueError: A gradient is sparse, or complex where squares are taken.
    """
    params = [parameter for parameter in group["params"] if parameter.grad is not None]
    grads = [parameter.grad for parameter in params]
    for grad in grads:
        if grad.is_complex() and kind != "LARS":
            raise ValueError(
                f"{kind} got a gradient of {grad.dtype} (expected real numbers, for it takes means "
                "of squares); give it torch.view_as_real(parameter)"
            )
        if grad.layout is not torch.strided:
            raise ValueError(
                f"{kind} got a gradient of layout {grad.layout} (expected torch.strided, for it "
                "takes norms of whole tensors); use grad.to_dense(), or "
                "DistributedOptimizer(..., sparse_as_dense=True)"
            )
    return params, [-grad for grad in grads] if group["maximize"] else grads


def wide(tensor: torch.Tensor) -> torch.dtype:
    """Dtype for norms of ``tensor``: squares of 16 bits overflow."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


def norms(tensors: list[torch.Tensor], foreach: bool) -> torch.Tensor:
    """2-norm of each, in one tensor."""
    if foreach:
        return torch.stack(torch._foreach_norm(tensors, 2, wide(tensors[0])))
    return torch.stack([torch.linalg.vector_norm(t, dtype=wide(t)) for t in tensors])


def ratio_of(above: torch.Tensor, below: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """``above / below``, and 1 unless all of ``known`` are positive: there is nothing to go by."""
    return torch.where(known, above / torch.where(known, below, torch.ones_like(below)), 1.0)


def by_kind(*lists: Iterable[Any]) -> list[list[list[Any]]]:
    """Entries of lists that belong together, by device and dtype of the first list's."""
    kinds: dict[Any, list[list[Any]]] = {}
    for entries in zip(*lists, strict=True):
        kind = kinds.setdefault((entries[0].device, entries[0].dtype), [[] for _ in lists])
        for at, entry in zip(kind, entries, strict=True):
            at.append(entry)
    return list(kinds.values())
