"""What is compared: trainings, and ways for their gradients to travel. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiacc.compression.codecs import parse
from aiacc.compression.feedback import Feedback, Momentum, NoFeedback, Residual
from aiacc.compression.policy import Policy

SEEDS = (1, 2, 3)
#: The second trains on text by AdamW, the third by the same without momentum.
DIGITS, TEXT, PLAIN = "digits", "text", "text-without-momentum"
#: So that a share of small models is compressed, too: all but biases and normalisation.
LEAST_ELEMENTS = 1
#: Of the steps: as float32, then with a density that falls; for contenders that warm up.
DENSE_SHARE, FALLING_SHARE, STAGES = 0.1, 0.2, 4

_NOTHING = NoFeedback()


@dataclass(frozen=True)
class Contender:
    """One way to travel.

    Attributes:
        name: Key in result files.
        title: As in tables.
        codec: As text.
        keeps: What becomes of what the codec loses.
        warms_up: Whether the first steps are dense, and the next less sparse.
        nesterov: Whether SGD has Nesterov's momentum, of what does not travel with momentum.
    """

    name: str
    title: str
    codec: str
    keeps: Feedback = _NOTHING
    warms_up: bool = False
    nesterov: bool = True

    @property
    def momentum(self) -> float:
        """That gradients have before they travel, so that the optimizer is to have none."""
        return self.keeps.momentum if isinstance(self.keeps, Momentum) else 0.0

    @property
    def is_for_sgd(self) -> bool:
        """Whether other optimizers do not have what it changes."""
        return self.momentum > 0 or not self.nesterov

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


CONTENDERS = (
    Contender("dense", "float32", "none"),
    Contender("dense_plain", "float32, not Nesterov's", "none", nesterov=False),
    Contender("bf16", "bf16", "bf16"),
    Contender("int8", "int8", "int8"),
    Contender("int4", "int4, feedback", "int4", keeps=Residual()),
    Contender("int4_alone", "int4, no feedback", "int4"),
    Contender("mstopk", "MSTopK 1 %, feedback", "mstopk:density=0.01", keeps=Residual()),
    Contender(
        "mstopk_warm",
        "MSTopK 1 %, feedback, warm-up",
        "mstopk:density=0.01",
        keeps=Residual(),
        warms_up=True,
    ),
    Contender(
        "mstopk_plain",
        "MSTopK 1 %, feedback, not Nesterov's",
        "mstopk:density=0.01",
        keeps=Residual(),
        nesterov=False,
    ),
    Contender(
        "mstopk_momentum", "MSTopK 1 %, momentum", "mstopk:density=0.01", keeps=Momentum(0.9)
    ),
    Contender(
        "mstopk_momentum_warm",
        "MSTopK 1 %, momentum, warm-up",
        "mstopk:density=0.01",
        keeps=Momentum(0.9),
        warms_up=True,
    ),
    Contender(
        "mstopk_momentum_unmasked",
        "MSTopK 1 %, momentum without masking",
        "mstopk:density=0.01",
        keeps=Momentum(0.9, masking=False),
    ),
    Contender(
        "mstopk_nesterov_unmasked",
        "MSTopK 1 %, Nesterov's without masking",
        "mstopk:density=0.01",
        keeps=Momentum(0.9, masking=False, nesterov=True),
    ),
    Contender(
        "mstopk_nesterov_unmasked_warm",
        "MSTopK 1 %, Nesterov's without masking, warm-up",
        "mstopk:density=0.01",
        keeps=Momentum(0.9, masking=False, nesterov=True),
        warms_up=True,
    ),
    Contender("int8_momentum", "int8, momentum", "int8", keeps=Momentum(0.9, masking=False)),
    Contender("mstopk_10", "MSTopK 10 %, feedback", "mstopk:density=0.1", keeps=Residual()),
    Contender("randomk", "random-k 1 %, feedback", "randomk:density=0.01", keeps=Residual()),
    Contender("powersgd", "PowerSGD of rank 4, feedback", "powersgd:rank=4", keeps=Residual()),
    Contender("mstopk_alone", "MSTopK 1 %, no feedback", "mstopk:density=0.01"),
)


def contender(name: str) -> Contender:
    """The contender of that name; ValueError for another."""
    for one in CONTENDERS:
        if one.name == name:
            return one
    names = ", ".join(one.name for one in CONTENDERS)
    raise ValueError(f"contender {name!r} (expected one of {names})")


@dataclass(frozen=True)
class Task:
    """One training of one contender.

    Attributes:
        workload: DIGITS, TEXT or PLAIN.
        ranks: Number of ranks.
        contender: Its name.
        seed: Of the parameters, and of the order of the data.
        steps: Until the learning rate is 0.
        mbit: Rate of the interface that each rank has to itself, in Mbit/s; 0: no network.
    """

    workload: str
    ranks: int
    contender: str
    seed: int
    steps: int
    mbit: float = 0.0


#: Steps of a training, by workload and ranks: digits have as many epochs on any number of ranks.
STEPS = {
    (DIGITS, 2): 1320,
    (DIGITS, 4): 660,
    **{(workload, ranks): 1500 for workload in (TEXT, PLAIN) for ranks in (2, 4)},
}


def tasks(
    workload: str,
    ranks: int,
    names: list[str],
    steps: int | None = None,
    seeds: Sequence[int] = SEEDS,
    mbit: float = 0.0,
) -> list[Task]:
    """Trainings in the order in which they run: everybody with one seed, then with the next.

    Raises:
        ValueError: Nobody has that name, it is for SGD where another optimizer trains, or the
            workload has no number of steps on so many ranks.
    """
    if steps is None:
        if (workload, ranks) not in STEPS:
            known = ", ".join(f"{name} on {number}" for name, number in STEPS)
            raise ValueError(f"{workload!r} on {ranks} ranks (expected {known}); give --steps")
        steps = STEPS[workload, ranks]
    fit = [one.name for one in CONTENDERS if workload == DIGITS or not one.is_for_sgd]
    chosen = [contender(name).name for name in names] or fit
    for name in chosen:
        if name not in fit:
            raise ValueError(f"{name} with {workload!r} (expected {DIGITS!r}, which SGD trains)")
    return [Task(workload, ranks, name, seed, steps, mbit) for seed in seeds for name in chosen]
