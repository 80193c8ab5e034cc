"""``DistributedOptimizer(plan="auto")``: a job that records its steps and plans for itself."""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from statistics import median

import torch

from aiacc import _core, basics
from aiacc.autotune import tuner
from aiacc.autotune.profile import COUNTED, WARM_UP, slowest_of_all
from aiacc.collectives.barrier_join import after_join
from aiacc.collectives.objects import broadcast_object, maxima, sums
from aiacc.collectives.reduce_ops import Sum
from aiacc.planning.fit import Operation, busy_s, fit_affine, fit_steps
from aiacc.planning.plan import Constraints, Plan
from aiacc.planning.search import AUTO, Costs, PlanSearch, Watch
from aiacc.planning.trace import Trace
from aiacc.process_sets import first_rank, has_company
from aiacc.torch.mpi_ops import allreduce_
from aiacc.torch.recorder import StepRecorder, recorder_of
from aiacc.torch.reducer.consensus import describe, least_waiting
from aiacc.torch.reducer.plan import planned, singly
from aiacc.torch.reducer.reducer import GradientReducer
from aiacc.torch.units import units

#: Steps of a visit that do not count, since they agree on names and allocate; and those that do.
SETTLE, MEASURED = 2, 4
#: Steps after which a job that has its plan looks whether they still take as long.
WATCHED = 100
#: Bytes of the operations that are timed where the steps' own cannot be, and repeats of each.
_PROBED, _REPEATS = (1 << 16, 1 << 20, 1 << 23), 4
#: A size after one that took so long is left out.
_PROBE_S = 0.5

#: Those that there are: units are the job's, so only a sole one tries others.
_live: weakref.WeakSet[AutoPlan] = weakref.WeakSet()
#: Units of so many bytes need not grow: they are worth the waits of any network.
_LARGE = 8 << 20


