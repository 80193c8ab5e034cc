"""Second-order steps for any optimizer of torch: distributed K-FAC."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from aiacc import _core, arguments, basics
from aiacc.kfac.fisher import sampled_loss
from aiacc.kfac.packing import average_packed
from aiacc.kfac.stage import StageCosts
from aiacc.process_sets import ProcessSet, first_rank, global_process_set
from aiacc.torch.kfac.agreement import (
    agree_on_costs,
    agree_on_uses,
    check_alike,
    check_gradients,
    execution_of,
)
from aiacc.torch.kfac.buckets import Arrived
from aiacc.torch.kfac.capture import Capture
from aiacc.torch.kfac.execution import Execution
from aiacc.torch.kfac.factor import Factor
from aiacc.torch.kfac.fuser import Fuser
from aiacc.torch.kfac.fusion import BULK
from aiacc.torch.kfac.layers import factored
from aiacc.torch.kfac.options import (
    SAMPLED,
    LossTerms,
    Options,
    Schedule,
    check_optimizer,
    check_type,
)
from aiacc.torch.kfac.ranks import Ranks
from aiacc.torch.kfac.report import Report, completed
from aiacc.torch.kfac.solvers import CHOLESKY, SOLVERS
from aiacc.torch.kfac.state import Checkpoint
from aiacc.torch.optimizer_mixin import DistributedOptimizerMixin, check_passes

_numbers = itertools.count()
#: By layer: whose hooks it has.
_owners: weakref.WeakKeyDictionary[nn.Module, weakref.ref[KFAC]] = weakref.WeakKeyDictionary()


class KFAC:
    """Preconditions the gradients of a model before its optimizer steps.

    In a training loop::

        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        kfac = hvd.KFAC(model, optimizer, damping=0.01)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss(model(inputs), labels).backward()
            kfac.step()       # waits for the gradients of all ranks, and changes them
            optimizer.step()

    Of each layer with inputs a and gradients g of its outputs, the gradient becomes
    ``G^-1 gradient A^-1``, where A and G are running means of a a^T and g g^T over the batches of
    all ranks: Martens, Grosse, "Optimizing Neural Networks with Kronecker-factored Approximate
    Curvature", ICML 2015. How the work is divided among the ranks: Shi, Zhang, Li, "Accelerating
    Distributed K-FAC with Smart Parallelism of Computing and Communication Tasks" (SPD-KFAC), ICDCS
    2021, and what `aiacc.kfac.distribution` lists. Factors are computed in the passes, and travel
    meanwhile.

    Ranks: every rank of the process set makes one of the same model and options, and steps equally
    often, whether its batch has used all layers or not. A rank outside the set works alone.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        lr: Schedule | None = None,
        damping: Schedule = 1e-3,
        decay: Schedule = 0.95,
        kl_clip: Schedule | None = 1e-3,
        factor_every: Schedule = 10,
        inverse_every: Schedule = 100,
        distribution: str = "spd",
        fisher: str = "empirical",
        approx: str = "expand",
        split: str = "pi",
        solve: str = CHOLESKY,
        fusion: str = "optimal",
        skip_layers: Sequence[str | type[nn.Module]] = (),
        loss_scale: float = 1.0,
        loss_terms: LossTerms = None,
        grad_scaler: Any = None,
        backward_passes_per_step: int | None = None,
        process_set: ProcessSet = global_process_set,
        costs: StageCosts | None = None,
    ) -> None:
        """Hook the layers of ``model``: linear ones, convolutions and embeddings.

        A KFAC that already has hooks in one of them is detached, since a layer has one set of
        factors: make it again if it is for other layers, too.

        Numbers marked * may be functions of the number of the step, which is from 0.

        Collective: no; the ranks compare what they were given in their first step.

        Args:
            model: What is trained. Factors are built while it is in training mode.
            optimizer: Any of torch but LBFGS, or a DistributedOptimizer of one. Another one than
                that has to be given gradients of all ranks, as DistributedDataParallel does.
            lr: * Learning rate, for ``kl_clip``; that of the optimizer's groups if not given.
            damping: * Added to A (x) G. It is what has to be tuned: 3e-5 to 1.
            decay: * Weight of the old running mean; the first step's factors are the first mean.
            kl_clip: * Gradients are scaled down so that a step changes predictions no more than so;
                None: not at all.
            factor_every: * Steps from one update of the factors to the next.
            inverse_every: * Steps from one inversion to the next.
            distribution: "replicate", "mpd", "spd", "dp", or "kaisa:" with a share of the ranks,
                such as "kaisa:0.5"; see `aiacc.kfac.distribution`. All but "dp" give the same
                gradients.
            fisher: "empirical": with the gradients of the loss; "mc": with those that `sample`
                draws from the model.
            approx: "expand" or "reduce", for layers that share weights among places (`factors`).
            split: How damping is divided between A and G: "pi" or "plain" (`split_damping`); with
                ``solve="eigh"`` it is not divided.
            solve: "cholesky": by the inverses of A and G, each with its part of the damping that
                the step had in which they were computed; "eigh": by the eigenvectors and
                eigenvalues of both, with which each step's damping is exact,
                ``(A (x) G + damping I)^-1``, for twice the bytes and more computation.
            fusion: Which factors travel together: "optimal": record when factors and gradients are
                ready in 4 steps, and follow the exact plan of both from then on, gradients too if
                every step builds factors and the DistributedOptimizer has no plan or groups;
                "threshold": neighbours up to 4 MiB; "bulk": up to 64 MiB, behind the passes.
            skip_layers: Names of modules, with all in them, and classes, that are left to the
                optimizer alone.
            loss_scale: By which the mean over this rank's terms was multiplied to get the loss.
            loss_terms: Examples, or tokens, over which the loss of a pass is a mean: a number, or a
                function without arguments that each pass asks for it, such as one that counts
                targets that are not ignored. None: as many as the model predicts, by the shape
                of its outputs. ``fisher="mc"`` counts them itself.
            grad_scaler: The GradScaler by which the loss is scaled, if any. Call its ``unscale_``
                before `step`.
            backward_passes_per_step: Passes whose gradients add up to a step; that of a
                DistributedOptimizer, else 1, if not given.
            process_set: Ranks that take part.
            costs: Of inversions (of decompositions, with "eigh") and of sending, by which work is
                placed; measured in the first step if not given.

        Raises:
            ValueError: A bad argument, or a model without any such layer.
            TypeError: An argument of a wrong type.
        """
        self._optimizer = check_optimizer(optimizer)
        check_type("model", model, nn.Module)
        arguments.check(
            {"process_set": process_set, "costs": costs},
            costs=arguments.or_none(arguments.of(StageCosts, "StageCosts of aiacc.kfac.stage")),
        )
        self._options = Options(
            lr=lr,
            damping=damping,
            decay=decay,
            kl_clip=kl_clip,
            factor_every=factor_every,
            inverse_every=inverse_every,
            distribution=distribution,
            fisher=fisher,
            approx=approx,
            split=split,
            solve=solve,
            fusion=fusion,
            loss_scale=loss_scale,
            loss_terms=loss_terms,
            grad_scaler=grad_scaler,
            skip_layers=skip_layers,
        )
        self._layers, self._left_out = factored(model, self._options.skip_layers, optimizer)
        if not self._layers:
            named = list(self._left_out.items())[:3] or [("", "it has no parameters")]
            reasons = [f"{name or type(model).__name__}: {reason}" for name, reason in named]
            raise ValueError(
                "model has no layer with factors (expected a linear layer, a convolution or an "
                f"embedding); {'; '.join(reasons)}"
            )
        self._process_set = process_set
        self._solver = SOLVERS[solve]
        self._costs = costs and replace(costs, square=self._solver.square)
        passes = backward_passes_per_step
        self._passes = None if passes is None else check_passes(passes)
        self._step = 0
        self._execution: Execution | None = None
        self._ranks = Ranks(process_set)
        self._uses_known = False
        self._stage_costs = self._costs
        self._invert_next = False
        #: Whether every rank has all means that there are: nobody's, or those of a state.
        self._whole = True
        self._unchecked = False
        self._report = Report(solve=solve)
        self._detached = ""
        self._take_over()
        self._capture = Capture(model, self._layers, self._ready, approx)
        self._capture.passes = self._number_of_passes
        self._capture.watch(optimizer)
        if fisher != SAMPLED:
            self._capture.loss_scale = self._loss_scale
            self._capture.loss_terms = self._options.terms
        self._scale: float | None = None
        self._checkpoint = Checkpoint(self._layers)
        # With other frequencies most steps have gradients alone, for which that plan is none.
        self._fuser = Fuser(self._capture, optimizer if factor_every == 1 else None, fusion)
        self._begin()
        basics.at_init(self._restart)

    # --- the steps of training

    def sample(
        self, outputs: torch.Tensor, loss: nn.Module, targets: torch.Tensor | None = None
    ) -> None:
        """Build G with targets that are drawn from what the model predicts (``fisher="mc"``).

        Call it after the forward pass and before ``backward()``, in every step; it does nothing in
        those that build no factors. It costs a backward pass, and leaves gradients as they are.
        What comes of predictions that are not finite is not finite, and enters no mean.

        Args:
            outputs: Of the model, with their graph.
            loss: The module that computes the loss, as a mean or a sum over examples; see
                `sample_targets`.
            targets: Those of the data, if a cross entropy ignores some of them
                (``ignore_index``): nothing is drawn there.

        Raises:
            TypeError: A loss that has no distribution; outputs or targets that are no tensors.
            ValueError: Targets of another shape; it is detached.
        """
        tensor = arguments.of(torch.Tensor, "a torch.Tensor")
        arguments.check(
            {"outputs": outputs, "targets": targets},
            outputs=tensor,
            targets=arguments.or_none(tensor),
        )
        self._check_attached()
        if not self._capture.wanted or all(layer.why_not for layer in self._layers):
            return
        scaler = self._options.grad_scaler
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        weights = [layer.weight for layer in self._layers if layer.why_not is None]
        with torch.enable_grad():
            sampled, terms = sampled_loss(outputs, loss, targets)
            sums = getattr(loss, "reduction", "mean") == "sum"
            with self._capture.scaled(scale * terms if sums else scale, terms):
                torch.autograd.grad(sampled * scale, weights, retain_graph=True, allow_unused=True)

    def step(self) -> None:
        """Replace the gradients of layers by preconditioned ones.

        With a DistributedOptimizer it waits for the reduced gradients first, unless ``synchronize``
        was called; the optimizer's next step takes them as they are then.

        Collective: every rank of the process set.
        Blocks: until this step's exchanges have ended.

        Raises:
            CollectiveError: An operation failed; gradients may be of this rank, or reduced, but are
                not preconditioned.
            ValueError: In the first step, if the ranks differ; a schedule gave a bad value; it is
                detached.
        """
        self._check_attached()
        device = self._layers[0].weight.device.type
        with torch.no_grad(), torch.autocast(device, enabled=False):
            execution = self._agreed()
            builds = self._capture.wanted
            if builds:
                self._capture.warn_of_nothing(self._step, self._options.fisher == SAMPLED)
                self._capture.warn_of_late()
                execution.exchange.complete()
                self._flush()
            self._take_gradients()
            if self._unchecked:
                check_gradients(self._layers, self._ranks)
                self._unchecked = False
            if builds:
                began = time.perf_counter()
                self._average(execution.exchange.finish())
                self._report.note("wait for factors", began)
            damping = self._options.at("damping", self._step)
            if self._invert_next or self._options.due("inverse_every", self._step):
                execution.stage.run(damping, self._options.split)
                self._report.inverse_steps += 1
                self._invert_next = False
            began = time.perf_counter()
            clip = self._options.kl_clip
            bound = None if clip is None else self._options.at("kl_clip", self._step)
            execution.preconditioning.run(damping, bound, self._rates())
            self._report.note("precondition", began)
            self._fuser.step_done(execution, self._stage_costs, builds)
            self._step += 1
            self._begin()

    def report(self) -> Report:
        """What was done so far, and what it took, as numbers and as text. Not collective."""
        self._report.steps, self._report.loss_terms = self._step, self._capture.terms
        return completed(
            self._report, self._layers, self._left_out, self._capture.seconds, self._execution
        )

    # --- checkpoints

    def consolidate_state_dict(self) -> None:
        """Bring all factors here, which are divided among the ranks, for `state_dict`.

        Collective: every rank of the process set. Blocks until they are there.
        """
        self._checkpoint.consolidate(self._step, self._execution, self._ranks)

    def state_dict(self) -> dict[str, Any]:
        """Running means and the number of the step, for `load_state_dict` at any number of ranks.

        Raises:
            ValueError: `consolidate_state_dict` was not called after the last step, and factors are
                divided among the ranks.
        """
        return self._checkpoint.state(self._step, self._execution, self._ranks)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a state was taken; the next step computes inverses anew.

        Collective: every rank, with the same state, before the same step.

        Raises:
            ValueError: A state of another model.
        """
        self._step = self._checkpoint.load(state_dict)
        self._invert_next = True
        self._whole = True
        if self._execution is not None:
            self._execution.drop_exchange()
        self._begin()

    def detach(self) -> None:
        """Remove the hooks, and leave what sets were formed; `step` is an error from now on."""
        self._detach("detach() was called")

    def _detach(self, why: str) -> None:
        self._detached = self._detached or why
        self._capture.detach()
        self._fuser.detach()
        self._ranks.leave()

    def _take_over(self) -> None:
        """Let these layers have no other hooks than ours."""
        for layer in self._layers:
            reference = _owners.get(layer.module)
            other = None if reference is None else reference()
            if other is not None and not other._detached:
                other._detach(f"another KFAC was made of layer {layer.name!r}")
            _owners[layer.module] = weakref.ref(self)

    def _check_attached(self) -> None:
        if self._detached:
            raise ValueError(
                f"K-FAC is detached: {self._detached} (expected one whose hooks the model has); "
                "use the newer KFAC, or make a new one"
            )

    # --- parts of a step

    def _begin(self) -> None:
        """Start the step with the number `_step`."""
        self._capture.wanted = self._options.due("factor_every", self._step)
        self._scale = None
        for layer in self._layers:
            for factor in layer.factors:
                factor.clear()
                if not self._uses_known:
                    factor.uses_per_pass = 0

    def _number_of_passes(self) -> int:
        if self._passes is not None:
            return self._passes
        return int(getattr(self._optimizer, "backward_passes_per_step", 1))

    def _loss_scale(self) -> float:
        if self._scale is None:
            scaler = self._options.grad_scaler
            scale = self._options.loss_scale / self._number_of_passes()
            self._scale = scale if scaler is None else scale * float(scaler.get_scale())
        return self._scale

    def _ready(self, factor: Factor) -> None:
        if self._execution is not None and self._options.fusion != BULK:
            self._execution.exchange.ready(factor)

    def _flush(self) -> None:
        if not self._ranks.alone:
            _core.flush()

    def _take_gradients(self) -> None:
        if isinstance(self._optimizer, DistributedOptimizerMixin):
            began = time.perf_counter()
            self._optimizer._aiacc_settle()
            self._report.note("wait for gradients", began)

    def _average(self, arrived: list[Arrived]) -> None:
        decay = self._options.at("decay", self._step)
        if not arrived:
            return
        weights = torch.stack([one.weight.double() for one in arrived]).tolist()
        of_g = {layer.g.name for layer in self._layers}
        packed = []
        for one, weight in zip(arrived, weights, strict=True):
            sums = one.factor.name in of_g
            if weight > 0 and one.is_packed:
                packed.append(one.factor.entry(one.total, weight, sums, decay))
            elif weight > 0:
                one.factor.take(one.total, weight, sums, decay)
        average_packed(packed)
        self._report.factor_steps += 1

    def _rates(self) -> Callable[[torch.Tensor], float]:
        if self._options.lr is not None:
            lr = self._options.at("lr", self._step)
            return lambda _: lr
        rates = {
            parameter: float(group["lr"])
            for group in self._optimizer.param_groups
            for parameter in group["params"]
        }
        return lambda parameter: rates.get(parameter, 0.0)

    # --- what the ranks agree on

    def _agreed(self) -> Execution:
        if self._execution is None:
            self._ranks = ranks = Ranks(self._process_set)
            costs = "measured" if self._costs is None else "given"
            wish = f"{self._options.described(self._step)}, costs={costs}"
            number = check_alike(wish, self._layers, self._step, ranks, next(_numbers), self._costs)
            # The first rank's number is its own alone: others may be first in sets of theirs.
            ranks.name = f"kfac.{first_rank(self._process_set)}.{number}"
            self._stage_costs = self._costs
            if self._costs is None and not ranks.alone:
                self._stage_costs = agree_on_costs(self._layers, ranks, self._solver)
            self._execution = execution_of(
                self._options.distribution,
                self._layers,
                ranks,
                self._stage_costs,
                self._solver,
                bulk=self._options.fusion == BULK,
            )
            self._capture.skip(self._execution.unneeded)
            self._unchecked = not ranks.alone
        elif self._whole:
            self._execution.forget_unneeded()
        self._whole = False
        if self._capture.wanted and not self._uses_known:
            self._uses_known = agree_on_uses(
                self._layers, self._number_of_passes(), self._capture.dropped, self._ranks
            )
            self._capture.leave_weights()
        return self._execution

    def _restart(self) -> None:
        """In a job that starts anew, and may divide factors otherwise."""
        if self._detached:
            return
        if self._execution is not None and not self._whole:
            self._execution.forget_divided()
        self._execution, self._uses_known = None, False
        self._capture.follow_weights()
        self._fuser.restart()
        self._begin()
