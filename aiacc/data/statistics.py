"""What a cache counts, and how it says so. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

#: Said only where it is not 0.
_SELDOM = ("refused", "corrupt", "retries", "failures", "disk_failures", "memory_failures")


@dataclass(frozen=True)
class Statistics:
    """Sums over all processes that use the node's memory, in the order of its counters."""

    #: Samples given from memory and from disk.
    memory_hits: int = 0
    disk_hits: int = 0
    #: Samples that other nodes have sent, and that the origin has given.
    received: int = 0
    fetched: int = 0
    #: Bytes of the records of these.
    memory_bytes: int = 0
    disk_bytes: int = 0
    received_bytes: int = 0
    fetched_bytes: int = 0
    #: Records that were fetched and are kept nowhere.
    refused: int = 0
    #: Records with a wrong checksum. They have been fetched again.
    corrupt: int = 0
    #: Attempts at the origin that failed, and were made again.
    retries: int = 0
    #: Samples whose last attempt failed.
    failures: int = 0
    #: Of those fetched: by readers that waited for them, not ahead of the sampler.
    awaited: int = 0
    #: Nanoseconds that readers waited for samples that were not in memory.
    stall_ns: int = 0
    #: Samples that were fetched twice to find out whether they come out equal.
    compared: int = 0
    #: Processes that have given up writing to the disk, and to memory.
    disk_failures: int = 0
    memory_failures: int = 0

    @property
    def samples(self) -> int:
        """Samples given to readers."""
        return self.memory_hits + self.disk_hits + self.awaited

    @property
    def ahead(self) -> int:
        """Of those fetched: ahead of the sampler."""
        return self.fetched - self.awaited

    @property
    def hit_ratio(self) -> float:
        """Share of the samples given that did not come from the origin; 0 without any."""
        return 1 - self.awaited / self.samples if self.samples else 0.0

    def since(self, earlier: Statistics) -> Statistics:
        """What has been counted after ``earlier``."""
        now, then = dataclasses.astuple(self), dataclasses.astuple(earlier)
        return Statistics(*(one - other for one, other in zip(now, then, strict=True)))

    def line(self) -> str:
        """One line for a log."""
        parts = [
            f"{self.samples} samples",
            f"{self.memory_hits} from memory ({_megabytes(self.memory_bytes)})",
            f"{self.disk_hits} from disk ({_megabytes(self.disk_bytes)})",
            f"{self.received} from other nodes ({_megabytes(self.received_bytes)})",
            f"{self.fetched} from the origin ({_megabytes(self.fetched_bytes)})",
            f"waited {self.stall_ns / 1e9:.1f} s",
        ]
        seldom = [(name.replace("_", " "), getattr(self, name)) for name in _SELDOM]
        parts += [f"{number} {name}" for name, number in seldom if number]
        return ", ".join(part for part in parts if not part.startswith("0 from"))


def from_counters(counters: Sequence[int]) -> Statistics:
    """The statistics that an arena has counted."""
    return Statistics(*counters[: len(NAMES)])


def counter_of(name: str) -> int:
    """Number of the counter with this name."""
    return NAMES.index(name)


NAMES = tuple(entry.name for entry in dataclasses.fields(Statistics))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
