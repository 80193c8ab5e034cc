"""The program that carries packets between virtual hosts."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.bed import BedError, native

_SEED = 1


@dataclass(frozen=True)
class Count:
    """Packets since the bed went up.

    Attributes:
        carried: Those that hosts have sent to each other, lost ones included.
        lost: Those that never arrive.
    """

    carried: int
    lost: int


class Relay:
    """Gives each host a device "eth0" and carries packets until `stop`, or this process ends."""

    def __init__(self, namespaces: Sequence[Path]) -> None:
        """Start it for hosts by their network namespaces.

        Raises:
            BedError: There is no compiler, or no TAP device.
        """
        self._process = subprocess.Popen(
            [native.built("relay"), str(_SEED), *namespaces],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt is for the ranks
            text=True,
        )
        try:
            self._answer("no")
        except BedError:
            self.stop()
            raise BedError("no relay; it needs CONFIG_TUN and root") from None

    def tell(
        self, source: int | None, target: int | None, delay_ms: float, loss: float, reorder: float
    ) -> Count:
        """Say what happens on a path; None stands for all hosts. Raises BedError."""
        ends = (-1 if host is None else host for host in (source, target))
        numbers = (*ends, round(delay_ms * 1e3), round(loss * 1e6), round(reorder * 1e6))
        text = "set " + " ".join(str(number) for number in numbers)
        assert self._process.stdin is not None
        print(text, file=self._process.stdin, flush=True)
        return self._answer(text)

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _answer(self, text: str) -> Count:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().split()
        if answer[:1] != ["ok"]:
            raise BedError(f"the relay refuses {text!r} (expected hosts of the bed, or None)")
        return Count(int(answer[1]), int(answer[2]))
