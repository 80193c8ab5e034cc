"""What codecs lose of gradients, kept for the next step: error feedback."""

from __future__ import annotations

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
        residuals: By name of the parameter, of its shape, float32 in host memory.
    """

    def __init__(self, policy: Policy, prescale_factor: float = 1.0) -> None:
        """Start without residuals, of what gradients are times ``prescale_factor``."""
        self.policy = policy
        self._prescale = prescale_factor
        self.residuals: dict[str, torch.Tensor] = {}
        #: By name of the parameter, as the next; shapes are for what is loaded.
        self._steps: dict[str, int] = {}
        self._shapes: dict[str, torch.Size] = {}
        self._flushing: set[str] = set()
        self._scaler: torch.amp.GradScaler | None = None
        #: That of the loss in which the residuals are.
        self._residual_scale = 1.0

    @property
    def policy(self) -> Policy:
        """Which gradients are compressed, and how; to be changed on all ranks at once."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        keeps = policy.keeps
        if not isinstance(keeps, NoFeedback | Residual):
            raise ValueError(f"feedback {keeps} (expected residual or none)")
        wire_of(policy.codec)  # refuses what the core does not have
        self._policy = policy
        self.feeds_back = isinstance(keeps, Residual)
        self._beta = keeps.beta if isinstance(keeps, Residual) else 1.0

    def codec(
        self, op: int, named: Sequence[tuple[str, torch.Tensor]], flat: Flat | None = None
    ) -> Codec:
        """For a bucket: it is compressed if most of its elements are the policy's."""
        names = [name for name, _ in named]
        self._shapes.update((name, parameter.shape) for name, parameter in named)
        compressed = set(self.compressed(named))
        elements = sum(p.numel() for name, p in named if name in compressed)
        whole = all(_dtype_of(parameter) == _FLOAT32 for _, parameter in named)
        on = whole and 2 * elements > sum(p.numel() for _, p in named)
        memory: torch.Tensor | None = None

        def encode(tensors: list[torch.Tensor]) -> Encoded:
            nonlocal memory
            step = self._step(names)
            codec = self.policy.codec_at(step) if on else self.policy.dense
            sent, restore, _ = to_send(Compression.none, tensors, op)
            self._rescale()
            flushes = not self._flushing.isdisjoint(names)
            feeds_back = is_coded(codec) and self.feeds_back
            residuals: list[torch.Tensor] = []
            if flushes or feeds_back:
                if flat is None:
                    residuals = [
                        self._of(name, t.shape) for name, t in zip(names, sent, strict=True)
                    ]
                else:
                    memory = self._moved(names, flat) if memory is None else memory
                    residuals = [memory]
            if flushes:
                self._flushing.difference_update(names)
                codec = self.policy.dense
                for tensor, residual in zip(sent, residuals, strict=True):
                    tensor.add_(residual, alpha=1 / self._prescale)
                    residual.zero_()
            elif self._beta != 1.0:
                for residual in residuals:
                    residual.mul_(self._beta)
            wire = wire_of(codec) if whole else AS_THEY_ARE
            decode = None if restore is None else lambda _: restore()
            fed_back = residuals if feeds_back and not flushes else []
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
        self._rescale()
        kept = {
            name: residual.clone(memory_format=torch.contiguous_format)
            for name, residual in self.residuals.items()
        }
        place = basics.rank(), basics.size()
        return {
            "residuals": kept,
            "scale": self._residual_scale,
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
        left = any(bool(residual.any()) for residual in state["residuals"].values())
        if left and tuple(state["rank_and_size"]) != place:
            raise ValueError(
                "residuals of rank {} of {} (expected rank {} of {}); load each rank's own, or "
                "flush() before the step whose state is saved".format(
                    *state["rank_and_size"], *place
                )
            )
        for name, residual in state["residuals"].items():
            shape = self._shapes.get(name, residual.shape)
            if residual.shape != shape:
                raise ValueError(
                    f"residual of {name!r} of shape {tuple(residual.shape)} (expected "
                    f"{tuple(shape)}); load the state of the same model"
                )
        for name in self.residuals.keys() - state["residuals"].keys():
            self.residuals[name].zero_()
        for name, residual in state["residuals"].items():
            mine = self.residuals.setdefault(name, torch.zeros(residual.shape, dtype=torch.float32))
            mine.copy_(residual)
        self._residual_scale = state["scale"]
        self._steps = dict(state["steps"])

    def _step(self, names: Sequence[str]) -> int:
        """Number of the step of a bucket; gradients keep theirs when buckets are formed anew."""
        step = max(self._steps.get(name, 0) for name in names)
        for name in names:
            self._steps[name] = step + 1
        return step

    def _rescale(self) -> None:
        """Bring all residuals to the scale that the loss has now. It changes between steps."""
        scale = self._residual_scale if self._scaler is None else float(self._scaler.get_scale())
        if scale != self._residual_scale:
            for residual in self.residuals.values():
                residual.mul_(scale / self._residual_scale)
            self._residual_scale = scale

    def _of(self, name: str, shape: torch.Size) -> torch.Tensor:
        """The residual of a gradient of this shape, contiguous; zeros at first."""
        residual = self.residuals.get(name)
        if residual is None or residual.shape != shape:
            residual = torch.zeros(shape, dtype=torch.float32, device="cpu")
        self.residuals[name] = residual = residual.contiguous()
        return residual

    def _moved(self, names: Sequence[str], flat: Flat) -> torch.Tensor:
        """The residual of a flat bucket; those of its gradients are views of it from now on."""
        memory = torch.zeros(flat.memory.numel(), dtype=torch.float32, device="cpu")
        for name, view in zip(names, flat.views, strict=True):
            place = memory.as_strided(view.shape, view.stride(), view.storage_offset())
            self.residuals[name] = place.copy_(self._of(name, view.shape))
        return memory


def _dtype_of(parameter: torch.Tensor) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def feedback_of(compression: Any, prescale_factor: float = 1.0) -> Feedback | None:
    """For what an optimizer was given as ``compression``; None: that needs none."""
    if isinstance(compression, CodedCompressor):
        compression = Policy(compression.codec)
    return Feedback(compression, prescale_factor) if isinstance(compression, Policy) else None