class AutoPlan:
    """Lets a reducer follow the plans of a `PlanSearch`, which is the first rank's.

    Recorded steps without a plan are followed by visits of the plans that the search wants to see.
    At the end of each visit the ranks exchange the slowest median step, and the first rank says
    how to go on, so that all switch between the same steps. Meanwhile nobody waits for a clock.
    When steps have changed for good, it begins anew. A step lasts from one reduction to the next:
    all ranks have equally many, though one may leave out an update after an error.

    Ranks: after a `join`, which ranks come to with different numbers of steps, all count from 0
    again.
    """

    def __init__(self, reducer: GradientReducer, wish: str, at_once: bool = True) -> None:
        """Record the next steps of ``reducer``; ``wish`` as of `PlanSearch`.

        Not ``at_once``: from the end of the first one on, for there may never be one.
        """
        self._reducer, self._wish = reducer, wish
        self._in_use = at_once
        self._process_set = reducer.options.process_set
        self._recorder: StepRecorder | None = None
        self._search: PlanSearch | None = None
        self._costs: Costs | None = None
        self._watched = WATCHED
        self._watcher = Watch()
        self._phase: Callable[[], None] = self._record
        #: When the last step ended; since when steps count, what each took, and its operations.
        self._last: float | None = None
        self._seconds: list[float] = []
        self._steps: list[list[Operation]] = []
        #: Seconds of a step that no trace has.
        self._outside_s = 0.0
        if not _live:
            units.grow(1, self, self._process_set)  # an earlier one may have left them larger
        self._start()
        basics.at_init(self._restart)
        after_join(self._count_anew)

    @property
    def phase(self) -> str:
        """What steps are for: "record", "visit", "watch", or "nothing"."""
        return self._phase.__name__.lstrip("_")

    def step_done(self) -> None:
        """Note that gradients were reduced, which ends a step.

        Collective: every rank of the process set, equally often. Blocks at the end of a visit.
        """
        if not has_company(self._process_set) or not self._reducer.attached:
            return
        if self._phase == _nothing:
            return
        now = time.perf_counter()
        last, self._last = self._last, now
        if last is not None:
            self._seconds.append(now - last)
        if self._reducer.operations is not None:
            self._steps.append(self._reducer.operations)
            self._reducer.operations = []
        self._phase()

    def end(self) -> None:
        """Do nothing more: there is no optimizer any more."""
        self._detach()
        self._phase = _nothing  # a bound method, which kept this alive
        _live.discard(self)
        units.leave(self)

    # --- phases

    def _attach(self) -> None:
        self._in_use = True
        _live.add(self)
        self._recorder = recorder_of(self._reducer)

    def _detach(self) -> None:
        if self._recorder is not None:
            self._recorder.detach()
            self._recorder = None

    def _start(self) -> None:
        """Record steps without a plan."""
        self._detach()
        if self._in_use and has_company(self._process_set):  # else no step would end the recording
            self._attach()
        self._search = None
        self._begin(self._record)

    def _begin(self, phase: Callable[[], None]) -> None:
        self._phase = phase
        self._last = None
        self._seconds, self._steps = [], []
        self._reducer.operations = None if phase == self._watch else []

    def _record(self) -> None:
        recorder = self._recorder
        # A copy, or the process set had nobody else until now; or parameters were thawed since.
        if recorder is None or (not self._seconds and recorder.misses(self._reducer.named)):
            self._detach()
            self._attach()
            return  # the step counts: other ranks may have recorded it
        recorder.step_done()
        if len(self._seconds) < WARM_UP + COUNTED - 1 or not self._all_here():
            return
        self._detach()
        trace = slowest_of_all(recorder, "", self._process_set, f"plan={self._wish!r}")
        leads = []
        with contextlib.suppress(Exception):  # `slowest_of_all` has told
            leads = recorder.leads()[WARM_UP - 1 :]
        self._outside_s = median(leads or [0.0])
        seconds, costs = self._exchange(WARM_UP - 1)
        if trace is None or costs is None:
            self._say(f"plan={self._wish!r}: these steps say too little to plan; no plan")
        elif self._is_first:
            with self._planning():
                self._search = PlanSearch(
                    self._wish,
                    trace,
                    self._constraints(trace),
                    costs,
                    seconds,
                    outside_s=self._outside_s,
                    grows=self._may_grow(),
                    unit_bytes=int(_core.stats()["unit_bytes"]),
                )
        self._go_on()

    def _visit(self) -> None:
        if len(self._seconds) < SETTLE + MEASURED - 1 or not self._all_here():
            return
        seconds, costs = self._exchange(SETTLE - 1)
        if self._search is not None and costs is not None:
            with self._planning():
                self._search.add(seconds, costs)
        self._go_on()

    @contextlib.contextmanager
    def _planning(self) -> Iterator[None]:
        """Where only the first rank works: what fails there must not let the others wait."""
        try:
            yield
        except Exception as error:
            self._search = None
            self._say(
                f"plan={self._wish!r}: planning failed, {type(error).__name__}: {error}; no plan"
            )

    def _watch(self) -> None:
        if len(self._seconds) < self._watched or not self._all_here():
            return
        (seconds,) = maxima([median(self._seconds)], "plan.watch", self._process_set)
        if self._watcher.changed(seconds):  # of the same numbers on every rank
            self._say(f"plan={self._wish!r}: steps take {seconds:.4g} s now; planning anew")
            self._watched *= 2  # where steps change again and again, plans are worth less
            self._reducer.follow(singly())
            units.grow(1, self, self._process_set)
            self._start()
        else:
            self._begin(self._watch)

    def _go_on(self) -> None:
        """Do what the search of the first rank says. Collective."""
        search = self._search
        decision: tuple[str | None, bool] = (None, True)
        if search is None:
            units.grow(1, self, self._process_set)
        else:
            plan = search.current.plan
            units.grow(search.current.growth, self, self._process_set)
            decision = None if plan is None else plan.encode(), search.done
        root = first_rank(self._process_set)
        text, done = broadcast_object(decision, root, "plan.decision", self._process_set)
        self._reducer.follow(singly() if text is None else planned(Plan.decode(text)))
        if not done:
            self._begin(self._visit)
            return
        if search is not None:
            self._say(search.describe())
        self._search = None
        self._watcher = Watch()
        self._begin(self._watch)
        if self._wish != AUTO:
            self._phase = _nothing

    # --- what the ranks know

    @property
    def _is_first(self) -> bool:
        return self._process_set.rank() == 0

    def _all_here(self) -> bool:
        """Whether no rank has joined, and none looks for a number of lanes. Collective, blocks.

        Otherwise the steps of the phase count anew.
        """
        here, searching = sums([1, int(tuner.searches())], "plan.ranks", self._process_set)
        if here == self._process_set.size() and not searching:
            return True
        self._count_anew()
        return False

    def _exchange(self, settled: int) -> tuple[float, Costs | None]:
        """Median step of the slowest rank, and costs as the last to submit has them. Collective."""
        on_gpu = any(parameter.is_cuda for _, parameter in self._reducer.named)
        costs = self._probed() if on_gpu else self._fitted(settled)
        busy = 0.0 if on_gpu else busy_s(self._steps[settled + 1 :])
        costs = least_waiting(costs, busy, "plan.costs", self._process_set)
        self._costs = costs or self._costs
        numbers = [median(self._seconds[settled:]), self._outside_s]
        seconds, self._outside_s = maxima(numbers, "plan.seconds", self._process_set)
        return seconds, self._costs

    def _fitted(self, settled: int) -> Costs | None:
        try:
            return fit_steps(self._steps[settled + 1 :], self._costs)
        except ValueError:
            return None

    def _probed(self) -> Costs | None:
        """Costs by operations of their own: those of a step are only queued when the host ends."""
        device = next(p.device for _, p in self._reducer.named if p.is_cuda)
        samples = []
        for nbytes in _PROBED:
            tensor = torch.zeros(nbytes // 4, device=device)
            for repeat in range(_REPEATS):
                torch.cuda.synchronize(device)
                began = time.perf_counter()
                allreduce_(tensor, None, f"plan.probe.{nbytes}", Sum, process_set=self._process_set)
                torch.cuda.synchronize(device)
                mine = time.perf_counter() - began
                (took,) = maxima([mine], "plan.probed", self._process_set)
                if repeat > 0:
                    samples.append((float(nbytes), took))
            if took > _PROBE_S:
                break
        try:
            return fit_affine(samples)
        except ValueError:
            return None

    def _may_grow(self) -> bool:
        """Whether this search may change the units, which all process sets and devices share."""
        in_host_memory = all(parameter.is_cpu for _, parameter in self._reducer.named)
        small = int(_core.stats()["unit_bytes"]) < _LARGE
        whole_job = self._process_set.process_set_id == 0 and len(_live) == 1
        return small and in_host_memory and whole_job

    def _constraints(self, trace: Trace) -> Constraints:
        key_of = {gradient.name: gradient.device_key for gradient in describe(self._reducer.named)}
        return Constraints(keys=[str(key_of[tensor.name]) for tensor in trace.tensors])

    def _say(self, text: str) -> None:
        if self._is_first:
            sys.stderr.write(f"aiacc: {text}\n")

    # --- jobs

    def _count_anew(self) -> None:
        if self._phase == self._record:
            self._start()
        elif self._phase != _nothing:
            self._begin(self._phase)

    def _restart(self) -> None:
        """In a job that starts anew, where the reducer has no buckets, and ranks may be new."""
        self._costs = None
        self._watched = WATCHED
        self._reducer.options = self._reducer.options._replace(planner=singly())
        self._process_set = self._reducer.options.process_set
        self._start()


def _nothing() -> None:
    """The phase of a job that has planned and measures no more."""
