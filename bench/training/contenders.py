"""Ways for gradients to travel. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from aiacc.compression.codecs import parse
from aiacc.compression.feedback import Feedback, Momentum, NoFeedback, Residual
from aiacc.compression.policy import Policy

#: So that a share of small models is compressed, too: all but biases and normalisation.
LEAST_ELEMENTS = 1
#: Of the steps: as float32, then with a density that falls; for contenders that warm up.
DENSE_SHARE, FALLING_SHARE, STAGES = 0.1, 0.2, 4


@dataclass(frozen=True)
class Contender:
    """One way to travel.

    Attributes:
        title: As in tables.
        codec: As text.
        keeps: What becomes of what the codec loses.
        warms_up: Whether the first steps are dense, and the next less sparse.
    """

    title: str
    codec: str
    keeps: Feedback
    warms_up: bool = False

    @property
    def momentum(self) -> float:
        """That gradients have before they travel, so that the optimizer is to have none."""
        return self.keeps.momentum if isinstance(self.keeps, Momentum) else 0.0

    def policy(self, steps: int) -> Policy:
        """For a training of so many steps."""
        return Policy(
            parse(self.codec),
            feedback=self.keeps,
            least_elements=LEAST_ELEMENTS,
            dense_steps=round(DENSE_SHARE * steps) if self.warms_up else 0,
            stages=STAGES,
            stage_steps=round(FALLING_SHARE * steps / STAGES) if self.warms_up else 0,
        )


_NOTHING, _REST, _SPARSE = NoFeedback(), Residual(), "mstopk:density=0.01"
_MASKED, _UNMASKED = Momentum(0.9), Momentum(0.9, masking=False)
_NESTEROV = Momentum(0.9, masking=False, nesterov=True)
_UNMASKED_TITLE = "MSTopK 1 %, Nesterov's without masking"

CONTENDERS = {
    "dense": Contender("float32", "none", _NOTHING),
    "bf16": Contender("bf16", "bf16", _NOTHING),
    "int8": Contender("int8", "int8", _NOTHING),
    "int4": Contender("int4, feedback", "int4", _REST),
    "int4_alone": Contender("int4, no feedback", "int4", _NOTHING),
    "mstopk": Contender("MSTopK 1 %, feedback", _SPARSE, _REST),
    "mstopk_warm": Contender("MSTopK 1 %, feedback, warm-up", _SPARSE, _REST, warms_up=True),
    "mstopk_momentum": Contender("MSTopK 1 %, momentum", _SPARSE, _MASKED),
    "mstopk_nesterov_unmasked": Contender(_UNMASKED_TITLE, _SPARSE, _NESTEROV),
    "mstopk_nesterov_unmasked_warm": Contender(
        f"{_UNMASKED_TITLE}, warm-up", _SPARSE, _NESTEROV, warms_up=True
    ),
    "int8_momentum": Contender("int8, momentum", "int8", _UNMASKED),
    "randomk": Contender("random-k 1 %, feedback", "randomk:density=0.01", _REST),
    "powersgd": Contender("PowerSGD of rank 4, feedback", "powersgd:rank=4", _REST),
    "mstopk_alone": Contender("MSTopK 1 %, no feedback", _SPARSE, _NOTHING),
}
