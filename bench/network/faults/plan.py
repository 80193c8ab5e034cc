"""What goes wrong in a run of the row network.faults, and what must come of it. Pure."""

import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

#: What each kind does, as tables show it.
KINDS = {
    "none": "nothing",
    "kill": "a rank is killed (SIGKILL)",
    "freeze_short": "a rank stands still for at most half the time limit (SIGSTOP)",
    "freeze_long": "a rank stands still for longer than the time limit (SIGSTOP)",
    "link_2s": "a host's link is down for 2 s",
    "link_gone": "a host's link goes down for good",
    "one_way_loss": "nothing arrives from one host at another, the other direction works",
    "some_loss": "5 % of all packets are lost",
    "reorder": "5 to 30 % of all packets are overtaken",
    "half_open": "a host vanishes: its link goes down, then its ranks die unheard",
    "short_io": "every rank's socket calls move few bytes, or none, at random",
}
#: Nothing of these is a reason to fail.
HARMLESS = frozenset({"none", "freeze_short", "reorder", "short_io"})
#: Everybody has to notice these, and to say which rank is lost.
FATAL = frozenset({"kill", "freeze_long", "link_gone", "half_open"})
#: Kinds that end processes.
DEADLY = frozenset({"kill", "half_open"})

STEPS = 10
#: Seconds that the ranks wait for each other at start-up.
CONNECT_TIMEOUT_S = 10.0
#: For everything that only takes longer on a busy machine: starting, computing, ending.
BUSY_S = 60.0
#: How much later than its time limit, or than a death, a rank may notice that another one is lost.
LATE_S = 2.0

#: Errors that say what happened. Not among them: the base class, which is also that of a broken
#: invariant, and a mismatch, which is a mistake of the script.
CLEAR_TYPES = frozenset({"PeerLostError", "CollectiveTimeoutError", "BootstrapError"})
_KILLED = -9
_RANK_NAMED = re.compile(r"\brank(?:\(s\)|s)? (\d+)")


@dataclass(frozen=True)
class Fault:
    """One run: a job, and what happens to it.

    Attributes:
        seed: Everything follows from it and the kind.
        kind: One of KINDS.
        ranks_of: Ranks on each host; they are numbered host by host.
        engine: AIACC_ENGINE.
        lanes: AIACC_LANES.
        unit_kib: AIACC_UNIT_BYTES in KiB.
        peer_timeout_s: AIACC_PEER_TIMEOUT_S, the time limit.
        nic_mbit: Cap of each host's interface in Mbit/s, 0 for none.
        short_io: Whether the ranks' socket calls are short.
        step: The step in which it happens; -1 while the ranks start.
        delay_s: Seconds from the beginning of that step.
        victim: The rank it happens to; with links its host counts.
        other: The host at which nothing arrives (one_way_loss).
        amount: Seconds (freeze), or fraction of the packets (some_loss, reorder).
    """

    seed: int
    kind: str
    ranks_of: tuple[int, ...]
    engine: str
    lanes: int
    unit_kib: int
    peer_timeout_s: float
    nic_mbit: float
    short_io: bool
    step: int
    delay_s: float
    victim: int
    other: int
    amount: float

    @property
    def hosts(self) -> tuple[int, ...]:
        """Host of each rank."""
        return tuple(host for host, ranks in enumerate(self.ranks_of) for _ in range(ranks))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(self.ranks_of)

    @property
    def host(self) -> int:
        """Host of the victim."""
        return self.hosts[self.victim]

    def lost_to(self, rank: int) -> frozenset[int]:
        """The ranks of which one is named by what ``rank`` is told; empty if it may be any."""
        ranks = range(self.size)
        if self.kind == "link_gone":  # either side loses the other
            here = self.hosts[rank] == self.host
            return frozenset(other for other in ranks if (self.hosts[other] == self.host) != here)
        if self.kind == "half_open":
            return frozenset(other for other in ranks if self.hosts[other] == self.host)
        if self.kind == "kill" or (self.kind == "freeze_long" and rank != self.victim):
            return frozenset({self.victim})
        return frozenset()

    @property
    def killed(self) -> frozenset[int]:
        """Ranks of which nothing is expected."""
        return self.lost_to(self.victim) if self.kind in DEADLY else frozenset()

    @property
    def limit_s(self) -> float:
        """Seconds after which a run that has not ended hangs."""
        lasting = sum(max(0.0, event.after_s) for event in events(self)[-1:])
        return BUSY_S + 3 * CONNECT_TIMEOUT_S + 2 * self.peer_timeout_s + lasting

    def variables(self) -> dict[str, str]:
        """The settings as environment variables."""
        return {
            "AIACC_ENGINE": self.engine,
            "AIACC_LANES": str(self.lanes),
            "AIACC_UNIT_BYTES": f"{self.unit_kib}KiB",
            "AIACC_PEER_TIMEOUT_S": f"{self.peer_timeout_s:g}",
            "AIACC_CONNECT_TIMEOUT_S": f"{CONNECT_TIMEOUT_S:g}",
        }


