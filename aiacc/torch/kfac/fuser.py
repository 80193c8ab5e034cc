"""Records steps, then lets factors and gradients follow the exact plan of both."""

from __future__ import annotations

import torch

from aiacc.kfac.stage import StageCosts
from aiacc.torch.kfac.capture import Capture
from aiacc.torch.kfac.execution import Execution
from aiacc.torch.kfac.fusion import OPTIMAL
from aiacc.torch.kfac.moments import Recording
from aiacc.torch.optimizer_mixin import DistributedOptimizerMixin


class Fuser:
    """Plans once, when enough steps were recorded, on every rank between the same two steps."""

    def __init__(
        self, capture: Capture, optimizer: torch.optim.Optimizer | None, fusion: str
    ) -> None:
        """Let ``capture`` record, if ``fusion`` asks for a plan.

        Args:
            capture: Knows when factors are ready.
            optimizer: Whose gradients are to follow the plan, if it has none; None: of nobody.
            fusion: `OPTIMAL`, or nothing happens.
        """
        self._capture, self._wanted = capture, fusion == OPTIMAL
        self._optimizer: DistributedOptimizerMixin | None = None
        if isinstance(optimizer, DistributedOptimizerMixin):
            self._optimizer = optimizer
        self._left = self._wanted

    def step_done(self, execution: Execution, costs: StageCosts | None, builds: bool) -> None:
        """Note the end of a step. Collective, and blocks, in the one that plans.

        Args:
            execution: Whose factors are fused.
            costs: Of operations; None: nothing is sent.
            builds: Whether the step has built factors.
        """
        if not self._left:
            return
        recording = self._capture.recording
        if costs is None or not execution.can_fuse:
            self._left = False
        elif recording is None:
            # Not from the first step, in which the ranks agree and allocate.
            gradients = [] if self._optimizer is None else self._optimizer._aiacc_unplanned
            self._capture.recording = Recording(gradients)
        elif not builds:
            recording.drop()
        else:
            recording.step_done()
            if recording.complete:
                self._left = False
                self.detach()
                merged = execution.fuse_by(recording, costs)
                if merged and self._optimizer is not None:
                    self._optimizer._aiacc_follow(merged)

    def restart(self) -> None:
        """Begin anew."""
        self.detach()
        self._left = self._wanted

    def detach(self) -> None:
        """Record no more."""
        if self._capture.recording is not None:
            self._capture.recording.detach()
            self._capture.recording = None
