"""Layer-wise adaptive rate scaling.

You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks" (LARS), arXiv 1708.03888,
Algorithm 1: a tensor w with gradient g has the local rate

    ratio = trust_coefficient |w| / (|g| + weight_decay |w| + eps)

by which g + weight_decay w enters the momentum. As in torch's SGD, and other than in the paper, the
learning rate multiplies the momentum and not what enters it, so that a change of the rate acts at
once.
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

#: Of a group, which the core takes as they are.
_FUSED_OPTIONS = (
    *("momentum", "dampening", "weight_decay", "trust_coefficient", "eps"),
    *("nesterov", "larc", "adapt"),
)


class LARS(TrustRatioOptimizer):
    """SGD with momentum whose rate of each tensor follows from norms.

    A tensor whose norm or whose gradient's is 0 has ratio 1. Norms of 16-bit tensors are float32.
    A CUDA graph may hold `step` if the learning rate is a tensor, or does not change, once a step
    was made.
    """

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1.0,
        momentum: float = 0.9,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        trust_coefficient: float = 0.001,
        eps: float = 1e-8,
        trust_clamp: Clamp | None = None,
        larc: bool = False,
        exclude: Exclusion | Collection[str] | None = one_dimensional,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
    ) -> None:
        """Update ``params`` in `step`.

        Args:
            params: Tensors, or groups of them, as of every optimizer; for names in ``exclude``,
                ``model.named_parameters()``.
            lr: Learning rate, of which each tensor takes its ratio.
            momentum: What stays of earlier steps.
            dampening: What is left out of a gradient that enters the momentum, as in torch's SGD.
            weight_decay: Multiple of the parameters that is added to the gradient.
            nesterov: Nesterov's momentum.
            trust_coefficient: The paper's eta.
            eps: Added to the denominator.
            trust_clamp: Least and largest ratio. AIACC's entry to DAWNBench had (1e-5, 1.0).
            larc: Let no tensor have a rate above ``lr``, as in NVIDIA's LARC: divide ratios by
                ``lr`` and clamp them to 1.
            exclude: Which parameters have neither ratio nor weight decay: a function of name and
                parameter, or patterns of names such as ``("*.bias", "norm*")``. None: no parameter.
            maximize: Ascend.
            foreach: Operations on lists of tensors. None: on GPUs, where each is a kernel.
            fused: Norms, then one pass of the core, of float32: in host memory by as many threads
                as torch has, on GPUs by its kernels if it was built with CUDA. None: where that can
                be, unless ``foreach`` is given.
            differentiable: Let autograd go through `step`.

        Raises:
            TypeError: An option of a wrong type.
            ValueError: A number that makes no sense.
        """
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "trust_coefficient": trust_coefficient,
                "eps": eps,
                "trust_clamp": trust_clamp,
                "larc": larc,
                "maximize": maximize,
                "foreach": foreach,
                "fused": fused,
                "differentiable": differentiable,
            },
            exclude,
        )

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients.

        Args:
            closure: Computes the loss and its gradients anew.

        Returns:
            What ``closure`` returns.

        Raises:
            ValueError: A gradient is sparse, or ``fused=True`` of what the core does not take.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in trust.parts(self.param_groups):
            every, grads_of_all = trust.gradients_of(group, "LARS")
            for params, grads in trust.by_kind(every, grads_of_all):
                self._update(group, params, grads)
        return loss

    def _update(
        self, group: dict[str, Any], params: list[torch.Tensor], grads: list[torch.Tensor]
    ) -> None:
        foreach = group["foreach"]
        if group["fused"] or (group["fused"] is None and foreach is None):
            problem = fused.problem(group, params, grads)
            if not problem:
                self._fused(group, params, grads)
                return
            if group["fused"]:
                raise ValueError(f"fused=True with {problem}; leave fused out")
        if foreach is None:
            foreach = params[0].is_cuda and not group["differentiable"]
        bufs = None
        if group["momentum"]:
            bufs = [self.state[parameter].get("momentum_buffer") for parameter in params]
        update = _foreach if foreach else _one_by_one
        update(group, params, grads, bufs)
        for parameter, buf in zip(params, bufs or (), strict=False):
            self.state[parameter]["momentum_buffer"] = buf

    def _fused(
        self, group: dict[str, Any], params: list[torch.Tensor], grads: list[torch.Tensor]
    ) -> None:
        """The update by the core: norms, then weights and momentum in one pass."""
        tensors: dict[bool, list[tuple[int, int, int, int]]] = {True: [], False: []}
        for parameter, grad in zip(params, grads, strict=True):
            buf, first = None, False
            if group["momentum"]:
                state = self.state[parameter]
                first = state.get("momentum_buffer") is None
                buf = fused.buffer_as(parameter, state, "momentum_buffer")
                state["momentum_buffer"] = buf
            address = 0 if buf is None else buf.data_ptr()
            entry = (parameter.data_ptr(), grad.data_ptr(), address, parameter.numel())
            tensors[first].append(entry)
        lr, lr_on_gpu = fused.rate(group["lr"])
        least, largest = group["trust_clamp"] or (0.0, math.inf)
        for first, some in tensors.items():
            if not some:
                continue
            options = _core.LarsOptions(
                lr=lr,
                least_ratio=least,
                largest_ratio=largest,
                first=first,
                **{name: group[name] for name in _FUSED_OPTIONS},
            )
            if params[0].is_cuda:
                _step_on_gpu(some, options, params[0], lr_on_gpu)
            else:
                _core.lars_step(some, options, torch.get_num_threads())
        for parameter in params:  # whose memory has changed, as autograd has to know
            torch.autograd.graph.increment_version(parameter)


def _step_on_gpu(
    tensors: list[tuple[int, int, int, int]],
    options: _core.LarsOptions,
    parameter: torch.Tensor,
    lr: torch.Tensor | None,
) -> None:
    """Queue a step on the current stream of the parameter's device."""
    device, memory = parameter.get_device(), fused.workspace(parameter, len(tensors))
    _core.lars_step_on_gpu(
        tensors,
        options,
        device=device,
        stream=fused.current_stream(device),
        lr=0 if lr is None else lr.data_ptr(),
        workspace=memory.data_ptr(),
    )