@dataclass(frozen=True)
class Event:
    """A signal to ranks, or what becomes of packets from now on.

    Attributes:
        after_s: Seconds after the fault begins.
        ranks: They get the signal.
        signal: Name of it.
        host: The host whose packets are meant; None: all hosts.
        target: The host that gets these packets; None: all hosts.
        loss: Probability of a packet's loss.
        reorder: Probability that a packet is overtaken.
    """

    after_s: float = 0
    ranks: tuple[int, ...] = ()
    signal: str = ""
    host: int | None = None
    target: int | None = None
    loss: float = 0
    reorder: float = 0


@dataclass(frozen=True)
class Report:
    """What became of one rank.

    Attributes:
        outcome: "done", "error" (of a class of aiacc's), "wrong" (a result), "bug" (any other
            exception), or "" if it left no report.
        checked: Tensors that had the right numbers.
        type: Class of the exception.
        text: Of the exception.
        late_s: Seconds from the fault to the exception.
        code: Exit code of the process, negative for a signal, None if it had to be ended.
        short_calls: Calls that the preloaded library has cut short.
    """

    outcome: str = ""
    checked: int = 0
    type: str = ""
    text: str = ""
    late_s: float = 0
    code: int | None = 0
    short_calls: int = 0


@dataclass(frozen=True)
class CheckResult:
    """Of a run: "survived", "clear error" or "wrong", and in the last case why."""

    outcome: str
    problems: list[str] = field(default_factory=list)


def choose(kind: str, seed: int) -> Fault:
    """The fault of that kind and seed."""
    rng = random.Random(f"fault {kind} {seed}")
    ranks_of = tuple(rng.randint(1, 2) for _ in range(rng.randint(2, 4)))
    victim = rng.randrange(sum(ranks_of))
    host = next(h for h in range(len(ranks_of)) if victim < sum(ranks_of[: h + 1]))
    timeout = rng.choice((3.0, 4.0, 5.0))
    starting = rng.random() < 0.15
    return Fault(
        seed=seed,
        kind=kind,
        ranks_of=ranks_of,
        engine=rng.choice(("tcp", "hierarchical")),
        lanes=rng.randint(1, 4),
        unit_kib=rng.choice((64, 256, 1024)),
        peer_timeout_s=timeout,
        nic_mbit=rng.choice((100.0, 400.0, 0.0)),
        short_io=kind == "short_io" or (kind != "none" and rng.random() < 0.25),
        step=-1 if starting else rng.randrange(STEPS),
        delay_s=round(rng.uniform(0, 1.5 if starting else 0.2), 3),
        victim=victim,
        other=rng.choice([other for other in range(len(ranks_of)) if other != host]),
        amount=round(_amount(kind, timeout, rng), 3),
    )


def _amount(kind: str, timeout_s: float, rng: random.Random) -> float:
    if kind == "freeze_short":
        return rng.uniform(0.1, timeout_s / 2)
    if kind == "freeze_long":
        return timeout_s + rng.uniform(1, 3)
    if kind == "reorder":
        return rng.uniform(0.05, 0.3)
    return 0.05 if kind == "some_loss" else 0


