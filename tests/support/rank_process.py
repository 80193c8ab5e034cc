"""One rank of `tests.support.ranks.run_ranks`.

python -m tests.support.rank_process ADDRESS    # runs the function that is sent there
python -m tests.support.rank_process --fork LISTENER MODULE...    # forks ranks, see rank_forks.py
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from tests.support import meeting

#: Variables in which launchers tell a process its rank, in the order in which they are believed.
_RANK_VARIABLES = ("AIACC_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
#: Of a message between rank_forks.py and the process that forks ranks.
MESSAGE_BYTES = 1 << 17


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
        connection.send(("begin", None))
        connection.recv()  # all the others have begun, too
        meeting.runner = connection
        outcome = ("result", function(*args))
    except BaseException:  # the parent raises it; nothing is swallowed
        outcome = ("error", traceback.format_exc())
    connection.send(outcome)
    connection.close()
    return 0 if outcome[0] == "result" else 1


def fork_ranks(listener: socket.socket, modules: Sequence[str]) -> int:
    """Import the modules, fork a rank for each request, and tell how it ended.

    Requests are pickled (environment, address, module of the rank's function) with the rank's
    standard streams, replies pickled (pid, None) once it is the leader of a session, and (pid,
    status of waitpid) when it has ended. Ends, with 0, when nobody is connected any more.
    """
    for name in modules:
        importlib.import_module(name)
    numpy = sys.modules.get("numpy")
    clients: set[socket.socket] = set()
    ranks: dict[int, tuple[int, socket.socket]] = {}  # by descriptor
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    clients.add(client := listener.accept()[0])
                    selector.register(client, selectors.EVENT_READ)
                    continue
                selected = ranks.pop(key.fd, None)
                if selected is not None:
                    pid, client = selected
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    ended = os.waitpid(pid, 0)
                    with contextlib.suppress(OSError):  # who asked for it is gone, the others stay
                        client.send(pickle.dumps(ended))
                    continue
                assert isinstance(key.fileobj, socket.socket)
                client = key.fileobj
                message, streams, _, _ = socket.recv_fds(client, MESSAGE_BYTES, 3)
                if not message:
                    clients.remove(client)
                    selector.unregister(client)
                    client.close()
                    if not clients:
                        return 0
                    continue
                environment, address, module = pickle.loads(message)
                with contextlib.suppress(BaseException):  # the rank fails by it, and says so
                    importlib.import_module(module)
                # What another thread holds while it is copied stays locked in the copy.
                assert Path("/proc/self/task").stat().st_nlink == 3, f"{module} starts threads"
                gc.freeze()  # ranks need not look at it, and so copy it, to collect garbage
                leads, tell = os.pipe()
                pid = os.fork()
                if pid == 0:
                    os.setsid()
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                    for descriptor in (*ranks, *streams, leads, tell):
                        os.close(descriptor)
                    for connection in (listener, *clients):
                        connection.close()
                    sys.argv[1:] = [address]
                    os.environ.clear()
                    os.environ.update(environment)
                    if numpy is not None:
                        numpy.random.seed()
                    return main(address)
                for descriptor in (*streams, tell):
                    os.close(descriptor)
                os.read(leads, 1)
                os.close(leads)
                descriptor = os.pidfd_open(pid)
                ranks[descriptor] = pid, client
                selector.register(descriptor, selectors.EVENT_READ)
                with contextlib.suppress(OSError):
                    client.send(pickle.dumps((pid, None)))


if __name__ == "__main__":
    if sys.argv[1] == "--fork":
        sys.exit(fork_ranks(socket.socket(fileno=int(sys.argv[2])), sys.argv[3:]))
    sys.exit(main(sys.argv[1]))
