"""What a rank leaves in a key-value store: its payload, and who wrote it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from aiacc.bootstrap.provider import PROTOCOL_VERSION, process_label, size_mismatch
from aiacc.bootstrap.untrusted import check_fields, read_object
from aiacc.exceptions import BootstrapError


@dataclass(frozen=True)
class Record:
    """One rank's entry in a store."""

    rank: int
    size: int
    generation: int
    nonce: str = ""
    #: Nonces of the ranks whose entries the writer has seen: proof that it is alive now.
    seen: dict[str, str] = field(default_factory=dict)
    label: str = field(default_factory=process_label)
    #: Process that stores it on the writer's behalf, and where its id is valid (`rivals`).
    client: int = 0
    process_space: str = ""
    version: int = PROTOCOL_VERSION

    def encode(self, payload: bytes) -> bytes:
        """The bytes to store."""
        return json.dumps(asdict(self)).encode() + b"\n" + payload

    @staticmethod
    def decode(data: bytes) -> tuple[Record, bytes]:
        """Inverse of `encode`. Raises ValueError for anything else."""
        header, newline, payload = data.partition(b"\n")
        if not newline:
            raise ValueError("not an entry of aiacc")
        fields = read_object(header)
        if fields.get("version") != PROTOCOL_VERSION:  # `check_against` says it, whatever it adds
            known = Record.__dataclass_fields__
            fields = {name: value for name, value in fields.items() if name in known}
        check_fields(Record, fields)
        try:
            return Record(**fields), payload
        except TypeError as error:  # a field is missing
            raise ValueError(str(error)) from error

    def check_against(self, mine: Record, rank: int) -> None:
        """Raise BootstrapError unless this, found as ``rank``'s entry, fits to ``mine``."""
        if self.version != mine.version:
            raise BootstrapError(
                f"[bootstrap] rank {rank} ({self.label}) speaks bootstrap version {self.version}, "
                f"rank {mine.rank} {mine.version} (expected equal); install the same aiacc "
                "everywhere"
            )
        if self.size != mine.size:
            raise BootstrapError(size_mismatch(mine.rank, mine.size, rank, self.size))
        if (self.rank, self.generation) != (rank, mine.generation):
            raise BootstrapError(
                f"[bootstrap] the entry of rank {rank} was written by rank {self.rank} "
                f"({self.label}) in generation {self.generation} (expected rank {rank}, generation "
                f"{mine.generation}); give every process its own rank, and initialise equally "
                "often on all of them"
            )
