"""Parameters that guard themselves: whoever uses one waits for its values first.

While the values of a parameter are under way its class is one that `awaited` makes, a subclass of
its own class. torch asks the class of every tensor in the arguments of a function, also of those in
lists, before it calls it; copies and pickles ask it too. After the wait the class is its own again,
so that a parameter costs nothing where its values are current.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_grad, _requires_grad = torch.Tensor.grad, torch.Tensor.requires_grad

#: What reads and writes no element, and is called between steps. Not shapes, dtypes and the like: a
#: kernel that torch does not know, and that asks nobody, is told them before.
_HARMLESS: frozenset[Any] = frozenset(
    [
        getattr(_grad, "__get__"),  # noqa: B009 - mypy takes them for values
        getattr(_grad, "__set__"),  # noqa: B009
        getattr(_grad, "__delete__"),  # noqa: B009
        getattr(_requires_grad, "__get__"),  # noqa: B009
        getattr(_requires_grad, "__set__"),  # noqa: B009
        torch.Tensor.requires_grad_,
    ]
)


class Awaited:
    """What comes before the class of a parameter while its values are awaited."""

    __slots__ = ()

    #: Waits, and gives the parameters back their class; or raises.
    _wait: Callable[[], None]
    #: Their class.
    _own: type

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Wait for the parameters among the arguments, then call ``func``."""
        if func in _HARMLESS:
            parent: Any = super()
            return parent.__torch_function__(func, types, args, kwargs or {})
        for kind in types:
            if issubclass(kind, Awaited):
                kind._wait()
        return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: Any) -> Any:
        """A copy of the awaited value."""
        type(self)._wait()
        own: Any = self
        return own.__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The awaited value."""
        type(self)._wait()
        return self.__reduce_ex__(protocol)


def awaited(own: type, wait: Callable[[], None]) -> type:
    """A class for parameters of class ``own`` until ``wait`` has called `release` for them."""
    members = {"_wait": staticmethod(wait), "_own": own, "__module__": own.__module__}
    kind: type = type(own)(own.__name__, (Awaited, own), members)
    return kind


def is_awaited(parameter: torch.Tensor) -> bool:
    """Whether the class of ``parameter`` is one of `awaited`."""
    return issubclass(type(parameter), Awaited)


def release(parameter: torch.Tensor) -> None:
    """Give ``parameter`` its own class back; another thread may have done so."""
    kind = type(parameter)
    if issubclass(kind, Awaited):
        parameter.__class__ = kind._own