def _ratios(
    group: dict[str, Any], params: list[torch.Tensor], grads: list[torch.Tensor], foreach: bool
) -> torch.Tensor:
    weights, gradients = trust.norms(params, foreach), trust.norms(grads, foreach)
    below = gradients + weights * group["weight_decay"] + group["eps"]
    known = (weights > 0) & (gradients > 0)
    ratios = trust.ratio_of(group["trust_coefficient"] * weights, below, known)
    if group["trust_clamp"] is not None:
        ratios = ratios.clamp(*group["trust_clamp"])
    if group["larc"]:
        ratios = (ratios / group["lr"]).clamp(max=1.0)
    return ratios


def _one_by_one(
    group: dict[str, Any],
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    bufs: list[torch.Tensor | None] | None,
) -> None:
    """The update, tensor by tensor: on a CPU a tensor stays in the cache between its operations."""
    lr, momentum, weight_decay = trust.rate_of(group), group["momentum"], group["weight_decay"]
    for index, (parameter, grad) in enumerate(zip(params, grads, strict=True)):
        ratio = None
        if group["adapt"]:
            # Autograd wants what it has seen of parameters, which change in place.
            seen = parameter.clone() if group["differentiable"] else parameter
            (ratio,) = _ratios(group, [seen], [grad], False).unbind()
        if weight_decay:
            grad = grad.add(parameter, alpha=weight_decay)
        if ratio is not None:
            grad = grad * ratio
        if bufs is not None:
            buf = bufs[index]
            if buf is None:
                buf = bufs[index] = grad.clone()
            else:
                buf.mul_(momentum).add_(grad, alpha=1 - group["dampening"])
            grad = grad.add(buf, alpha=momentum) if group["nesterov"] else buf
        if isinstance(lr, torch.Tensor):
            parameter.sub_(grad * lr)
        else:
            parameter.add_(grad, alpha=-lr)


def _foreach(
    group: dict[str, Any],
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    bufs: list[torch.Tensor | None] | None,
) -> None:
    """The same with operations on all tensors."""
    lr, momentum, weight_decay = trust.rate_of(group), group["momentum"], group["weight_decay"]
    ratios = _ratios(group, params, grads, True) if group["adapt"] else None
    if weight_decay:
        grads = list(torch._foreach_add(grads, params, alpha=weight_decay))
    if ratios is not None:
        grads = list(torch._foreach_mul(grads, ratios.unbind()))
    if bufs is not None:
        old = [(buf, grad) for buf, grad in zip(bufs, grads, strict=True) if buf is not None]
        if old:
            known, entering = map(list, zip(*old, strict=True))
            torch._foreach_mul_(known, momentum)
            torch._foreach_add_(known, entering, alpha=1 - group["dampening"])
        filled = [
            grad.clone() if buf is None else buf for buf, grad in zip(bufs, grads, strict=True)
        ]
        bufs[:] = filled
        nesterov = group["nesterov"]
        grads = list(torch._foreach_add(grads, filled, alpha=momentum)) if nesterov else filled
    if isinstance(lr, torch.Tensor):
        torch._foreach_sub_(params, torch._foreach_mul(grads, lr))
    else:
        torch._foreach_add_(params, grads, alpha=-lr)
