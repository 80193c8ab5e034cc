"""The optimizer that averages gradients over all ranks before it steps."""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from aiacc.process_sets import ProcessSet, global_process_set, set_id
from aiacc.reduce_ops import Average, check_op, name_of_op
from aiacc.torch.compression import Compression, Compressor
from aiacc.torch.gradient_reducer import GradientReducer, ReductionOptions

if TYPE_CHECKING:
    from torch.optim import Optimizer as _Base
else:
    # At run time the class of the wrapped optimizer follows in the MRO.
    _Base = object

NamedParameters = list[tuple[str, torch.Tensor]]


class _Distributed(_Base):
    """What `DistributedOptimizer` adds to the class of the wrapped optimizer."""

    #: Names by parameter, as Horovod offers them.
    _parameter_names: dict[torch.Tensor, str]
    _reducer: GradientReducer
    _synchronized: bool
    _should_synchronize: bool

    def synchronize(self) -> None:
        """Wait until the gradients are reduced, for example to clip them before `step`.

        Call `step` inside `skip_synchronize` afterwards.

        Collective: every rank.
        Blocks: until every gradient is reduced.

        Raises:
            CollectiveError: A gradient could not be reduced.
        """
        self._reducer.finish()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In this context `step` does not synchronise, because `synchronize` was called before."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronise, then update the parameters.

        Collective: every rank, unless inside `skip_synchronize`.
        Blocks: until every gradient is reduced.

        Args:
            closure: Computes the loss and its gradients anew; they are reduced each time.

        Raises:
            CollectiveError: A gradient could not be reduced; no parameter was changed.
        """
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "step() after synchronize() reduces the gradients again; call it inside "
                    "'with optimizer.skip_synchronize():'",
                    stacklevel=2,
                )
            if closure is not None:
                closure = self._reduced(closure)
            if closure is None or self._reducer.under_way:
                self.synchronize()
        self._synchronized = False
        return super().step(closure)

    # Pre- and post-hooks run in the step of the wrapped class; do not let torch add them here too.
    step.hooked = True  # type: ignore[attr-defined]

    def _reduced(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def compute() -> Any:
            loss = closure()
            self._reducer.finish()
            return loss

        return compute

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients; arguments as of the wrapped optimizer.

        Raises:
            AssertionError: Gradients are being reduced: call it after `step` or `synchronize`.
        """
        if self._reducer.under_way:
            raise AssertionError(
                "zero_grad() was called after backward() and before step() or synchronize() "
                "(expected after one of them): the gradients are being reduced"
            )
        super().zero_grad(*args, **kwargs)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate ``passes`` backward passes locally before each reduction.

        Raises:
            ValueError: ``passes`` is not positive.
        """
        self._reducer.set_passes(_check_passes(passes))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over ``state_dict``; gradients that were under way are waited for and dropped."""
        if self._reducer.under_way:
            self._reducer.drop()
        self._synchronized = False
        self._should_synchronize = True
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Optimize these parameters too; their gradients are reduced under default names."""
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        named = _default_names(index, self.param_groups[index]["params"])
        self._parameter_names.update((parameter, name) for name, parameter in named)
        self._reducer.add(named)


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> _Distributed:
    """An optimizer like ``optimizer`` whose `step` uses the gradients of all ranks.

    Each gradient is submitted as soon as the backward pass has computed it, so that communication
    overlaps with the rest of the pass. To clip gradients (or to unscale them, with a GradScaler)::

        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()

    Collective: every rank wraps an optimizer of the same parameters.

    Args:
        optimizer: Optimizer to wrap. Use only the returned one from now on; it shares the state
            and the parameter groups.
        named_parameters: (name, parameter) for every parameter of ``optimizer``; the names pair
            the gradients of the ranks. Default: names by position.
        compression: Form in which gradients travel.
        backward_passes_per_step: Passes whose gradients are accumulated before each reduction.
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: Divide by this before the sum and multiply by it afterwards;
            with op=Average only.
        num_groups: Deprecated form of ``groups``.
        groups: Number of groups, or lists of parameters, that Horovod would reduce together. It is
            checked, and without further effect: the core packs gradients as they get ready.
        sparse_as_dense: Reduce sparse gradients as dense ones.
        process_set: Ranks that take part.

    Returns:
        Instance of a subclass of the class of ``optimizer``, of the same name, that has
        ``synchronize``, ``skip_synchronize`` and ``set_backward_passes_per_step`` besides.

    Raises:
        ValueError: A bad argument, or aiacc is not initialised.
    """
    prescale_factor, postscale_factor = _factors(check_op(op), gradient_predivide_factor)
    options = ReductionOptions(
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set_id=set_id(process_set),
        compression=compression,
        sparse_as_dense=sparse_as_dense,
    )
    passes = _check_passes(backward_passes_per_step)
    if isinstance(optimizer, _Distributed):
        raise ValueError(
            f"optimizer is a DistributedOptimizer ({type(optimizer).__name__}) already (expected "
            "one of torch's); wrap it once"
        )
    _check_groups(num_groups, groups)
    named = _name_parameters(optimizer, named_parameters)

    wrapped: Any = type(optimizer)
    subclass: Any = type(wrapped.__name__, (_Distributed, wrapped), {"__doc__": wrapped.__doc__})
    distributed: _Distributed = subclass.__new__(subclass)
    # Not __init__, whose arguments are unknown. A scheduler may have put a step() of its own on
    # the instance, which would call the wrapped optimizer's.
    attributes = {name: value for name, value in vars(optimizer).items() if name != "step"}
    distributed.__dict__.update(attributes)
    distributed._parameter_names = {parameter: name for name, parameter in named}
    distributed._synchronized = False
    distributed._should_synchronize = True
    distributed._reducer = reducer = GradientReducer(named, options, passes)
    weakref.finalize(distributed, reducer.detach)
    return distributed


def _factors(op: int, gradient_predivide_factor: float) -> tuple[float, float]:
    if gradient_predivide_factor == 1.0:
        return 1.0, 1.0
    if op != Average:
        raise ValueError(
            f"gradient_predivide_factor={gradient_predivide_factor} with op={name_of_op(op)} "
            "(expected op=Average); leave out one of them"
        )
    return 1.0 / gradient_predivide_factor, gradient_predivide_factor


def _check_passes(passes: int) -> int:
    if passes <= 0:
        raise ValueError(f"backward_passes_per_step={passes} (expected at least 1)")
    return passes


def _check_groups(num_groups: int, groups: object) -> None:
    if num_groups != 0:
        warnings.warn(
            "the argument 'num_groups' is deprecated; use 'groups'",
            DeprecationWarning,
            stacklevel=3,
        )
        groups = num_groups if groups is None else groups
    if groups is None or (isinstance(groups, int) and groups >= 0):
        return
    if isinstance(groups, list) and all(
        isinstance(group, list) and all(isinstance(entry, torch.Tensor) for entry in group)
        for group in groups
    ):
        members = [entry for group in groups for entry in group]
        if len(set(members)) != len(members):
            raise ValueError("groups contain a parameter twice (expected disjoint lists)")
        return
    raise ValueError(
        f"groups={groups!r} (expected a non-negative number or a list of lists of parameters)"
    )


def _default_names(group: int, parameters: list[torch.Tensor]) -> NamedParameters:
    return [(f"allreduce.noname.{group}.{index}", p) for index, p in enumerate(parameters)]


def _name_parameters(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
) -> NamedParameters:
    """Name and parameter of everything that ``optimizer`` updates."""
    groups = [group["params"] for group in optimizer.param_groups]
    defaults = [pair for index, group in enumerate(groups) for pair in _default_names(index, group)]
    named = defaults if named_parameters is None else list(named_parameters)
    for entry in named:
        if not (
            isinstance(entry, tuple)
            and len(entry) == 2
            and isinstance(entry[0], str)
            and isinstance(entry[1], torch.Tensor)
        ):
            raise ValueError(
                f"named_parameters contains {entry!r:.100} (expected (name, parameter)); "
                "pass model.named_parameters()"
            )
    twice = sorted(name for name, n in Counter(name for name, _ in named).items() if n > 1)
    if twice:
        raise ValueError(
            f"named_parameters contains {', '.join(twice)} more than once (expected unique names); "
            "give each model a prefix of its own"
        )
    name_of = {parameter: name for name, parameter in named}
    parameters = [parameter for _, parameter in defaults]
    unnamed = [index for index, parameter in enumerate(parameters) if parameter not in name_of]
    if unnamed:
        shapes = [tuple(parameters[index].shape) for index in unnamed[:5]]
        raise ValueError(
            f"named_parameters leaves out {len(unnamed)} of the optimizer's {len(parameters)} "
            f"parameters, of shapes {shapes} (expected all of them); "
            "pass the named_parameters() of every model that the optimizer updates"
        )
    return [(name_of[parameter], parameter) for parameter in parameters]
