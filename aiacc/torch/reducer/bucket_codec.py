"""Encodes the gradients of one bucket, with what their parameters have kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch

from aiacc.collectives.submission import AS_THEY_ARE
from aiacc.compression import feedback as kinds
from aiacc.compression.codecs import PowerSGD
from aiacc.compression.policy import Policy
from aiacc.compression.wire import is_coded, wire_of
from aiacc.torch.compression.compressors import Compression
from aiacc.torch.compression.encode import to_send
from aiacc.torch.reducer.codec import Encoded
from aiacc.torch.reducer.kept import BEFORE, KINDS, KNOWN, MOMENTUM, RESIDUAL
from aiacc.torch.reducer.low_rank import LowRank
from aiacc.torch.reducer.storage import Flat

if TYPE_CHECKING:
    from aiacc.torch.reducer.feedback import Feedback

#: What is to do with what is kept once an operation is done, given whether it travelled coded.
After: TypeAlias = Callable[[bool], None]


class BucketCodec:
    """The `Codec` of one bucket."""

    def __init__(
        self, owner: Feedback, op: int, named: Sequence[tuple[str, torch.Tensor]], flat: Flat | None
    ) -> None:
        self._owner, self._op, self._flat = owner, op, flat
        self._names = [name for name, _ in named]
        self._members = set(self._names)
        self._parameters = [parameter for _, parameter in named]
        self._shapes = [parameter.shape for parameter in self._parameters]
        owner.kept.shapes.update(zip(self._names, self._shapes, strict=True))
        self._compressed = set(owner.compressed(named))
        elements = sum(p.numel() for name, p in named if name in self._compressed)
        self._whole = all(parameter.dtype == torch.float32 for _, parameter in named)
        self._on = self._whole and 2 * elements > sum(p.numel() for _, p in named)
        self._held: dict[str, list[torch.Tensor]] = {}
        #: Without elements, on the device of the gradients, where what is kept of them is, too.
        self._like = torch.empty(0, dtype=torch.float32, device="cpu")

    def __call__(self, tensors: list[torch.Tensor]) -> Encoded:
        """Of the gradients of the bucket, or of its flat tensor, in its next step."""
        owner, policy = self._owner, self._policy
        step = owner.next_step(self._names)
        codec = policy.codec_at(step) if self._on else policy.dense
        sent, restore, _ = to_send(Compression.none, tensors, self._op)
        if not self._held or self._like.device != sent[0].device:
            self._like = sent[0].new_empty(0)
            self._held.clear()
        owner.rescale()
        if owner.follows and self._on:
            self._remember()
        if self._flat is None and any(
            tensor.shape != shape for tensor, shape in zip(sent, self._shapes, strict=True)
        ):
            self._shapes = [tensor.shape for tensor in sent]  # the parameters have others now
            self._held.clear()
        flushes = not owner.flushing.isdisjoint(self._members)
        if flushes:
            owner.flushing -= self._members
            codec = policy.dense
        resting = self._resting(sent, flushes)
        put_back = None
        if resting:
            put_back = self._withheld(resting)
            restore = _in_turn(restore, partial(put_back, flushed=flushes))
        keeps = policy.keeps
        if isinstance(codec, PowerSGD):
            return self._of_low_rank(sent, codec, restore, put_back)
        coded = is_coded(codec)
        values = [tensor.view(-1) for tensor in sent]
        inputs = values
        after: After | None = None
        undo: Callable[[], None] | None = None
        if self._on and not isinstance(keeps, kinds.NoFeedback):
            if isinstance(keeps, kinds.EF21):
                inputs, after = self._differences(values, coded, resting)
                undo = self._ask_anew
            elif isinstance(keeps, kinds.Momentum):
                inputs, after = self._with_momentum(values, keeps)
            elif coded and keeps.beta != 1:
                after = self._forgetting(keeps.beta)
                undo = partial(after, False)
        if flushes and not owner.kept.names().isdisjoint(self._members):
            inputs = self._flushed(inputs, values)
            after = _in_turn(after, self._forget_residuals)
        feeds_back = coded and not isinstance(keeps, kinds.NoFeedback)
        residuals = self._kept(RESIDUAL) if feeds_back else []
        return Encoded(
            sent,
            self._then(after, values, restore),
            undo if put_back is None else _in_turn(undo, put_back),
            wire_of(codec) if self._whole else AS_THEY_ARE,
            residuals,
            inputs=[] if inputs is values else inputs,
            changes=True,
        )

    @property
    def _policy(self) -> Policy:
        return self._owner.policy_of(self._names[0])

    def _then(
        self,
        after: After | None,
        results: Sequence[torch.Tensor],
        restore: Callable[[], None] | None,
    ) -> Callable[[int, bool], None] | None:
        """What is to do, in this order, once the results are there."""
        owner = self._owner
        if after is None and restore is None and not owner.follows:
            return None

        def then(_: int, coded: bool) -> None:
            if after is not None:
                after(coded)
            if owner.follows and not all(bool(result.isfinite().all()) for result in results):
                owner.spoilt = True
            if restore is not None:
                restore()

        return then

    def _remember(self) -> None:
        """Let the owner undo what this step changes."""
        owner = self._owner
        for kind in KINDS:
            if not owner.kept.tensors[kind].keys().isdisjoint(self._members):
                self._kept(kind)
        before = {kind: [one.clone() for one in kept] for kind, kept in self._held.items()}
        factors = {name: owner.factors.get(name) for name in self._names}
        flushing = owner.flushing & self._members

        def undo() -> None:
            for kind, kept in self._held.items():
                for place, one in enumerate(kept):
                    if kind in before:
                        one.copy_(before[kind][place])
                    else:
                        one.zero_()
            for name, factor in factors.items():
                if factor is not None:
                    owner.factors[name] = factor
                else:
                    owner.factors.pop(name, None)
            owner.flushing |= flushing

        owner.undo.append(undo)

    def _resting(self, sent: list[torch.Tensor], flushes: bool) -> dict[str, torch.Tensor]:
        """By name, gradients of parameters that are frozen on this rank, if they are zeros.

        And of those that it has not used, if nobody gets the results unless some rank has. But what
        EF21 keeps of them has to learn of zeros, and a flush takes all along.
        """
        used = self._owner.used
        unused = self._members - used if used is not None else set()
        if used is not None:
            used -= self._members
        if flushes or isinstance(self._policy.keeps, kinds.EF21):
            unused = set()
        if not unused and all(parameter.requires_grad for parameter in self._parameters):
            return {}
        parts = sent if self._flat is None else self._flat.views
        return {
            name: part
            for name, parameter, part in zip(self._names, self._parameters, parts, strict=True)
            if name in unused or (not parameter.requires_grad and _is_zero(part))
        }

    def _withheld(self, resting: Iterable[str]) -> Callable[..., None]:
        """Let what is kept of these wait, for what it sends would change frozen parameters.

        Another rank may train them: what the codec loses of that is added.

        Returns:
            What puts it back; ``flushed``: but residuals, of which nothing is to be left.
        """
        kept = self._owner.kept.tensors
        waiting = [
            (kind, name, kept[kind][name].clone())
            for kind in (RESIDUAL, MOMENTUM)
            for name in resting
            if name in kept[kind]
        ]
        for kind, name, _ in waiting:
            kept[kind][name].zero_()

        def put_back(*, flushed: bool = False) -> None:
            for kind, name, before in waiting:
                if kind != RESIDUAL or not flushed:
                    kept[kind][name].add_(before)

        return put_back

    def _of_low_rank(
        self,
        sent: list[torch.Tensor],
        codec: PowerSGD,
        restore: Callable[[], None] | None,
        undo: Callable[[], None] | None,
    ) -> Encoded:
        """Two operations, one after the other."""
        owner = self._owner
        places = [(n, i) for i, n in enumerate(self._names) if n in self._compressed]
        residuals: list[torch.Tensor | None] = [None] * len(places)
        keeps, beta = self._policy.keeps, 1.0
        if isinstance(keeps, kinds.Residual):
            self._kept(RESIDUAL)
            residuals, beta = [owner.residuals[name] for name, _ in places], keeps.beta
        low_rank = LowRank(codec.rank, places, owner.factors)
        parts = sent if self._flat is None else self._flat.views
        with _exactly():
            first = low_rank.begin(parts, residuals, owner.prescale, beta)

        def finish(summed: torch.Tensor) -> None:
            with _exactly():
                low_rank.finish(summed)

        def project(handle: int, coded: bool) -> Encoded | None:
            with _exactly():
                second = low_rank.project(first)
            if second is None:
                done = self._then(None, parts, restore)
                return None if done is None else done(handle, coded)
            done = self._then(lambda _: finish(second), parts, restore)
            return Encoded([second], done, undo, changes=True)

        return Encoded([first], project, undo, changes=True)

    def _with_momentum(
        self, values: list[torch.Tensor], keeps: kinds.Momentum
    ) -> tuple[list[torch.Tensor], After | None]:
        """Local momentum to send; it begins anew where this rank has sent something.

        That is where nothing is left of what is in the sum. On a host of several ranks one of them
        knows it of each element; the others take what any host has sent.
        """
        if not all(bool(value.isfinite().all()) for value in values):
            return values, None  # the step will not count, and must leave no trace
        momenta, residuals = self._kept(MOMENTUM), self._kept(RESIDUAL)

        def with_momentum(of: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return [g.add(m, alpha=keeps.momentum) for g, m in zip(values, of, strict=True)]

        now = with_momentum(momenta)  # apart, for the operation may fail
        inputs = with_momentum(now) if keeps.nesterov else now

        def keep(travelled: bool) -> None:
            for momentum, after in zip(momenta, now, strict=True):
                momentum.copy_(after)
            if not (travelled and keeps.masking):
                return
            for momentum, value, left in zip(momenta, values, residuals, strict=True):
                momentum[(value != 0) & (left == 0)] = 0

        return inputs, keep

    def _differences(
        self, values: list[torch.Tensor], coded: bool, resting: dict[str, torch.Tensor]
    ) -> tuple[list[torch.Tensor], After]:
        """What gradients differ from those before, which all ranks add to what they know.

        With residuals, this is EF21: its difference to what the others know of a gradient is the
        difference to the gradient before, and what was lost of that. Those of frozen parameters
        stay as they were; what all know of them is no gradient until some rank sends a difference.
        """
        before, known = self._kept(BEFORE), self._kept(KNOWN)
        if coded:
            for name, part in resting.items():
                part.copy_(self._owner.kept.tensors[BEFORE][name])
            inputs = [value - old for value, old in zip(values, before, strict=True)]
        else:
            inputs = values
        for value, old in zip(values, before, strict=True):
            old.copy_(value)

        def integrate(_: bool) -> None:
            if not all(bool(value.isfinite().all()) for value in values):
                if not self._owner.follows:  # else all is as it was before
                    self._ask_anew()  # on all ranks, as the results are
                    for old in before:  # which may be what is not finite
                        old.zero_()
                return
            unchanged = [part for part in resting.values() if not part.any()]
            for value, total in zip(values, known, strict=True):
                if coded:
                    total.add_(value)
                    value.copy_(total)
                else:
                    total.copy_(value)
            for part in unchanged:
                part.zero_()

        return inputs, integrate

    def _ask_anew(self) -> None:
        """For a failure of the operation on all ranks: they do not know what EF21 has sent."""
        self._owner.flushing |= self._members

    def _forgetting(self, beta: float) -> After:
        """Residuals count ``beta`` times in this step, if they are sent."""
        residuals = self._kept(RESIDUAL)
        for residual in residuals:
            residual.mul_(beta)

        def wait_on(travelled: bool) -> None:
            if not travelled:
                for residual in residuals:
                    residual.div_(beta)

        return wait_on

    def _forget_residuals(self, _: bool) -> None:
        """They were sent; for good, if nothing is lost from now on."""
        for residual in self._kept(RESIDUAL):
            residual.zero_()
        if isinstance(self._policy.keeps, kinds.NoFeedback) and not self._owner.follows:
            del self._held[RESIDUAL]
            for name in self._names:
                del self._owner.residuals[name]

    def _flushed(
        self, inputs: list[torch.Tensor], values: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """What to send with the residuals in it."""
        residuals = self._kept(RESIDUAL)
        factor = 1 / self._owner.prescale
        if not isinstance(self._policy.keeps, kinds.EF21):  # that sends all anew
            if inputs is values:
                for value, residual in zip(values, residuals, strict=True):
                    value.add_(residual, alpha=factor)
            else:
                pairs = zip(inputs, residuals, strict=True)
                inputs = [value.add(residual, alpha=factor) for value, residual in pairs]
        return inputs

    def _kept(self, kind: str) -> list[torch.Tensor]:
        if kind not in self._held:
            self._held[kind] = self._owner.kept.of_bucket(
                kind, self._names, self._shapes, self._flat, self._like
            )
        return self._held[kind]


def _exactly() -> torch.autocast:
    """Under autocast products of matrices would be of 16 bits."""
    return torch.autocast("cpu", enabled=False)


def _is_zero(tensor: torch.Tensor) -> bool:
    """Most tensors that are not show it at once."""
    return tensor.numel() == 0 or not (bool(tensor[(0,) * tensor.dim()]) or bool(tensor.any()))


def _in_turn(first: Callable[..., None] | None, then: Callable[..., None]) -> Callable[..., None]:
    def both(*arguments: bool) -> None:
        if first is not None:
            first(*arguments)
        then(*arguments)

    return both
