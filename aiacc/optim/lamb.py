"""Layer-wise adaptive moments for large batches.

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (LAMB), ICLR
2020 (arXiv 1904.00962), Algorithm 2, with Adam's correction of bias: a tensor w has the update
u = m / (sqrt(v) + eps) + weight_decay w, and takes a step of lr |w| / |u| along it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.optim.optimizer import _use_grad_for_differentiable

from aiacc import _core
from aiacc.optim import fused, trust
from aiacc.optim.trust import Clamp, Exclusion, TrustRatioOptimizer, one_dimensional


class LAMB(TrustRatioOptimizer):
    """Adam whose step of each tensor is as long as lr times its norm.

    A tensor whose norm or whose update's is 0 has ratio 1. Norms of 16-bit tensors are float32.
    """

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        bias_correction: bool = True,
        max_grad_norm: float | None = None,
        trust_clamp: Clamp | None = None,
        exclude: Exclusion | Collection[str] | None = one_dimensional,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        """Update ``params`` in `step`.

        Args:
            params: See `LARS`.
            lr: Learning rate, of which each tensor takes its ratio.
            betas: What stays of the means of gradients and of their squares.
            eps: Added to the denominator.
            weight_decay: Multiple of the parameters that is added to the update.
            bias_correction: As in Adam.
            max_grad_norm: Gradients are scaled down as if those of all parameters together had at
                most this norm. They are not changed; clip yourself to see the norm.
            trust_clamp: Least and largest ratio.
            exclude: See `LARS`.
            maximize: Ascend.
            foreach: See `LARS`.
            fused: The means and norms, then the update, by kernels of the core, of float32 on GPUs
                if it was built with CUDA. None: where that can be, unless ``foreach`` is given.
            capturable: Keep the number of steps on the device, for a CUDA graph.
            differentiable: Let autograd go through `step`.

        Raises:
            TypeError: An option of a wrong type.
            ValueError: A number that makes no sense.
        """
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "bias_correction": bias_correction,
                "max_grad_norm": max_grad_norm,
                "trust_clamp": trust_clamp,
                "maximize": maximize,
                "foreach": foreach,
                "fused": fused,
                "capturable": capturable,
                "differentiable": differentiable,
            },
            exclude,
        )

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients; see `LARS.step`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = trust.parts(self.param_groups)
        given = [trust.gradients_of(group, "LAMB") for group in groups]
        norm = None
        if any(group["max_grad_norm"] is not None for group in groups):
            norm = _norm([grad for _, grads in given for grad in grads])
        for group, (every, grads_of_all) in zip(groups, given, strict=True):
            most, clip = group["max_grad_norm"], None
            if most is not None and norm is not None:
                clip = (most / norm).clamp(max=1.0)
            for params, grads in trust.by_kind(every, grads_of_all):
                self._update(group, params, grads, clip)
        return loss

    def _update(
        self,
        group: dict[str, Any],
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        clip: torch.Tensor | None,
    ) -> None:
        foreach, wanted = group["foreach"], group.get("fused")
        problem = "foreach"
        if wanted or (wanted is None and foreach is None):
            problem = fused.problem(group, params, grads, on_cpu=False)
            if wanted and problem:
                raise ValueError(f"fused=True with {problem}; leave fused out")
        states = [self.state[parameter] for parameter in params]
        for parameter, state in zip(params, states, strict=True):
            if "step" not in state:
                device = parameter.device if group["capturable"] else "cpu"
                state["step"] = torch.zeros((), dtype=torch.float32, device=device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        for (steps,) in trust.by_kind([state["step"] for state in states]):
            torch._foreach_add_(steps, 1)
        if not problem:
            _fused(group, params, grads, states, clip)
            return
        if clip is not None:
            grads = [grad * clip.to(grad.device, grad.dtype) for grad in grads]
        if foreach is None:
            foreach = params[0].is_cuda and not group["differentiable"]
        update = _foreach if foreach else _one_by_one
        update(
            group,
            params,
            grads,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [_corrections(group, state["step"]) for state in states],
        )


def _fused(
    group: dict[str, Any],
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    states: list[dict[str, Any]],
    clip: torch.Tensor | None,
) -> None:
    """The update by kernels of the core, queued on the current stream of the GPU."""
    tensors = []
    for parameter, grad, state in zip(params, grads, states, strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = fused.buffer_as(parameter, state, name)
        step = state["step"] = state["step"].to(torch.float32)
        if step.is_cuda:  # which is not looked at
            step = state["step"] = step.to(parameter.device)
        where, number = (step.data_ptr(), 0.0) if step.is_cuda else (0, step.item())
        addresses = [parameter, grad, state["exp_avg"], state["exp_avg_sq"]]
        entry = (*(tensor.data_ptr() for tensor in addresses), where, number, parameter.numel())
        tensors.append(entry)
    lr, lr_on_gpu = fused.rate(group["lr"])
    least, largest = group["trust_clamp"] or (0.0, math.inf)
    device, memory = params[0].get_device(), fused.workspace(params[0], len(tensors))
    factor = None if clip is None else clip.to(params[0].device, torch.float32)
    _core.lamb_step_on_gpu(
        tensors,
        _core.LambOptions(
            lr=lr,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            least_ratio=least,
            largest_ratio=largest,
            **{name: group[name] for name in ("eps", "weight_decay", "bias_correction", "adapt")},
        ),
        device=device,
        stream=fused.current_stream(device),
        lr=0 if lr_on_gpu is None else lr_on_gpu.data_ptr(),
        clip=0 if factor is None else factor.data_ptr(),
        workspace=memory.data_ptr(),
    )
    for parameter in params:  # whose memory has changed, as autograd has to know
        torch.autograd.graph.increment_version(parameter)


def _norm(grads: list[torch.Tensor]) -> torch.Tensor | None:
    """2-norm of all of them together; None of none."""
    if not grads:
        return None
    device = grads[0].device
    every = [
        torch.linalg.vector_norm(grad, dtype=trust.wide(grad)).to(device, torch.float32)
        for grad in grads
    ]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(every))
    return norm


def _corrections(group: dict[str, Any], step: torch.Tensor) -> tuple[Any, Any]:
    """What the means are divided by: numbers, or tensors where the host must not look at them."""
    if not group["bias_correction"]:
        return 1.0, 1.0
    if not group["capturable"]:
        first, second = (1 - beta ** step.item() for beta in group["betas"])
        return first, second**0.5
    # 1 - beta^step, of which float32 would leave four digits.
    first, second = (
        -torch.expm1(step * math.log(beta)) if beta else torch.ones_like(step)
        for beta in group["betas"]
    )
    return first, second.sqrt()


def _ratios(
    group: dict[str, Any], params: list[torch.Tensor], updates: list[torch.Tensor], foreach: bool
) -> torch.Tensor:
    weights, lengths = trust.norms(params, foreach), trust.norms(updates, foreach)
    ratios = trust.ratio_of(weights, lengths, (weights > 0) & (lengths > 0))
    if group["trust_clamp"] is not None:
        ratios = ratios.clamp(*group["trust_clamp"])
    return ratios


def _one_by_one(
    group: dict[str, Any],
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    means: list[torch.Tensor],
    squares: list[torch.Tensor],
    corrections: list[tuple[Any, Any]],
) -> None:
    """The update, tensor by tensor."""
    lr, (beta1, beta2) = trust.rate_of(group), group["betas"]
    for parameter, grad, mean, square, (first, second) in zip(
        params, grads, means, squares, corrections, strict=True
    ):
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        seen = parameter
        if group["differentiable"]:
            # Autograd wants what it has seen of tensors that change in place. And a square root has
            # no derivative at 0, where there was no gradient yet.
            mean, seen = mean.clone(), parameter.clone()
            root = (square + 1e-30).sqrt() * (first / second) + first * group["eps"]
        else:
            root = square.sqrt().mul_(first / second).add_(first * group["eps"])
        update = mean / root
        if group["weight_decay"]:
            update.add_(seen, alpha=group["weight_decay"])
        ratio = torch.ones((), dtype=trust.wide(parameter), device=parameter.device)
        if group["adapt"]:
            (ratio,) = _ratios(group, [seen], [update], False).unbind()
        if isinstance(lr, torch.Tensor) or ratio.dtype != update.dtype:
            parameter.sub_(update * (ratio * lr))
        else:
            parameter.addcmul_(update, ratio, value=-lr)


def _foreach(
    group: dict[str, Any],
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    means: list[torch.Tensor],
    squares: list[torch.Tensor],
    corrections: list[tuple[Any, Any]],
) -> None:
    """The same with operations on all tensors."""
    lr, (beta1, beta2) = trust.rate_of(group), group["betas"]
    torch._foreach_lerp_(means, grads, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)
    first, second = map(list, zip(*corrections, strict=True))
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, second)
    torch._foreach_add_(roots, group["eps"])
    updates = torch._foreach_div(means, first)
    torch._foreach_div_(updates, roots)
    if group["weight_decay"]:
        torch._foreach_add_(updates, params, alpha=group["weight_decay"])
    if group["adapt"]:
        ratios = _ratios(group, params, list(updates), True)
        torch._foreach_mul_(updates, ratios.unbind())
    if isinstance(lr, torch.Tensor):
        torch._foreach_sub_(params, torch._foreach_mul(updates, lr))
    else:
        torch._foreach_add_(params, updates, alpha=-lr)
