"""Puts beds up and takes them down. Needs root, iproute2 and nftables."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.bed import BedError
from bench.bed.plan import (
    CLASSES,
    FIRST_MINOR,
    SLOW_MINOR,
    TABLE,
    Spec,
    classifying,
    host_name,
    hosts_file,
    interior,
    links,
    namespaces,
    shaping,
)
from bench.bed.relay import Count, Relay

#: Of each bed its hosts file, and a lock that its user holds.
STATE = Path("/run/aiacc-network")
_NAMESPACES = Path("/run/netns")
_TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "unshare": "util-linux",
    "mount": "mount",
}
_COMMAND_S = 60
_SLOW_START = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"
#: A switch forwards without asking the rules for IP.
_NO_FIREWALL = """for file in /proc/sys/net/bridge/bridge-nf-call-*; do
    test ! -e "$file" || echo 0 >"$file"
done"""


@dataclass(frozen=True)
class Flow:
    """What one host has sent on one TCP connection.

    Attributes:
        minor: Number of its class; SLOW_MINOR for the slow one.
        sent_bytes: With the headers of IP and TCP.
    """

    minor: int
    sent_bytes: int


@dataclass(frozen=True)
class Bed:
    """A bed that is up. Made by `bed_for`.

    Attributes:
        relay: What joins the hosts, unless it is a bridge.
    """

    spec: Spec
    relay: Relay | None

    def enter(self, host: int, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` in a host, under the host's own name.

        The process keeps its number, so that whoever starts it may signal it.
        """
        script = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
        inside = ["ip", "netns", "exec", self.spec.namespace(host), "unshare", "--uts", "sh", "-c"]
        return [*inside, script, host_name(host), str(self.hosts_path), *command]

    @property
    def hosts_path(self) -> Path:
        """The file that the hosts see as /etc/hosts."""
        return _hosts_path(self.spec.name)

    def flows(self, host: int) -> list[Flow]:
        """What a host has sent since `reset`, by flow; empty without a flow cap."""
        if not self.spec.flow_mbit:
            return []
        listed = json.loads(self._nft(host, "-j", "list", "table", *TABLE))["nftables"]
        held = {one.get("name"): one.get("elem", []) for entry in listed for one in entry.values()}
        return [
            Flow(
                SLOW_MINOR
                if key["elem"]["val"] in held.get("slow", [])
                else int(classid.partition(":")[2], 16),
                key["elem"]["counter"]["bytes"],
            )
            for key, classid in held["flows"]
        ]

    def reset(self) -> None:
        """Forget all flows, so that their classes are free again; there must be no traffic."""
        for host in range(self.spec.hosts if self.spec.flow_mbit else 0):
            self._nft(host, "-f", "-", text="\n".join(classifying(self.spec, host)) + "\n")

    def processes(self, host: int) -> list[int]:
        """Numbers of the processes in a host."""
        return _processes(self.spec.namespace(host))

    def set_path(
        self,
        source: int | None = None,
        target: int | None = None,
        *,
        delay_ms: float = 0,
        loss: float = 0,
        reorder: float = 0,
    ) -> Count:
        """Change what happens to packets from one host to another; None stands for all.

        Takes effect for packets that are sent from now on. Needs a bed with a relay.

        Returns:
            What the relay has carried and lost so far.
        """
        if self.relay is None:
            raise BedError(
                "this bed has a bridge, not a relay; put it up with relay=True (--relay)"
            )
        return self.relay.tell(source, target, delay_ms, loss, reorder)

    def check(self) -> None:
        """Raise BedError if some host had more flows than classes, which makes rates wrong."""
        for host in range(self.spec.hosts):
            flows = self.flows(host)
            if any(flow.minor >= FIRST_MINOR + CLASSES for flow in flows):
                raise BedError(
                    f"host {host} had {len(flows)} flows (expected at most {CLASSES}): those "
                    "beyond had no cap; use fewer ranks or raise CLASSES in bench/bed/plan.py"
                )

    def _nft(self, host: int, *words: str, text: str = "") -> str:
        return _run(["ip", "netns", "exec", self.spec.namespace(host), "nft", *words], text)


def require_root() -> None:
    """Raise BedError unless this process may make network namespaces and has the tools."""
    if os.geteuid() != 0:
        raise BedError(
            f"virtual hosts need root, this is user {os.geteuid()}; run it with sudo, or in a "
            "virtual machine of your own"
        )
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            raise BedError(f"{tool} is missing; install it: apt-get install {package}")


@contextmanager
def bed_for(spec: Spec) -> Iterator[Bed]:
    """A bed that lives as long as the block.

    Raises:
        BedError: Also when somebody uses a bed of that name.
    """
    require_root()
    spec.check()
    with _locked(spec.name), ExitStack() as stack:
        bed = _put_up(spec, stack)
        yield bed
        bed.check()


def _put_up(spec: Spec, stack: ExitStack) -> Bed:
    """Make the hosts, after removing what an earlier bed of that name has left."""
    take_down(spec.name)
    stack.callback(take_down, spec.name)
    _hosts_path(spec.name).write_text(hosts_file(spec))
    _batch(["ip"], namespaces(spec))
    relay = None
    if spec.relayed:
        relay = Relay([_NAMESPACES / spec.namespace(host) for host in range(spec.hosts)])
        stack.callback(relay.stop)
    else:
        _run(["ip", "netns", "exec", spec.switch, "sh", "-c", _NO_FIREWALL])
        _batch(["ip", "-n", spec.switch], links(spec))
    for host in range(spec.hosts):
        inside = spec.namespace(host)
        _batch(["ip", "-n", inside], interior(spec, host))
        if not spec.slow_start_after_idle:
            _run(["ip", "netns", "exec", inside, "sh", "-c", f"echo 0 >{_SLOW_START}"])
        if spec.capped:
            _batch(["tc", "-n", inside], shaping(spec))
    bed = Bed(spec, relay)
    bed.reset()
    if relay is not None:
        bed.set_path(delay_ms=spec.delay_ms, loss=spec.loss, reorder=spec.reorder)
    return bed


def take_down(name: str) -> None:
    """Remove every trace of a bed, processes in its hosts included. Fine if there is none."""
    _hosts_path(name).unlink(missing_ok=True)
    mine = re.compile(re.escape(name) + r"-(\d+|sw)")
    for inside in [path.name for path in _NAMESPACES.glob("*") if mine.fullmatch(path.name)]:
        for process in _processes(inside):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        _run(["ip", "netns", "delete", inside])


def _processes(namespace: str) -> list[int]:
    return [int(number) for number in _run(["ip", "netns", "pids", namespace]).split()]


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Holds the bed's lock, which the kernel gives back when this process ends in whatever way."""
    STATE.mkdir(mode=0o755, exist_ok=True)
    with (STATE / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BedError(
                f"another process uses the bed {name}; wait for it, or choose another --name"
            ) from None
        yield


def _hosts_path(name: str) -> Path:
    return STATE / f"{name}.hosts"


def _batch(tool: list[str], lines: list[str]) -> None:
    _run([*tool, "-batch", "-"], "\n".join(lines) + "\n")


def _run(command: list[str], text: str = "") -> str:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=_COMMAND_S, check=False
    )
    if done.returncode != 0:
        raise BedError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
