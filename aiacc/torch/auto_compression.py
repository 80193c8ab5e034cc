"""``DistributedOptimizer(compression="auto")``: a job that finds out what compression saves."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from aiacc import _core, basics
from aiacc.autotune import tuner
from aiacc.collectives.barrier_join import after_join
from aiacc.collectives.objects import broadcast_object, maxima, sums
from aiacc.compression.buckets import choose_each, levels
from aiacc.compression.codecs import NONE, Cast, Codec, Quantised, parse
from aiacc.compression.compressor import ALLOWED
from aiacc.compression.costs import FLAT, TWO_LEVEL, Cluster, Speeds, speeds_from
from aiacc.compression.policy import Policy
from aiacc.compression.watch import MIX, CompressionWatch
from aiacc.compression.wire import wire_of
from aiacc.planning.cost import Affine
from aiacc.planning.fit import Operation, busy_s, fit_steps
from aiacc.process_sets import first_rank, has_company
from aiacc.torch.reducer.consensus import describe, least_waiting
from aiacc.torch.reducer.feedback import Feedback
from aiacc.torch.reducer.plan import FUSED_BYTES, fused_from_the_end, singly, together

if TYPE_CHECKING:
    from aiacc.torch.reducer.reducer import GradientReducer

#: Steps of a visit that do not count, and those that do, times the number of the comparison.
SETTLE, MEASURED = 2, 4
#: Steps after which a job that has settled looks whether they still take as long.
WATCHED = 20
#: Elements with which coding is timed; seconds per byte inside hosts, which matter little.
_TIMED, _INSIDE = 4 << 20, 0.25e-9
#: Of all lanes of a rank, as the core has it; and files and sockets that others may still want.
_MOST_CONNECTIONS, _SPARE = 512, 64

#: Names of a bucket's gradients, and how they travel.
Chosen: TypeAlias = tuple[tuple[str, ...], Codec]


class AutoCompression:
    """Lets a reducer send gradients as a `CompressionWatch` says, which all ranks feed alike.

    Steps come first in which gradients travel as they are: their operations' times give the costs
    of the network, and this machine's speed of coding is timed. With both the first rank chooses a
    codec for each bucket. Then all is measured: as it is, in 16 bits where they are allowed, and
    what was chosen, there and back; a line on standard error says what stays, what was predicted
    and measured. Whenever the watch compares anew, all of that begins anew.

    Ranks: every rank of the process set ends equally many steps; after a `join`, and while a number
    of lanes is looked for, all count anew.
    """

    def __init__(
        self,
        reducer: GradientReducer,
        feedback: Feedback,
        allowed: tuple[Codec, ...] = ALLOWED,
    ) -> None:
        """Begin with the next steps of ``reducer``; ``feedback`` is what codes its buckets.

        ``allowed`` is what may be chosen besides float32, each by another name.
        """
        self._reducer, self._feedback = reducer, feedback
        self._process_set = reducer.options.process_set
        self._allowed = allowed
        #: Codecs of all gradients alike with which the choice is compared.
        self._dense = [NONE.name, *(one.name for one in allowed if isinstance(one, Cast))]
        self._watch = CompressionWatch(self._dense)
        #: By bucket; None: not yet. And that in words.
        self._chosen: tuple[Chosen, ...] | None = None
        self._text = ""
        self._over = False
        #: When the last step ended; what each took since a visit began, and its operations.
        self._last: float | None = None
        self._seconds: list[float] = []
        self._steps: list[list[Operation]] = []
        self._start()
        basics.at_init(self._start)
        after_join(self._begin)

    def step_done(self) -> None:
        """Note the end of a step.

        Collective: every rank of the process set, equally often. Blocks at the end of a visit.
        """
        if self._over or not has_company(self._process_set) or not self._reducer.attached:
            return
        now = time.perf_counter()
        last, self._last = self._last, now
        if last is not None:
            self._seconds.append(now - last)
        if self._reducer.operations is not None:
            self._steps.append(self._reducer.operations)
            self._reducer.operations = []
        watch = self._watch
        awaited = WATCHED if watch.settled else SETTLE + MEASURED * watch.comparisons
        if len(self._seconds) < awaited - 1:
            return
        here, tuning = sums([1, int(tuner.searches())], "compression.ranks", self._process_set)
        if here == self._process_set.size() and not tuning:
            self._end_visit()
        self._begin()

    def detach(self) -> None:
        """Nothing is attached."""

    def _start(self) -> None:
        self._watch = CompressionWatch(self._dense)
        self._chosen = None
        self._over = False
        self._feedback.policy, self._feedback.policies = Policy(NONE), {}
        self._feedback.flush()
        self._reducer.options = self._reducer.options._replace(planner=singly())
        self._begin()

    def _begin(self) -> None:
        self._last = None
        self._seconds, self._steps = [], []
        self._reducer.operations = [] if self._chosen is None else None

    def _end_visit(self) -> None:
        settled = 0 if self._watch.settled else SETTLE - 1
        mine = median(self._seconds[settled:])
        (seconds,) = maxima([mine], "compression.seconds", self._process_set)
        if self._chosen is None and not self._choose():
            return
        before, was_settled = self._watch.current, self._watch.settled
        self._watch.add(seconds)  # the same number on every rank
        if was_settled and not self._watch.settled:
            self._chosen = None
        if self._watch.current != before:
            self._follow()
        if self._watch.settled and not was_settled:
            self._say(self._watch.describe(self._text))

    def _choose(self) -> bool:
        """Let the first rank choose. Whether there is anything to choose from. Collective."""
        named = self._reducer.named
        busy = busy_s(self._steps[SETTLE:])
        costs = least_waiting(self._fitted(), busy, "compression.costs", self._process_set)
        (negative,) = maxima([-_free_descriptors()], "compression.descriptors", self._process_set)
        decision: tuple[list[tuple[tuple[str, ...], str]], str] = [], ""
        if costs is not None and self._process_set.rank() == 0:
            try:
                decision = self._decision(costs, -negative)
            except Exception as error:  # the others wait for what this rank says
                self._say(f"compression: choosing failed, {type(error).__name__}: {error}")
        root = first_rank(self._process_set)
        found, self._text = broadcast_object(
            decision, root, "compression.choice", self._process_set
        )
        self._chosen = tuple((names, parse(codec)) for names, codec in found)
        self._over = not self._text
        if self._over and any(parameter.is_cuda for _, parameter in named):
            self._say(
                "compression: operations on GPUs are not timed; name a codec for gradients there"
            )
        elif self._over and not basics.codecs_code(self._process_set):
            self._say("compression: all ranks share one host, where nothing is coded")
        elif self._over:
            self._say("compression: these steps send nothing that compression would shorten")
        return not self._over

    def _fitted(self) -> tuple[float, float] | None:
        with contextlib.suppress(ValueError):
            return fit_steps(self._steps[SETTLE:])
        return None

    def _decision(
        self, costs: tuple[float, float], descriptors: int
    ) -> tuple[list[tuple[tuple[str, ...], str]], str]:
        """Names of each bucket's gradients with a codec, and that in words; "": nothing to gain.

        ``descriptors``: how many each rank may still open.
        """
        hosts, local = levels(basics.hosts_of(self._process_set.ranks or ()))
        exchange = TWO_LEVEL
        if basics.engine_is_flat():
            hosts, local, exchange = len(self._process_set.ranks or ()), 1, FLAT
        buckets = self._buckets()
        if hosts == 1 or not buckets:
            return [], ""
        a, b = costs
        inside = Affine(0.0, _INSIDE) if local > 1 else None
        cluster = Cluster(hosts, local, Affine(a, b * local), inside)
        lanes = min(int(_core.stats()["lanes"]), max(1, _MOST_CONNECTIONS // hosts))
        for_small_units = len(self._process_set.ranks or ())  # by the express lane, which is flat
        too_many = hosts * lanes + for_small_units > descriptors - _SPARE
        allowed = [one for one in self._allowed if not (too_many and isinstance(one, Quantised))]
        speeds = {codec.name: _speeds(codec) for codec in allowed}
        elements = [sum(sizes.values()) for sizes in buckets]
        choices = choose_each(elements, cluster, speeds, allowed, exchanges=(exchange,))
        codecs = [str(option.codec) for option in choices.chosen]
        return list(zip(map(tuple, buckets), codecs, strict=True)), choices.text

    def _buckets(self) -> list[dict[str, int]]:
        """Those that coded gradients would form: elements by name."""
        sparse = self._reducer.sparse_names()
        named = [(n, p) for n, p in self._reducer.named if p.requires_grad and n not in sparse]
        planner = fused_from_the_end(FUSED_BYTES, self._feedback.compressed(named))
        gradients = describe(named)
        return [
            {gradients[place].name: gradients[place].elements for place in bucket}
            for bucket in planner.divide(gradients)
        ]

    def _follow(self) -> None:
        """Send gradients as the watch says from the next step on. Collective."""
        feedback, current = self._feedback, self._watch.current
        if feedback.policies:
            feedback.flush()
        chosen = (self._chosen or ()) if current == MIX else ()
        feedback.policy = Policy(NONE if current == MIX else parse(current))
        feedback.policies = {name: Policy(codec) for names, codec in chosen for name in names}
        coded = [names for names, codec in chosen if not isinstance(codec, Cast)]
        self._reducer.follow(together(coded) if coded else singly())

    def _say(self, text: str) -> None:
        if self._process_set.rank() == 0:
            sys.stderr.write(f"aiacc: {text}\n")


def _free_descriptors() -> int:
    """How many files and sockets this process may still open, a million at most."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = 1 << 20 if limit == resource.RLIM_INFINITY else min(limit, 1 << 20)
    return most - len(list(Path("/proc/self/fd").iterdir()))


def _speeds(codec: Codec) -> Speeds:
    """Of this rank."""
    if isinstance(codec, Cast):
        return Speeds(1 / _INSIDE, 1 / _INSIDE)
    return speeds_from(codec, _TIMED, _core.coding_seconds(wire_of(codec), _TIMED))
