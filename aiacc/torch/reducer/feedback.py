"""Gradients on their way through a codec, and what becomes of what it loses: error feedback."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from aiacc import basics
from aiacc.collectives.barrier_join import after_join
from aiacc.collectives.objects import maxima, sums
from aiacc.compression.codecs import PowerSGD
from aiacc.compression.feedback import EF21, Momentum, NoFeedback
from aiacc.compression.policy import Policy
from aiacc.compression.wire import wire_of
from aiacc.process_sets import ProcessSet, global_process_set, has_company
from aiacc.torch.compression.compressors import CodedCompressor
from aiacc.torch.reducer.bucket_codec import BucketCodec
from aiacc.torch.reducer.codec import Codec
from aiacc.torch.reducer.gathered import add_up
from aiacc.torch.reducer.kept import BEFORE, KNOWN, MOMENTUM, RESIDUAL, Kept
from aiacc.torch.reducer.state import check_state
from aiacc.torch.reducer.storage import Flat


class Feedback:
    """Encodes gradients by a policy, with what stays of them with the parameters.

    Buckets may be formed anew; then what their gradients have kept goes on. A residual belongs to
    one rank: the ranks' sums and residuals together lose nothing. On hosts of several ranks it is
    what the sum of its host has lost, in this rank's share of it.

    Attributes:
        policy: Which gradients are compressed, and how; to be changed on all ranks at once.
        policies: Others in its place, by name of the parameter; the same for all of a bucket.
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
        self.policies: dict[str, Policy] = {}
        self.kept = Kept()
        #: Of `LowRank`, by name of the parameter.
        self.factors: dict[str, torch.Tensor] = {}
        #: By name of the parameter, for buckets may be formed anew.
        self._steps: dict[str, int] = {}
        #: The parameters whose next step is dense.
        self.flushing: set[str] = set()
        self.prescale = prescale_factor
        #: Names of parameters that this rank has used in a step, if results are dropped of those
        #: that no rank has used; None: they are not.
        self.used: set[str] | None = None
        self._scaler: torch.amp.GradScaler | None = None
        #: That of the loss in which things are kept.
        self._scale = 1.0
        #: Whether that is a state's, and nobody has said what it is now.
        self._of_unknown_loss = False
        #: Whether the first step has not ended, at whose end a scaler may be noticed that skips it.
        self._first = True
        #: Of the step: whether some result is not finite, and what makes all as it was before.
        self.spoilt = False
        self.undo: list[Callable[[], None]] = []
        #: Whether the ranks may have done different numbers of steps.
        self._uneven = False
        self._observe()

    def __getstate__(self) -> dict[str, Any]:
        """A copy is of what is between two steps, and has a scaler of its own, if any.

        As at the start, that may be noticed at the end of a first step, which it skips.
        """
        return {**self.__dict__, "_scaler": None, "_first": True, "undo": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has joins of its own."""
        self.__dict__.update(state)
        self._observe()

    def _observe(self) -> None:
        after_join(self._after_join)
        basics.at_init(self._after_init)

    @property
    def follows(self) -> bool:
        """Whether a scaler may skip steps, which then are to leave no trace."""
        return self._first or self._scaler is not None

    @property
    def residuals(self) -> dict[str, torch.Tensor]:
        """By name of the parameter, of its shape."""
        return self.kept.tensors[RESIDUAL]

    def codec(
        self, op: int, named: Sequence[tuple[str, torch.Tensor]], flat: Flat | None = None
    ) -> Codec:
        """For a bucket: it is compressed if most of its elements are the policy's."""
        return BucketCodec(self, op, named, flat)

    def policy_of(self, name: str) -> Policy:
        """Of the gradient of this name."""
        return self.policies.get(name, self.policy)

    def compressed(self, named: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
        """Names of the parameters whose gradients the policy compresses."""
        return [
            name
            for name, parameter in named
            if self.policy_of(name).compresses(name, tuple(parameter.shape), _dtype_of(parameter))
        ]

    def follow(self, scaler: torch.amp.GradScaler | None) -> None:
        """Keep what is kept in the scale of the loss, which changes: multiply it as it does.

        Steps whose gradients are not finite, which the scaler skips, leave no trace in what is
        kept; that takes a copy of it in every step. Call it before the first step where nobody
        calls `notice`: in hooks; and where a job goes on from a state of a scaled loss.

        Args:
            scaler: None: the loss is not scaled.

        Raises:
            TypeError: It is no scaler.
        """
        if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
            raise TypeError(
                f"follow({scaler!r}) (expected a torch.amp.GradScaler, or None: no loss is scaled)"
            )
        self._scaler, self._of_unknown_loss = scaler, False
        if scaler is None:
            self._to_scale(1.0)

    def notice(self, scaler: torch.amp.GradScaler) -> None:
        """Follow a scaler that looks at reduced gradients, also in the place of another.

        What is kept is in its scale. So an optimizer's scaler is followed from the end of the first
        step on, and that leaves no trace either if it is skipped.
        """
        if scaler is not self._scaler:
            self._scaler, self._scale = scaler, float(scaler.get_scale())

    def settle(
        self,
        process_set: ProcessSet = global_process_set,
        others: Iterable[torch.Tensor | None] = (),
    ) -> None:
        """A step's gradients are all there: undo what it has changed here if it will not count.

        Collective: every rank of the process set, for after a `join` they agree on what step it is.
        Blocks: only then.

        Args:
            process_set: See above.
            others: Sparse gradients of the step, which no codec has seen.
        """
        if self.follows and not all(one is None or _is_finite(one) for one in others):
            self.spoilt = True
        self._undo()
        self._first = False
        if not self._uneven:
            return
        (here,) = sums([1], "compression.ranks_of_steps", process_set)
        if here < process_set.size():
            self.flushing = self._all_names()  # one has joined again, and does not know either
            return
        mine = max(self._steps.values(), default=0)
        (most,) = maxima([mine], "compression.steps", process_set)
        self._steps = {name: step + int(most) - mine for name, step in self._steps.items()}
        self._uneven = False

    def drop(self) -> None:
        """A step's gradients are dropped: undo what it has changed here, as far as that is known.

        It is where `follows` says so.
        """
        self.spoilt = True
        self._undo()

    def _undo(self) -> None:
        if self.spoilt:
            for undo in reversed(self.undo):
                undo()
        self.spoilt = False
        self.undo.clear()

    def flush(self) -> None:
        """Let the next step be dense and take all residuals with it, so that none are left.

        Before the number of ranks changes, or before a checkpoint that one rank writes for all; not
        with EF21, of which each rank's last gradient is left, nor with momentum, which stays.

        Collective: every rank, between the same steps. Blocks: never.
        """
        self._settle_a_spoilt_step()
        self.flushing = self._all_names()

    def state_dict(self) -> dict[str, Any]:
        """What is kept, and steps, of this rank, which no other rank can use.

        For another number of ranks there are `gathered_state_dict` and `flush`.
        """
        self._settle_a_spoilt_step()
        place = basics.rank(), basics.size()
        return {
            "kept": self.kept.copy(),
            "factors": {name: factor.clone() for name, factor in self.factors.items()},
            "scale": self._scale,
            "steps": dict(self._steps),
            "flushing": sorted(self.flushing),
            "uneven": self._uneven,
            "rank_and_size": place,
        }

    def gathered_state_dict(self, process_set: ProcessSet = global_process_set) -> dict[str, Any]:
        """What all ranks keep together, with which any number of ranks can go on.

        Collective: every rank of the process set, between the same steps. Blocks: until the sums
        are there.
        """
        state = self.state_dict()
        add_up(state, process_set)
        return {**state, "rank_and_size": None}

    def load_state_dict(
        self, state: dict[str, Any], process_set: ProcessSet = global_process_set
    ) -> None:
        """Continue with what `state_dict` of this rank has given, or `gathered_state_dict`.

        Of the latter each rank takes an equal part, so that sums are preserved, and the next step
        is dense and takes all residuals with it: shares of hosts may be others now. So is it if the
        policy now keeps none.

        Args:
            state: Equal on all ranks if it is gathered.
            process_set: Ranks that load it.

        Raises:
            ValueError: It is of another rank or number of ranks and has residuals, of another
                model or kind of feedback, or no such state. Nothing is changed then.
        """
        check_state(state)
        place = basics.rank(), basics.size()
        gathered = state["rank_and_size"] is None
        own = [one for kind in (RESIDUAL, MOMENTUM, BEFORE) for one in state["kept"][kind].values()]
        left = not gathered and any(bool(one.any()) for one in own)
        if left and tuple(state["rank_and_size"]) != place:
            raise ValueError(
                "residuals or momentum of rank {} of {} (expected rank {} of {}); load each "
                "rank's own, save gathered_state_dict(), or (not with EF21 or Momentum) flush() "
                "before the step whose state is saved".format(*state["rank_and_size"], *place)
            )
        kept = state["kept"]
        of_ef21 = any(bool(one.any()) for one in kept[KNOWN].values())
        if any(bool(one.any()) for one in own) and of_ef21 != isinstance(self.policy.keeps, EF21):
            raise ValueError(
                f"a state of {'ef21' if of_ef21 else 'residual or momentum'} with feedback "
                f"{self.policy.keeps} (expected the same kind: what is kept means something else); "
                "give the policy that feedback, or do not load it"
            )
        if gathered:
            ranks = process_set.size()
            kept = {
                kind: {name: one if kind == KNOWN else one / ranks for name, one in of.items()}
                for kind, of in kept.items()
            }
        self.kept.load(kept)
        self.spoilt = False
        self.undo.clear()
        self.factors = {name: factor.clone() for name, factor in state["factors"].items()}
        self._scale = state["scale"]
        self._of_unknown_loss = (
            self._scale != 1 and self._scaler is None and bool(self.kept.names())
        )
        self._steps = dict(state["steps"])
        # What nothing is added to from now on would never be sent.
        unused = isinstance(self.policy.keeps, NoFeedback) and bool(kept[RESIDUAL])
        self.flushing = self._all_names() if gathered or unused else set(state["flushing"])
        self._uneven = self._uneven or state["uneven"]

    def _all_names(self) -> set[str]:
        """Equal on all ranks, whatever they have kept: some may have come later."""
        return {*self.kept.shapes, *self.kept.names()}

    def _after_join(self) -> None:
        """Let the next step be dense where ranks may not know of the same steps."""
        if self.policy.counts_steps or isinstance(self.policy.keeps, EF21):
            self.flushing = self._all_names()
            self._uneven = True

    def _after_init(self) -> None:
        """Forget what all ranks have to have alike, for there may be ranks that have nothing yet.

        Residuals are a rank's own, but those of EF21 belong to what all know. Factors of PowerSGD
        are alike again after a step, whatever they were.
        """
        self._steps.clear()
        self.flushing.clear()
        self.undo.clear()
        self.spoilt, self._uneven = False, False
        self.kept.forget([BEFORE, KNOWN, *([RESIDUAL] if self.kept.tensors[KNOWN] else [])])

    def _settle_a_spoilt_step(self) -> None:
        """For hooks, which learn of the end of a step when the next one begins."""
        if self.spoilt:
            self._undo()

    def next_step(self, names: Iterable[str]) -> int:
        """Number of the step in which the gradients of these names are, in one bucket, now."""
        step = max(self._steps.get(name, 0) for name in names)
        self._steps.update((name, step + 1) for name in names)
        return step

    def rescale(self) -> None:
        """Bring all that is kept to the scale of the loss, which changes between steps only.

        Raises:
            ValueError: It is of another, from a state, and nobody has said what the scale is.
        """
        if self._scaler is not None:
            self._to_scale(float(self._scaler.get_scale()))
        elif self._of_unknown_loss:
            raise ValueError(
                f"the state that was loaded is of a loss times {self._scale:g}, and no scaler is "
                "followed (expected one); call feedback.follow(scaler) before the first step, or "
                "follow(None) if the loss is not scaled any more"
            )

    def _to_scale(self, scale: float) -> None:
        if scale != self._scale:
            self.kept.multiply(scale / self._scale)
            self._scale = scale


def _is_finite(gradient: torch.Tensor) -> bool:
    values = gradient if gradient.layout is torch.strided else gradient.coalesce().values()
    return bool(values.isfinite().all())


def _dtype_of(parameter: torch.Tensor) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def warn_of_patterns(patterns: Sequence[str], names: Sequence[str]) -> None:
    """Tell whoever has called the caller which patterns of a policy match none of the names."""
    if patterns:
        warnings.warn(
            f"policy: pattern {', '.join(map(repr, patterns))} matches no parameter (expected some "
            f"of {len(names)} names, such as {names[0]!r}); fix it, or pass the matching "
            "named_parameters",
            stacklevel=3,
        )


def warn_if_idle(
    policy: Policy, named: Iterable[tuple[str, torch.Tensor]], process_set: ProcessSet
) -> None:
    """Tell whoever has called the caller that nothing is compressed, and why, on the first rank.

    Not where that is so in any case: on one host, whose ranks send nothing in host memory, unless
    the engine is flat. But one rank alone is told that it has no momentum either, if codecs were
    to keep it.
    """
    if isinstance(policy.keeps, Momentum) and not has_company(process_set):
        warnings.warn(
            f"feedback={policy.keeps}: one rank alone reduces nothing, so there is no momentum "
            "(expected several ranks); give it to the optimizer here",
            stacklevel=3,
        )
        return
    trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    sends = isinstance(policy.codec, PowerSGD) or any(one.is_cuda for _, one in trained)
    if not (has_company(process_set) if sends else basics.codecs_code(process_set)):
        return
    why = policy.idle((name, tuple(one.shape), _dtype_of(one)) for name, one in trained)
    if why and process_set.rank() == 0:
        warnings.warn(why, stacklevel=3)


def feedback_of(compression: Any, prescale_factor: float = 1.0) -> Feedback | None:
    """For what an optimizer was given as ``compression``; None: that needs none."""
    if isinstance(compression, CodedCompressor):
        compression = Policy(compression.codec)
    return Feedback(compression, prescale_factor) if isinstance(compression, Policy) else None
