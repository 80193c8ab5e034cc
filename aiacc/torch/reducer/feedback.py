"""Gradients on their way through a codec, and what becomes of what it loses: error feedback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from aiacc import basics
from aiacc.collectives.submission import AS_THEY_ARE
from aiacc.compression import feedback as kinds
from aiacc.compression.codecs import PowerSGD
from aiacc.compression.policy import Policy
from aiacc.compression.wire import is_coded, wire_of
from aiacc.torch.compression.compressors import CodedCompressor, Compression
from aiacc.torch.compression.encode import to_send
from aiacc.torch.reducer.codec import Codec, Encoded
from aiacc.torch.reducer.kept import BEFORE, KNOWN, MOMENTUM, RESIDUAL, Kept
from aiacc.torch.reducer.low_rank import LowRank
from aiacc.torch.reducer.storage import Flat

_FLOAT32 = "float32"


class Feedback:
    """Encodes gradients by a policy, with what stays of them with the parameters.

    Buckets may be formed anew; then what their gradients have kept goes on. A residual belongs to
    one rank: the ranks' sums and residuals together lose nothing. On hosts of several ranks it is
    what the sum of its host has lost, in this rank's share of it.

    Attributes:
        policy: Which gradients are compressed, and how; to be changed on all ranks at once.
        kept: Residuals, and what else the policy's feedback needs.
    """

    def __init__(self, policy: Policy, prescale_factor: float = 1.0) -> None:
        """Start with nothing kept. Residuals are of gradients times ``prescale_factor``.

        Raises:
            ValueError: The core does not have the policy's codec.
        """
        if not isinstance(policy.codec, PowerSGD):
            wire_of(policy.codec)
        self.policy = policy
        self.kept = Kept()
        #: Of `LowRank`, by name of the parameter.
        self._factors: dict[str, torch.Tensor] = {}
        #: By name of the parameter, for buckets may be formed anew.
        self._steps: dict[str, int] = {}
        self._flushing: set[str] = set()
        self._prescale = prescale_factor
        self._scaler: torch.amp.GradScaler | None = None
        #: That of the loss in which things are kept.
        self._scale = 1.0

    @property
    def residuals(self) -> dict[str, torch.Tensor]:
        """By name of the parameter, of its shape."""
        return self.kept.tensors[RESIDUAL]

    def codec(
        self, op: int, named: Sequence[tuple[str, torch.Tensor]], flat: Flat | None = None
    ) -> Codec:
        """For a bucket: it is compressed if most of its elements are the policy's."""
        return _BucketCodec(self, op, named, flat)

    def compressed(self, named: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
        """Names of the parameters whose gradients the policy compresses."""
        return [
            name
            for name, parameter in named
            if self.policy.compresses(name, tuple(parameter.shape), _dtype_of(parameter))
        ]

    def follow(self, scaler: torch.amp.GradScaler) -> None:
        """Keep what is kept in the scale of the loss, which changes: multiply it as it does.

        Call it before the first step.
        """
        self._scaler = scaler

    def flush(self) -> None:
        """Let the next step be dense and take all residuals with it, so that none are left.

        Before the number of ranks changes, or before a checkpoint that one rank writes for all.

        Collective: every rank, between the same steps. Blocks: never.
        """
        self._flushing = self.kept.names()

    def state_dict(self) -> dict[str, Any]:
        """What is kept, and steps, of this rank, which no other rank can use: see `flush`."""
        place = basics.rank(), basics.size()
        return {
            "kept": self.kept.copy(),
            "factors": {name: factor.clone() for name, factor in self._factors.items()},
            "scale": self._scale,
            "steps": dict(self._steps),
            "rank_and_size": place,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with what `state_dict` of this rank has given.

        Raises:
            ValueError: It is of another rank or number of ranks and has residuals, or of another
                model.
        """
        place = basics.rank(), basics.size()
        left = any(bool(residual.any()) for residual in state["kept"][RESIDUAL].values())
        if left and tuple(state["rank_and_size"]) != place:
            raise ValueError(
                "residuals of rank {} of {} (expected rank {} of {}); load each rank's own, or "
                "flush() before the step whose state is saved".format(
                    *state["rank_and_size"], *place
                )
            )
        self.kept.load(state["kept"])
        self._factors = {name: factor.clone() for name, factor in state["factors"].items()}
        self._scale = state["scale"]
        self._steps = dict(state["steps"])

    def _next_step(self, names: Iterable[str]) -> int:
        """Number of the step in which the gradients of these names are, in one bucket, now."""
        step = max(self._steps.get(name, 0) for name in names)
        self._steps.update((name, step + 1) for name in names)
        return step

    def _rescale(self) -> None:
        """Bring all that is kept to the scale of the loss, which changes between steps only."""
        scale = self._scale if self._scaler is None else float(self._scaler.get_scale())
        if scale != self._scale:
            self.kept.multiply(scale / self._scale)
            self._scale = scale


class _BucketCodec:
    """The `Codec` of one bucket."""

    def __init__(
        self, owner: Feedback, op: int, named: Sequence[tuple[str, torch.Tensor]], flat: Flat | None
    ) -> None:
        self._owner, self._op, self._flat = owner, op, flat
        self._names = [name for name, _ in named]
        self._members = set(self._names)
        self._shapes = [parameter.shape for _, parameter in named]
        owner.kept.shapes.update(zip(self._names, self._shapes, strict=True))
        self._compressed = set(owner.compressed(named))
        elements = sum(p.numel() for name, p in named if name in self._compressed)
        self._whole = all(_dtype_of(parameter) == _FLOAT32 for _, parameter in named)
        self._on = self._whole and 2 * elements > sum(p.numel() for _, p in named)
        self._held: dict[str, list[torch.Tensor]] = {}

    def __call__(self, tensors: list[torch.Tensor]) -> Encoded:
        owner = self._owner
        step = owner._next_step(self._names)
        codec = owner.policy.codec_at(step) if self._on else owner.policy.dense
        sent, restore, _ = to_send(Compression.none, tensors, self._op)
        owner._rescale()
        if self._flat is None and any(
            tensor.shape != shape for tensor, shape in zip(sent, self._shapes, strict=True)
        ):
            self._shapes = [tensor.shape for tensor in sent]  # the parameters have others now
            self._held.clear()
        flushes = not owner._flushing.isdisjoint(self._members)
        if flushes:
            owner._flushing -= self._members
            codec = owner.policy.dense
        keeps = owner.policy.keeps
        if isinstance(codec, PowerSGD):
            return self._of_low_rank(sent, codec, restore)
        coded = is_coded(codec)
        values = [tensor.view(-1) for tensor in sent]
        inputs, after = values, None
        if self._on and not isinstance(keeps, kinds.NoFeedback):
            if isinstance(keeps, kinds.EF21):
                inputs, after = self._differences(values, coded)
            elif isinstance(keeps, kinds.Momentum):
                inputs, after = self._with_momentum(values, keeps, coded)
            elif coded and keeps.beta != 1:
                for residual in self._kept(RESIDUAL):
                    residual.mul_(keeps.beta)
        if flushes:
            inputs = self._flushed(inputs, values)
        feeds_back = coded and not isinstance(keeps, kinds.NoFeedback)
        residuals = self._kept(RESIDUAL) if feeds_back else []
        return Encoded(
            sent,
            _both(after, restore),
            wire_of(codec) if self._whole else AS_THEY_ARE,
            residuals,
            inputs=[] if inputs is values else inputs,
            changes=True,
        )

    def _of_low_rank(
        self, sent: list[torch.Tensor], codec: PowerSGD, restore: Callable[[], None] | None
    ) -> Encoded:
        """Two operations, one after the other."""
        owner = self._owner
        places = [(n, i) for i, n in enumerate(self._names) if n in self._compressed]
        residuals: list[torch.Tensor | None] = [None] * len(places)
        if isinstance(owner.policy.keeps, kinds.Residual):
            for residual in self._kept(RESIDUAL):
                residual.mul_(owner.policy.keeps.beta)
            residuals = [owner.residuals[name] for name, _ in places]
        low_rank = LowRank(codec.rank, places, owner._factors)
        parts = sent if self._flat is None else self._flat.views
        first = low_rank.begin(parts, residuals, owner._prescale)

        def project(handle: int) -> Encoded | None:
            second = low_rank.project(first)
            if second is None:
                return None if restore is None else restore()

            def finish(handle: int) -> None:
                low_rank.finish(second)
                if restore is not None:
                    restore()

            return Encoded([second], finish, changes=True)

        return Encoded([first], project, changes=True)

    def _with_momentum(
        self, values: list[torch.Tensor], keeps: kinds.Momentum, coded: bool
    ) -> tuple[list[torch.Tensor], Callable[[], None] | None]:
        """Local momentum to send; it begins anew where anything was sent, by any rank."""
        if not all(bool(value.isfinite().all()) for value in values):
            return values, None  # the step will not count, and must leave no trace
        momenta = self._kept(MOMENTUM)
        for momentum, value in zip(momenta, values, strict=True):
            momentum.mul_(keeps.momentum).add_(value)

        def mask() -> None:
            for momentum, value in zip(momenta, values, strict=True):
                momentum[value != 0] = 0

        return momenta, mask if coded and keeps.masking else None

    def _differences(
        self, values: list[torch.Tensor], coded: bool
    ) -> tuple[list[torch.Tensor], Callable[[], None]]:
        """What gradients differ from those before, which all ranks add to what they know.

        With residuals, this is EF21: its difference to what the others know of a gradient is the
        difference to the gradient before, and what was lost of that.
        """
        before, known = self._kept(BEFORE), self._kept(KNOWN)
        if coded:
            inputs = [value - old for value, old in zip(values, before, strict=True)]
        else:
            inputs = values
        for value, old in zip(values, before, strict=True):
            old.copy_(value)

        def integrate() -> None:
            if not all(bool(value.isfinite().all()) for value in values):
                self._owner._flushing |= self._members  # equal on all ranks, as the results are
                return
            for value, total in zip(values, known, strict=True):
                if coded:
                    total.add_(value)
                    value.copy_(total)
                else:
                    total.copy_(value)

        return inputs, integrate

    def _flushed(
        self, inputs: list[torch.Tensor], values: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """What to send with the residuals in it, which are zero then."""
        residuals = self._kept(RESIDUAL)
        factor = 1 / self._owner._prescale
        if not isinstance(self._owner.policy.keeps, kinds.EF21):  # that sends all anew
            if inputs is values:
                for value, residual in zip(values, residuals, strict=True):
                    value.add_(residual, alpha=factor)
            else:
                pairs = zip(inputs, residuals, strict=True)
                inputs = [value.add(residual, alpha=factor) for value, residual in pairs]
        for residual in residuals:
            residual.zero_()
        return inputs

    def _kept(self, kind: str) -> list[torch.Tensor]:
        if kind not in self._held:
            self._held[kind] = self._owner.kept.of_bucket(
                kind, self._names, self._shapes, self._flat
            )
        return self._held[kind]


def _both(
    after: Callable[[], None] | None, restore: Callable[[], None] | None
) -> Callable[[int], None] | None:
    if after is None and restore is None:
        return None

    def decode(_: int) -> None:
        for do in (after, restore):
            if do is not None:
                do()

    return decode


def _dtype_of(parameter: torch.Tensor) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def feedback_of(compression: Any, prescale_factor: float = 1.0) -> Feedback | None:
    """For what an optimizer was given as ``compression``; None: that needs none."""
    if isinstance(compression, CodedCompressor):
        compression = Policy(compression.codec)
    return Feedback(compression, prescale_factor) if isinstance(compression, Policy) else None
