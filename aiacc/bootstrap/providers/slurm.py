"""Bootstrap under Slurm's srun: every rank knows from its variables where rank 0 listens.

Slurm gives its processes no way to talk to each other, but tells all of them the same about their
step. So the address of the explicit rendezvous follows from the step: the first of its nodes, where
Slurm places task 0, and a port by its number. What tells steps apart, the token, is not secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from aiacc.bootstrap.rendezvous import RendezvousProvider
from aiacc.config import UNKNOWN, SlurmEnvironment
from aiacc.exceptions import BootstrapError

#: Ports below those that Linux gives to outgoing connections, from 32768 on.
_FIRST_PORT, _PORTS = 10000, 20000
#: A prime: steps of neighbouring jobs differ, too.
_STRIDE = 1021

_NODES = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PARTS = re.compile(r"([^\[\]]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_TASKS = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")


class SlurmProvider(RendezvousProvider):
    """Ranks that srun started; see `provider.Provider`."""

    name = "slurm"

    def __init__(
        self,
        slurm: SlurmEnvironment,
        *,
        address: str,
        token: str,
        generation: int,
        local_rank: int | None,
        local_size: int | None,
    ) -> None:
        """Empty ``address`` and ``token``: those of the step."""
        super().__init__(
            rank=slurm.rank,
            size=slurm.size,
            address=address or step_address(slurm),
            token=token or step_token(slurm),
            generation=generation,
            local_rank=local_rank,
            local_size=local_size,
        )
        self._hint = (
            f" (srun started this process as task {slurm.rank} of {slurm.size}: "
            + ("" if address else "the address follows from the nodes and the number of the step, ")
            + "AIACC_ADDR=host:port on all of them sets another, and AIACC_RANK=0 with "
            "AIACC_SIZE=1 lets a program run alone)"
        )

    def all_gather(self, payload: bytes, *, timeout_s: float) -> list[bytes]:
        """Exchange one payload per rank; see `provider.Provider.all_gather`."""
        try:
            return super().all_gather(payload, timeout_s=timeout_s)
        except BootstrapError as error:
            raise BootstrapError(f"{error}{self._hint}") from error


def step_address(slurm: SlurmEnvironment) -> str:
    """Where rank 0 listens, "host:port". Pure.

    Raises:
        BootstrapError: The list of nodes cannot be read, or task 0 is not on the first of them.
    """
    names = node_names(slurm.nodes)
    first, others = next(names), next(names, "")
    if slurm.rank == 0 and slurm.node > 0:
        raise BootstrapError(
            f"[bootstrap] slurm: task 0 is on node {slurm.node} of {slurm.nodes} (expected the "
            "first, node 0); set AIACC_ADDR=host:port of task 0 on every rank, or choose another "
            "--distribution"
        )
    # Names of nodes need not mean anything inside a container; one node needs none.
    return f"{first if others else '127.0.0.1'}:{step_port(slurm.job, slurm.step)}"


def step_port(job: int, step: int) -> int:
    """Port of a step; those of one job and of neighbouring ones differ. Pure."""
    return _FIRST_PORT + (job * _STRIDE + step) % _PORTS


def step_token(slurm: SlurmEnvironment) -> str:
    """What the ranks of a step, and of no other, have in common. Not secret. Pure."""
    return f"slurm {slurm.cluster}/{slurm.job}.{slurm.step} {slurm.user}"


def node_names(nodes: str) -> Iterator[str]:
    """Names in a list like "gpu[01-03,07],login,rack[1-2]n[1-4]", in its order. Pure.

    Raises:
        BootstrapError: At the first that is not in this form.
    """
    groups = _NODES.findall(nodes)
    if not groups or ",".join(groups) != nodes:
        raise _unreadable(nodes)
    for group in groups:
        parts = [(match[1], match[2]) for match in _PARTS.finditer(group) if match.group()]
        yield from _combine(parts, nodes)


def _combine(parts: list[tuple[str, str | None]], nodes: str) -> Iterator[str]:
    if not parts:
        yield ""
        return
    text, ranges = parts[0]
    for number in [""] if ranges is None else _numbers(ranges, nodes):
        for rest in _combine(parts[1:], nodes):
            yield text + number + rest


def _numbers(ranges: str, nodes: str) -> Iterator[str]:
    for piece in ranges.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise _unreadable(nodes)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise _unreadable(nodes)
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def tasks_of_node(tasks_per_node: str, node: int) -> int:
    """Tasks on one node by a list like "2(x3),1"; `UNKNOWN` if it does not say. Pure."""
    for piece in tasks_per_node.split(","):
        match = _TASKS.fullmatch(piece)
        if match is None or node < 0:
            return UNKNOWN
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    return UNKNOWN


def _unreadable(nodes: str) -> BootstrapError:
    return BootstrapError(
        f"[bootstrap] slurm: SLURM_STEP_NODELIST={nodes!r} (expected names like "
        "node[01-03,07],gpu5); set AIACC_ADDR=host:port of task 0 on every rank"
    )