def events(fault: Fault) -> list[Event]:
    """What is done, in order of time; nothing for kinds that are in effect from the start."""
    victim, host = (fault.victim,), fault.host
    down = [Event(host=host, loss=1), Event(target=host, loss=1)]
    up = [replace(event, after_s=2, loss=0) for event in down]
    found = {
        "kill": [Event(ranks=victim, signal="SIGKILL")],
        "link_2s": [*down, *up],
        "link_gone": down,
        "half_open": [*down, Event(0.05, tuple(sorted(fault.killed)), "SIGKILL")],
        "one_way_loss": [Event(host=host, target=fault.other, loss=1)],
        "some_loss": [Event(loss=fault.amount)],
        "reorder": [Event(reorder=fault.amount)],
    }
    frozen = [Event(0, victim, "SIGSTOP"), Event(fault.amount, victim, "SIGCONT")]
    return frozen if fault.kind.startswith("freeze") else found.get(fault.kind, [])


def judge(
    fault: Fault,
    reports: Mapping[int, Report],
    expected: int,
    struck: bool,
    left: Sequence[str] = (),
) -> CheckResult:
    """Whether every rank that the fault has not killed has the right numbers or a clear error.

    Args:
        fault: What has happened.
        reports: By rank.
        expected: Tensors that a rank which is done has checked.
        struck: Whether it has happened while all ranks were at work.
        left: Names of processes that the run has left behind.
    """
    survivors = {
        rank: reports.get(rank, Report())
        for rank in range(fault.size)
        if not (rank in fault.killed and reports.get(rank, Report()).code == _KILLED)
    }
    done = [rank for rank, report in survivors.items() if report.outcome == "done"]
    problems = [f"left behind: {name}" for name in left]
    for rank, report in survivors.items():
        problems += [f"rank {rank}: {text}" for text in _problems(report, fault, expected)]
        if report.outcome == "error" and not _is_clear(report, bool(done)):
            problems.append(f"rank {rank}: not a clear error: {report.type}: {report.text}")
        if report.outcome == "error" and struck and fault.kind in FATAL and fault.step >= 0:
            problems += [f"rank {rank}: {text}" for text in _detection(report, fault, rank)]
    failed = len(survivors) - len(done)
    if failed and fault.kind in HARMLESS:
        problems.append("failed (expected to survive)")
    # Nobody works yet while the ranks start: who stands still then only comes later.
    noticeable = fault.kind in FATAL and (fault.step >= 0 or fault.kind != "freeze_long")
    if struck and not failed and noticeable:
        problems.append("nobody noticed (expected a clear error)")
    if problems:
        return CheckResult("wrong", problems)
    return CheckResult("clear error" if failed else "survived")


def _problems(report: Report, fault: Fault, expected: int) -> list[str]:
    if report.code is None:
        return ["hangs"]
    if not report.outcome:
        return [f"no report, exit code {report.code}"]
    problems = []
    if report.outcome in ("wrong", "bug"):
        problems.append(f"{report.outcome}: {report.type}: {report.text}")
    if report.code != 0:
        problems.append(f"exit code {report.code}")
    if report.outcome == "done" and report.checked != expected:
        problems.append(f"done after {report.checked} tensors (expected {expected})")
    if report.outcome == "done" and fault.short_io != (report.short_calls > 0):
        problems.append(f"{report.short_calls} calls were cut short")
    return problems


def _is_clear(report: Report, some_done: bool) -> bool:
    """Somebody who is done may leave; the others hear that then."""
    allowed: Collection[str] = CLEAR_TYPES | ({"ShutdownError"} if some_done else set())
    return report.type in allowed and _RANK_NAMED.search(report.text) is not None


def _detection(report: Report, fault: Fault, rank: int) -> list[str]:
    """Whether the right rank was named, and in time."""
    problems = []
    named = {int(number) for number in _RANK_NAMED.findall(report.text)}
    lost = fault.lost_to(rank)
    if lost and not named & lost:
        problems.append(f"names {sorted(named)} (expected of {sorted(lost)}): {report.text}")
    limit_s = LATE_S + (0 if fault.kind == "kill" else fault.peer_timeout_s)
    if fault.kind == "freeze_long" and rank == fault.victim:
        limit_s += fault.amount
    if report.late_s > limit_s:
        problems.append(f"noticed after {report.late_s:.1f} s")
    return problems
