"""One rank of `tests.support.ranks.run_ranks`: python -m tests.support.rank_process ADDRESS."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from multiprocessing.connection import Client
from typing import Any

#: Variables in which launchers tell a process its rank, in the order in which they are believed.
_RANK_VARIABLES = ("AIACC_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def main(address: str) -> int:
    rank = next((int(os.environ[name]) for name in _RANK_VARIABLES if name in os.environ), 0)
    connection = Client(address, family="AF_UNIX")
    # After this signal raw text follows on the connection in place of messages.
    faulthandler.register(signal.SIGUSR1, file=connection.fileno(), all_threads=True)
    faulthandler.enable()  # a crash shows its stack on standard error
    connection.send((rank, os.getpid()))
    outcome: tuple[str, Any]
    try:
        function, args = connection.recv()
        outcome = ("result", function(*args))
    except BaseException:  # the parent raises it; nothing is swallowed
        outcome = ("error", traceback.format_exc())
    connection.send(outcome)
    connection.close()
    return 0 if outcome[0] == "result" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
