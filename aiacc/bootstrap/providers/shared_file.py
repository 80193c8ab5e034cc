"""Bootstrap through a directory on a common file system: AIACC_RENDEZVOUS_FILE.

Every rank writes one file per exchange and replaces it as it sees the others: its entry says whose
entries it has seen, by their random nonces. A rank is done when every other rank has seen it, and
it takes an entry for real only if its writer has. So what an earlier job left there means nothing,
whatever it is. The last rank to be done removes the files; the directory itself stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from aiacc.bootstrap.provider import Backoff, Deadline, check_payload, new_nonce, rank_list
from aiacc.bootstrap.records import Record
from aiacc.exceptions import BootstrapError

_ENTRY, _DONE, _FAILED = "entry", "done", "failed"


class SharedFileProvider:
    """Ranks that were told their number and a common directory; see `provider.Provider`.

    Nothing of a file system can be waited for across hosts, so this looks again after growing
    pauses of at most 0.1 s.
    """

    name = "file"
    meeting_host = ""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        path: str,
        generation: int,
        local_rank: int | None = None,
        local_size: int | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.generation = generation
        self._path = Path(path)
        self._round = 0

    def all_gather(self, payload: bytes, *, timeout_s: float) -> list[bytes]:
        """Exchange one payload per rank; see `provider.Provider.all_gather`."""
        check_payload(payload, self.name)
        try:
            folder = self._folder()
            exchange = _Exchange(folder, self.rank, self.size, self.generation, payload)
            payloads = exchange.run(Deadline(timeout_s))
        except OSError as error:
            raise BootstrapError(
                f"[bootstrap] file: rank {self.rank} cannot use {self._path}: {error}; set "
                "AIACC_RENDEZVOUS_FILE to a directory that every rank can write"
            ) from error
        self._round += 1
        return payloads

    def close(self) -> None:
        """Nothing is open between exchanges."""

    def _folder(self) -> Path:
        # Somebody may have made a file of that name, for example with mktemp.
        root = self._path.with_name(self._path.name + ".d") if self._path.is_file() else self._path
        return root / f"aiacc-{self.generation}-{self._round}"


class _Exchange:
    """One exchange of one rank."""

    def __init__(self, folder: Path, rank: int, size: int, generation: int, payload: bytes) -> None:
        self._folder = folder
        self._payload = payload
        self._rank = rank
        self._size = size
        self._mine = Record(rank, size, generation, nonce=new_nonce())
        self._written: Record | None = None
        self._nonces = {rank: self._mine.nonce}  # of the latest entries, from whatever time
        self._present = {rank: payload}  # payloads of ranks that are known to be alive

    def run(self, deadline: Deadline) -> list[bytes]:
        """Take part until every rank is present or the deadline passes."""
        backoff = Backoff()
        while True:
            self._write()
            self._look()
            missing = set(range(self._size)) - self._present.keys()
            if self._mine.seen != self._seen():
                continue  # tell the others first: they wait for it
            if not missing:
                break
            if deadline.passed():
                raise self._fail(
                    f"[bootstrap] file: {rank_list(missing)} of {self._size} did not come to "
                    f"{self._folder} within {deadline.timeout_s:g} s of rank {self._rank}; check "
                    "that every rank was started with the same AIACC_RENDEZVOUS_FILE on a common "
                    "file system, and initialises equally often"
                )
            backoff.pause(deadline)
        self._leave()
        return [self._present[rank] for rank in range(self._size)]

    def _seen(self) -> dict[str, str]:
        return {str(rank): nonce for rank, nonce in sorted(self._nonces.items())}

    def _write(self) -> None:
        """Replace this rank's entry if it has seen something new."""
        self._mine = dataclasses.replace(self._mine, seen=self._seen())
        if self._mine != self._written:
            self._put(_ENTRY, self._mine.encode(self._payload))
            self._written = self._mine

    def _put(self, kind: str, data: bytes) -> None:
        target = self._folder / f"{kind}.{self._rank}"
        temporary = target.with_name(f".{target.name}.{self._mine.nonce}")
        for attempts_left in (1, 0):  # the last rank of an earlier job may remove the directory
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(data)
                temporary.replace(target)
                return
            except FileNotFoundError:
                if not attempts_left:
                    raise

    def _look(self) -> None:
        """Read what the other ranks wrote; raise if one failed or contradicts this rank."""
        for path in self._list():
            kind, _, number = path.name.partition(".")
            if kind not in (_ENTRY, _FAILED) or not (number.isascii() and number.isdigit()):
                continue
            if kind == _ENTRY and int(number) != self._rank and int(number) in self._present:
                continue
            if not path.is_file():  # reading a pipe would wait for its writer
                continue
            with contextlib.suppress(FileNotFoundError, ValueError):  # removed, or not an entry
                self._take(kind, int(number), *Record.decode(path.read_bytes()))

    def _take(self, kind: str, rank: int, record: Record, payload: bytes) -> None:
        # Whoever has seen the nonce of this exchange is alive now.
        present = record.seen.get(str(self._rank)) == self._mine.nonce
        if kind == _FAILED:
            if present:
                raise BootstrapError(payload.decode(errors="replace"))
        elif rank == self._rank:
            if record.nonce != self._mine.nonce:
                raise self._fail(
                    f"[bootstrap] file: rank {rank} came twice: {self._mine.label} and "
                    f"{record.label} (expected once); give every process its own AIACC_RANK",
                    also_to={rank: record.nonce},
                )
        else:
            self._nonces[rank] = record.nonce
            if present:
                try:
                    record.check_against(self._mine, rank)
                except BootstrapError as error:
                    raise self._fail(str(error)) from error
                self._present[rank] = payload

    def _list(self) -> list[Path]:
        # Opening the directory makes network file systems ask their server.
        with os.scandir(self._folder) as entries:
            return [Path(entry.path) for entry in entries]

    def _fail(self, text: str, also_to: Mapping[int, str] | None = None) -> BootstrapError:
        """Leave the reason for the ranks that still wait."""
        with contextlib.suppress(OSError):
            self._nonces |= also_to or {}
            record = dataclasses.replace(self._mine, seen=self._seen())
            self._put(_FAILED, record.encode(text.encode()))
        return BootstrapError(text)

    def _leave(self) -> None:
        """Say that this rank is done, and remove the directory if all are."""
        self._put(_DONE, self._mine.encode(b""))
        for rank, nonce in self._nonces.items():
            if rank < self._size:
                try:
                    path = self._folder / f"{_DONE}.{rank}"
                    if Record.decode(path.read_bytes())[0].nonce != nonce:
                        return
                except (OSError, ValueError):
                    return
        shutil.rmtree(self._folder, ignore_errors=True)
