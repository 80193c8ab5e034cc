"""Starts, tells and stops the program that carries packets between virtual hosts."""

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.bed import BedError, native

_SEED = 1
_ANSWER_S = 5.0


@dataclass(frozen=True)
class Count:
    """Packets since the bed went up.

    Attributes:
        carried: Those that hosts have sent to each other, lost ones included.
        lost: Those that never arrive.
    """

    carried: int
    lost: int


def command(
    source: int | None, target: int | None, delay_ms: float, loss: float, reorder: float
) -> str:
    """What the relay is told about a path; None stands for all hosts. Pure."""
    ends = (-1 if host is None else host for host in (source, target))
    numbers = (*ends, round(delay_ms * 1e3), round(loss * 1e6), round(reorder * 1e6))
    return "set " + " ".join(str(number) for number in numbers)


def start(control: Path, namespaces: Sequence[Path]) -> None:
    """Give each namespace a device "eth0" and carry packets between them until `stop`.

    Args:
        control: The socket that `tell` talks to; the process number goes into a file beside it.
        namespaces: The network namespaces, by host.

    Raises:
        BedError: There is no compiler, or no TAP device.
    """
    line = [str(native.built("relay")), str(_SEED), str(control), *map(str, namespaces)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    if done.returncode != 0:
        raise BedError(f"{done.stderr.strip()}; the relay needs CONFIG_TUN and root")
    _number_file(control).write_text(done.stdout)


def tell(control: Path, text: str) -> Count:
    """Give the relay a command. Raises BedError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.settimeout(_ANSWER_S)
        own.bind("")  # an address of the kernel's choice, for the answer
        try:
            own.sendto(text.encode(), str(control))
            answer = own.recv(256).decode().split()
        except OSError as error:
            raise BedError(f"the relay at {control} does not answer: {error}") from error
    if answer[:1] != ["ok"]:
        raise BedError(f"the relay refuses {text!r} (expected hosts of the bed, or None)")
    return Count(int(answer[1]), int(answer[2]))


def stop(control: Path) -> None:
    """End the relay of this socket. Fine if there is none."""
    file = _number_file(control)
    with suppress(FileNotFoundError):
        number = int(file.read_text())
        # The number may mean another process by now.
        with suppress(OSError):
            words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
            if words[2:3] == [str(control).encode()]:
                os.kill(number, signal.SIGKILL)
        file.unlink()
    control.unlink(missing_ok=True)


def _number_file(control: Path) -> Path:
    return control.with_name(control.name + ".pid")
