"""Which gradients are compressed, and how much in which step. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from aiacc.compression.codecs import (
    MOST_DENSITY,
    NONE,
    Cast,
    Codec,
    PowerSGD,
    Quantised,
    RandomK,
    Sparse,
)
from aiacc.compression.feedback import EF21, Feedback, Momentum, NoFeedback, Residual
from aiacc.compression.spelling import make_plain

#: Biases and the parameters of normalisation have fewer dimensions, small layers fewer elements:
#: they are most sensitive to errors, and save nothing.
LEAST_DIMENSIONS, LEAST_ELEMENTS = 2, 16384
#: What is counted in a policy, and the least of it.
_COUNTS = {"least_elements": 1, "dense_steps": 0, "stages": 1, "stage_steps": 0}


@dataclass(frozen=True)
class Policy:
    """Which gradients are compressed, by which codec, from which step on; the same on all ranks.

    The first ``dense_steps`` steps of a job are dense; let them be those in which the learning rate
    warms up. Then a sparse codec begins with a density of ``first_density``, which falls to its own
    in ``stages`` geometric steps, each after ``stage_steps`` steps (Lin et al., "Deep Gradient
    Compression", ICLR 2018, section 3.3). Other codecs are used at once.

    Args:
        codec: For what is compressed.
        dense: For what is not.
        feedback: What becomes of what the codec loses; None: residual for int4, powersgd, and
            sparse codecs that are not unbiased, else none.
        include: Patterns as of a shell, of names: what matches one of them is compressed.
        exclude: And what matches one of these is not.
        least_elements: Of a gradient that is compressed.
        dense_steps: At the start of a job.
        first_density: Of a sparse codec.
        stages: From there to its own density.
        stage_steps: Of each stage; 0: the codec's own density from its first step on.
    """

    codec: Codec
    dense: Cast = NONE
    feedback: Feedback | None = None
    include: Sequence[str] = ("*",)
    exclude: Sequence[str] = ()
    least_elements: int = LEAST_ELEMENTS
    dense_steps: int = 0
    first_density: float = MOST_DENSITY
    stages: int = 4
    stage_steps: int = 0

    def __post_init__(self) -> None:
        make_plain(self)
        for name, kind, expected in (
            ("codec", Codec, 'codecs.parse("int8"), for example'),
            ("dense", Cast, 'codecs.parse("bf16"), for example'),
            (
                "feedback",
                NoFeedback | Residual | Momentum | EF21 | None,
                "feedback.Residual(), for example",
            ),
            ("first_density", int | float, "a number, such as 0.1"),
            *((name, int, "a whole number, such as 500") for name in _COUNTS),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise TypeError(f"{name} {value!r} of a policy (expected {expected})")
        for name in ("include", "exclude"):
            patterns = getattr(self, name)
            several = isinstance(patterns, Sequence) and not isinstance(patterns, str)
            if not several or not all(isinstance(pattern, str) for pattern in patterns):
                example = patterns if isinstance(patterns, str) else "*.embedding.*"
                raise TypeError(
                    f"{name} {patterns!r} (expected a sequence of patterns, such as ({example!r},))"
                )
        for name, least in _COUNTS.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} {getattr(self, name)} (expected {least} or more)")
        if self._unbiased and not isinstance(self.keeps, NoFeedback):
            raise ValueError(
                f"feedback {self.feedback} with {self.codec} (expected none: what an unbiased "
                "codec loses grows when it is sent again); leave out unbiased=true"
            )
        masks = isinstance(self.keeps, Momentum) and self.keeps.masking
        if masks and isinstance(self.codec, Quantised):
            raise ValueError(
                f"feedback {self.feedback} with {self.codec} (expected masking=False: a codec of "
                "blocks sends something of every element, where momentum would begin anew)"
            )
        if isinstance(self.codec, PowerSGD) and not isinstance(self.keeps, NoFeedback | Residual):
            raise ValueError(
                f"feedback {self.feedback} with {self.codec} (expected residual or none); leave it "
                "out"
            )
        if not 0 < self.first_density <= MOST_DENSITY:
            raise ValueError(
                f"first_density {self.first_density} (expected more than 0 and at most "
                f"{MOST_DENSITY}; for more let dense_steps last longer)"
            )
        if isinstance(self.codec, Sparse) and self.first_density < self.codec.density:
            raise ValueError(
                f"first_density {self.first_density} with {self.codec} (expected its density, "
                f"{self.codec.density}, or more, from which it falls); leave it out"
            )

    def __str__(self) -> str:
        fields = dataclasses.fields(self)[1:]
        values = {field.name: getattr(self, field.name) for field in fields}
        changed = [f"{f.name}={values[f.name]}" for f in fields if values[f.name] != f.default]
        return f"Policy({', '.join([str(self.codec), *changed])})"

    @property
    def keeps(self) -> Feedback:
        """``feedback``, or what takes its place."""
        if self.feedback is not None:
            return self.feedback
        if self._unbiased:
            return NoFeedback()
        loses_much = isinstance(self.codec, Sparse | PowerSGD) or self.codec.name == "int4"
        return Residual() if loses_much else NoFeedback()

    @property
    def counts_steps(self) -> bool:
        """Whether it depends on the step how gradients travel."""
        return self.dense_steps > 0 or (isinstance(self.codec, Sparse) and self.stage_steps > 0)

    @property
    def _unbiased(self) -> bool:
        return isinstance(self.codec, RandomK) and self.codec.unbiased

    def compresses(self, name: str, shape: Sequence[int], dtype: str) -> bool:
        """Whether the gradient of that name is ever compressed.

        Args:
            name: Of the parameter.
            shape: Of the gradient.
            dtype: As NumPy writes it; only ``float32`` is compressed.
        """
        return not self._exempt(name, shape, dtype)

    def _exempt(self, name: str, shape: Sequence[int], dtype: str) -> str:
        """What keeps a gradient from being compressed, as in "2 gradients ..."; "": nothing."""
        if dtype != "float32":
            return f"of {dtype}"
        if len(shape) < LEAST_DIMENSIONS:
            return f"of fewer than {LEAST_DIMENSIONS} dimensions"
        if math.prod(shape) < self.least_elements:
            return f"of fewer than {self.least_elements} elements"
        if not self.codec.takes(shape):
            return f"that {self.codec} would not make shorter"
        included = any(fnmatchcase(name, pattern) for pattern in self.include)
        if not included or any(fnmatchcase(name, pattern) for pattern in self.exclude):
            return "that include and exclude leave out"
        return ""

    def idle(self, gradients: Iterable[tuple[str, Sequence[int], str]]) -> str:
        """Why none of these gradients is ever compressed, for people; "": one is, or none shall be.

        Args:
            gradients: Arguments of `compresses`.
        """
        reasons = Counter(self._exempt(*gradient) for gradient in gradients)
        if self.codec == NONE or not reasons or "" in reasons:
            return ""
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        return (
            f"compression={self.codec} compresses none of {reasons.total()} gradients: {counts} "
            "(expected one that it is for); give a Policy that takes some, or leave it out"
        )

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """Patterns of ``include`` and ``exclude`` that none of these names matches."""
        known = list(names)
        return [
            pattern
            for pattern in dict.fromkeys((*self.include, *self.exclude))
            if not any(fnmatchcase(name, pattern) for name in known)
        ]

    def codec_of(self, name: str, shape: Sequence[int], dtype: str, step: int) -> Codec:
        """How a gradient travels in a step, counted from 0; arguments as of `compresses`."""
        if dtype != "float32":
            return NONE
        return self.codec_at(step) if self.compresses(name, shape, dtype) else self.dense

    def codec_at(self, step: int) -> Codec:
        """How what is compressed travels in a step, counted from 0."""
        if step < 0:
            raise ValueError(f"step {step} (expected 0 or more)")
        since = step - self.dense_steps
        if since < 0:
            return self.dense
        codec = self.codec
        if not isinstance(codec, Sparse) or since >= self.stages * self.stage_steps:
            return codec
        stage = since // self.stage_steps
        factor = (codec.density / self.first_density) ** (stage / self.stages)
        return dataclasses.replace(codec, density=self.first_density * factor)
