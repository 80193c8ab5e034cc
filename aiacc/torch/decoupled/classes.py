"""Which optimizers can update parts of parameters."""

from __future__ import annotations

import torch

#: Those of torch whose update of an element depends on that element, its gradient and its state
#: alone. Not LBFGS (one state for all), Adafactor (rows and columns), Muon (matrices), SparseAdam.
ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.ASGD,
    torch.optim.Rprop,
)

#: What a class of another origin declares to say that it is one of them.
DECLARATION = "is_elementwise"


def check_elementwise(optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError unless parts of parameters can be updated by themselves."""
    kind = type(optimizer)
    if kind not in ELEMENTWISE and not getattr(kind, DECLARATION, False):
        names = ", ".join(known.__name__ for known in ELEMENTWISE)
        raise ValueError(
            f"schedule='decoupled' with {kind.__name__} (expected one of {names}): each rank "
            "updates parts of parameters, which a norm or a matrix of a whole one does not allow; "
            f"use schedule='all_reduce', or set {DECLARATION} = True on the class if every element "
            "is updated by itself"
        )
