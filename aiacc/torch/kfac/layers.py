"""The modules of a model whose gradients K-FAC preconditions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from aiacc.kfac.modelled import factor_names
from aiacc.kfac.precondition import gradient_matrix, write_gradient
from aiacc.kfac.rows import factor_shapes, has_bias, why_not
from aiacc.planning.models.kronecker import Layer
from aiacc.torch.kfac.factor import Factor
from aiacc.torch.optimizer_mixin import DistributedOptimizerMixin


class FactoredModule:
    """A module with its two factors.

    Attributes:
        name: Of the module in the model.
        module: Itself.
        a: Covariance of its inputs.
        g: Covariance of the gradients of its outputs.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        """Of one that `rows.why_not` has nothing against."""
        self.name, self.module = name, module
        self._has_bias = has_bias(module)
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        names, shapes = factor_names(name), factor_shapes(module)
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.a, self.g = (Factor(names[i], shapes[i], dtype, weight.device) for i in (0, 1))

    @property
    def weight(self) -> torch.Tensor:
        """The parameter."""
        weight = self.module.weight
        assert isinstance(weight, torch.Tensor)
        return weight

    @property
    def why_not(self) -> str | None:
        """Why it has to be left to the optimizer now; None: it is trained as at first."""
        if reason := why_not(self.module):
            return reason
        if has_bias(self.module) != self._has_bias:
            how = "frozen" if self._has_bias else "trained"
            return f"its bias is {how} since KFAC was made, so its factors have no such shape"
        return None

    @property
    def factors(self) -> tuple[Factor, Factor]:
        """Both."""
        return self.a, self.g

    @property
    def described(self) -> Layer:
        """As `aiacc.kfac` plans with it."""
        return Layer(self.name, _planned(self.a), _planned(self.g), 1, (f"{self.name}.weight",))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of `gradient`."""
        a, g = self.a.shape, self.g.shape
        return (*g[:-1], a[-1])

    def gradient(self) -> torch.Tensor | None:
        """The gradient as `rows.gradient_matrix` has it, in new memory; None: none is wanted."""
        bias = getattr(self.module, "bias", None)
        if self.why_not is not None or self.weight.grad is None:
            return None
        if isinstance(bias, torch.Tensor) and bias.requires_grad and bias.grad is None:
            bias.grad = torch.zeros_like(bias)
        return gradient_matrix(self.module)

    def put_gradient(self, matrix: torch.Tensor) -> None:
        """Overwrite what `gradient` gave, if there was any."""
        if self.weight.grad is not None:
            write_gradient(self.module, matrix)


def factored(
    model: nn.Module,
    skip_layers: Sequence[str | type[nn.Module]],
    optimizer: torch.optim.Optimizer | None = None,
) -> tuple[list[FactoredModule], dict[str, str]]:
    """Layers in the order of the model, and why other modules with parameters are none.

    Args:
        model: Whose modules they are.
        skip_layers: Names of modules, with all that they contain, and classes.
        optimizer: If a DistributedOptimizer, layers are left out whose gradients it does not
            reduce; those of another one are reduced elsewhere.

    Raises:
        ValueError: A name or class that no module has.
    """
    found: list[FactoredModule] = []
    left_out: dict[str, str] = {}
    used = set()
    reduced = None
    if isinstance(optimizer, DistributedOptimizerMixin):
        reduced = {id(one) for group in optimizer.param_groups for one in group["params"]}
    users = _users(model)
    for name, module in model.named_modules():
        skipped = [skip for skip in skip_layers if _matches(skip, name, module)]
        used.update(skipped)
        if not any(True for _ in module.parameters(recurse=False)):
            continue
        reason = "it is in skip_layers" if skipped else why_not(module)
        if reason is None:
            for what in ("weight", "bias")[: 1 + has_bias(module)]:
                others = [user for user in users.get(getattr(module, what), ()) if user != name]
                if others:
                    reason = f"its {what} is that of {others[0]}, too"
        if reason is None and reduced is not None:
            trained = [one for one in module.parameters(recurse=False) if one.requires_grad]
            if not reduced.issuperset(map(id, trained)):
                reason = "the DistributedOptimizer does not have its parameters"
        if reason is None:
            found.append(FactoredModule(name, module))
        else:
            left_out[name] = reason
    strange = [skip for skip in skip_layers if skip not in used]
    if strange:
        some = ", ".join(layer.name for layer in found[:3]) or "those of named_modules()"
        raise ValueError(
            f"skip_layers has {strange[0]!r} (expected names of modules, such as {some}, or "
            "classes of some); leave it out"
        )
    return found, left_out


def _matches(skip: str | type[nn.Module], name: str, module: nn.Module) -> bool:
    if isinstance(skip, str):
        return name == skip or name.startswith(f"{skip}.")
    return isinstance(module, skip)


def _users(model: nn.Module) -> dict[object, list[str]]:
    """Modules by the parameters that they have. With two, a gradient is the sum of both."""
    users: dict[object, list[str]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(parameter, []).append(name)
    return users


def _planned(factor: Factor) -> int:
    """Dimension of the one matrix that has as many elements."""
    shape = factor.shape
    if len(shape) == 1:
        return max(1, math.isqrt(2 * shape[0]))
    return math.ceil(math.sqrt(math.prod(shape[:-2])) * shape[-1])
