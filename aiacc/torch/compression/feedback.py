"""What codecs lose of gradients, kept for the next step: error feedback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from aiacc import basics
from aiacc.collectives.submission import AS_THEY_ARE
from aiacc.compression.feedback import NoFeedback, Residual
from aiacc.compression.policy import Policy
from aiacc.compression.wire import is_coded, wire_of
from aiacc.torch.compression.compressors import CodedCompressor, Compression
from aiacc.torch.compression.encode import to_send
from aiacc.torch.reducer.codec import Codec, Encoded
from aiacc.torch.reducer.storage import Flat

_FLOAT32 = "float32"


class Feedback:
    """Encodes gradients by a policy, with residuals that stay with the parameters.

    Buckets may be formed anew; then what their gradients have kept goes on. A residual belongs to
    one rank: the ranks' sums and residuals together lose nothing.

    Attributes:
        feeds_back: Whether what is lost is kept now.
        residuals: By name of the parameter, as the gradient lies in memory, in one dimension.
    """

    def __init__(self, policy: Policy) -> None:
        """Start without residuals."""
        self.policy = policy
        self.residuals: dict[str, torch.Tensor] = {}
        self._steps: Counter[str] = Counter()
        self._flushing: set[str] = set()
        self._scaler: torch.amp.GradScaler | None = None

    @property
    def policy(self) -> Policy:
        """Which gradients are compressed, and how; to be changed on all ranks at once."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        keeps = policy.keeps
        if not isinstance(keeps, NoFeedback | Residual):
            raise ValueError(f"feedback {keeps} (expected residual or none)")
        self._policy = policy
        self.feeds_back = isinstance(keeps, Residual)

    def codec(
        self, op: int, named: Sequence[tuple[str, torch.Tensor]], flat: Flat | None = None
    ) -> Codec:
        """For a bucket: it is compressed if most of its elements are the policy's."""
        first = named[0][0]
        members = {name for name, _ in named}
        compressed = set(self.compressed(named))
        elements = sum(p.numel() for name, p in named if name in compressed)
        whole = all(_dtype_of(parameter) == _FLOAT32 for _, parameter in named)
        on = whole and 2 * elements > sum(p.numel() for _, p in named)
        residuals: list[torch.Tensor] = []
        last_scale = self._scale()

        def encode(tensors: list[torch.Tensor]) -> Encoded:
            nonlocal residuals, last_scale
            step = self._steps[first]
            self._steps[first] += 1
            codec = self.policy.codec_at(step) if on else self.policy.dense
            flushes = not self._flushing.isdisjoint(members)
            if not residuals and (flushes or (is_coded(codec) and self.feeds_back)):
                residuals = self._kept(named, flat)
            scale = self._scale()
            if scale != last_scale:
                for residual in residuals:
                    residual.mul_(scale / last_scale)
                last_scale = scale
            sent, restore, _ = to_send(Compression.none, tensors, op)
            if flushes:
                self._flushing -= members
                codec = self.policy.dense
                for tensor, residual in zip(sent, residuals, strict=True):
                    tensor.view(-1).add_(residual)
                    residual.zero_()
            fed_back = residuals if is_coded(codec) and self.feeds_back else []
            wire = wire_of(codec) if whole else AS_THEY_ARE
            decode = None if restore is None else lambda _: restore()
            return Encoded(sent, decode, wire, fed_back, changes=True)

        return encode

    def compressed(self, named: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
        """Names of the parameters whose gradients the policy compresses."""
        return [
            name
            for name, parameter in named
            if self.policy.compresses(name, tuple(parameter.shape), _dtype_of(parameter))
        ]

    def follow(self, scaler: torch.amp.GradScaler) -> None:
        """Keep residuals in the scale of the loss, which changes: multiply them as it does.

        Call it before the first step.
        """
        self._scaler = scaler

    def flush(self) -> None:
        """Let the next step be dense and take all residuals with it, so that none are left.

        Before the number of ranks changes, or before a checkpoint that one rank writes for all.

        Collective: every rank, between the same steps. Blocks: never.
        """
        self._flushing = set(self.residuals)

    def state_dict(self) -> dict[str, Any]:
        """Residuals and steps of this rank, which no other rank can use: see `flush`."""
        kept = {name: residual.clone() for name, residual in self.residuals.items()}
        place = basics.rank(), basics.size()
        return {"residuals": kept, "steps": dict(self._steps), "rank_and_size": place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with what `state_dict` of this rank has given.

        Raises:
            ValueError: It is of another rank or number of ranks and has residuals, or of another
                model.
        """
        place = basics.rank(), basics.size()
        left = any(bool(residual.any()) for residual in state["residuals"].values())
        if left and tuple(state["rank_and_size"]) != place:
            raise ValueError(
                "residuals of rank {} of {} (expected rank {} of {}); load each rank's own, or "
                "flush() before the step whose state is saved".format(
                    *state["rank_and_size"], *place
                )
            )
        for name, residual in state["residuals"].items():
            mine = self.residuals.get(name)
            if mine is not None and mine.numel() != residual.numel():
                raise ValueError(
                    f"residual of {name!r} with {residual.numel()} elements (expected "
                    f"{mine.numel()}); load the state of the same model"
                )
            if mine is None:
                self.residuals[name] = residual.detach().clone().reshape(-1)
            else:
                mine.copy_(residual)
        self._steps = Counter(state["steps"])

    def _scale(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    def _kept(
        self, named: Sequence[tuple[str, torch.Tensor]], flat: Flat | None
    ) -> list[torch.Tensor]:
        if flat is None:
            return [
                self.residuals.setdefault(name, torch.zeros(parameter.numel(), device="cpu"))
                for name, parameter in named
            ]
        memory = torch.zeros(flat.memory.numel(), device="cpu")
        for (name, parameter), view in zip(named, flat.views, strict=True):
            place = memory[view.storage_offset() :][: parameter.numel()]
            if name in self.residuals:
                place.copy_(self.residuals[name])
            self.residuals[name] = place
        return [memory]


def _dtype_of(parameter: torch.Tensor) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def feedback_of(compression: Any) -> Feedback | None:
    """For what an optimizer was given as ``compression``; None: that needs none."""
    if isinstance(compression, CodedCompressor):
        compression = Policy(compression.codec)
    return Feedback(compression) if isinstance(compression, Policy) else None
