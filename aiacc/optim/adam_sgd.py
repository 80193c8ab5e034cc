"""From Adam to SGD in the course of a training.

AIACC-Training (ICDCS 2022) says that it trains with a hybrid of Adam and SGD, and gives no formula.
**This one is ours.** Both have the same mean of gradients m, corrected for its bias; with a share s
of SGD, which a schedule gives for each step,

    w <- w - ((1 - s) lr m / (sqrt(v) + eps) + s sgd_lr m)

and decoupled weight decay by (1 - s) lr + s sgd_lr. At s = 0 this is AdamW, at s = 1 SGD whose
momentum is a mean. Others have gone the same way at once (SWATS, arXiv 1712.07628) or by bounds on
the rates (AdaBound, arXiv 1902.09843).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aiacc.optim.trust import CheckedOptimizer, check_options, completed, gradients_of


class AdamSGD(CheckedOptimizer):
    """Adam at first, SGD with momentum at last, by a share that a schedule says.

    Each element is updated by itself, so that schedule "decoupled" takes it.
    """

    #: See `aiacc.torch.decoupled.classes`.
    is_elementwise = True

    #: What `follow` was given.
    _share: Callable[[int], float] | None = None

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        sgd_lr: float = 0.1,
        *,
        share: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        """Update ``params`` in `step`.

        Args:
            params: Tensors, or groups of them.
            lr: Adam's learning rate.
            sgd_lr: SGD's, for a mean of gradients: 1 / (1 - momentum) times that of torch's SGD.
                An option of groups, which changes by as much as ``lr`` does, by schedulers or
                otherwise; a group has ``given_lr``, which that was at first.
            share: Of SGD, from 0 to 1; an option of groups that `follow` sets in each step.
            betas: What stays of the means of gradients and of their squares.
            eps: Added to Adam's denominator.
            weight_decay: Multiple of the parameters that is subtracted, times the rate.
            maximize: Ascend.

        Raises:
            TypeError: An option of a wrong type.
            ValueError: A number that makes no sense.
        """
        defaults = {
            "lr": lr,
            "sgd_lr": sgd_lr,
            "share": share,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        check_options(defaults)
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        """Of copies and pickles, which follow the same share."""
        return {**super().__getstate__(), "_share": self._share}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of states that are loaded, too; those of other optimizers have no ``given_lr``."""
        super().__setstate__(state)
        _note_rates(self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See `CheckedOptimizer`."""
        super().add_param_group(param_group)
        _note_rates(self.param_groups)

    def follow(self, share: Callable[[int], float]) -> None:
        """Let the share of SGD in all groups be ``share(n)`` in the n-th step, from 0 on.

        The number of a step is that of the parameters, which `state_dict` holds.

        Raises:
            TypeError: ``share`` is no function.
            ValueError: In `step`: ``share`` gave a number that is not from 0 to 1.
        """
        if not callable(share):
            raise TypeError(f"share={share!r} (expected a function of the step, see interpolation)")
        self._share = share

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As of `torch.optim.Optimizer`; options that another optimizer has not saved stay."""
        own = [
            {name: value for name, value in group.items() if name != "given_lr"}
            for group in self.param_groups
        ]
        super().load_state_dict(completed(state_dict, own))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients; see `LARS.step`."""
        if self._share is not None:
            _set_share(self, self._share)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter, grad in zip(*gradients_of(group, "AdamSGD"), strict=True):
                self._update(group, parameter, grad)
        return loss

    def _update(self, group: dict[str, Any], parameter: torch.Tensor, grad: torch.Tensor) -> None:
        state = self.state[parameter]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        number = state["step"].item()
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].lerp_(grad, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        share, first = group["share"], 1 - beta1**number
        adam, sgd = (1 - share) * group["lr"], share * _sgd_rate(group)
        if group["weight_decay"]:
            parameter.mul_(1 - (adam + sgd) * group["weight_decay"])
        if adam:
            root = square.sqrt().div_((1 - beta2**number) ** 0.5).add_(group["eps"])
            parameter.addcdiv_(mean, root, value=-adam / first)
        if sgd:
            parameter.add_(mean, alpha=-sgd / first)


def _sgd_rate(group: dict[str, Any]) -> float:
    """SGD's rate, after as much of a schedule as ``lr``."""
    given = group["given_lr"]
    return float(group["sgd_lr"] * group["lr"] / given if given else group["sgd_lr"])


def _note_rates(groups: list[dict[str, Any]]) -> None:
    """Where ``lr`` began: schedulers may set another one at once, and ``initial_lr`` with it."""
    for group in groups:
        group.setdefault("given_lr", float(group.get("initial_lr", group["lr"])))


def _set_share(optimizer: torch.optim.Optimizer, share: Callable[[int], float]) -> None:
    number = max((int(state.get("step", 0)) for state in optimizer.state.values()), default=0)
    found = share(number)
    if not 0 <= found <= 1:
        raise ValueError(f"share={found} in step {number} (expected from 0 to 1)")
    for group in optimizer.param_groups:
        group["share"] = found
