"""An origin that is slow on purpose: so many bytes per second for all, so long for each object."""

import fcntl
import functools
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_BUSY = struct.Struct("<d")


class Throttle:
    """Paces all processes that share a file.

    Bytes go out one after another at the bandwidth; each object also waits for the latency, which
    waits of other objects may overlap, as with requests to a store.
    """

    def __init__(self, path: Path | str, bytes_per_s: float, latency_s: float) -> None:
        self.path = str(path)
        self.bytes_per_s = bytes_per_s
        self.latency_s = latency_s

    def wait(self, size: int) -> None:
        """Let an object of ``size`` bytes take its time."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            data = os.pread(descriptor, _BUSY.size, 0)
            now = time.monotonic()
            begin = max(now, _BUSY.unpack(data)[0] if data else 0.0)
            end = begin + size / self.bytes_per_s
            os.pwrite(descriptor, _BUSY.pack(end), 0)
        finally:
            os.close(descriptor)
        time.sleep(max(0.0, end + self.latency_s - now))


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    #: Head and body are written one after the other: the body would wait for a delayed ACK.
    disable_nagle_algorithm = True

    def __init__(self, throttle: Throttle, *arguments: Any, **options: Any) -> None:
        self._throttle = throttle
        super().__init__(*arguments, **options)

    def handle(self) -> None:
        """Answer until the client goes, politely or not."""
        with suppress(ConnectionError):
            super().handle()

    def send_head(self) -> Any:
        """Let the answer take its time: that of its bytes, if it has any."""
        file = Path(self.translate_path(self.path))
        self._throttle.wait(file.stat().st_size if self.command == "GET" and file.exists() else 0)
        return super().send_head()

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    #: Connections that wait to be accepted. Beyond the 5 of Python's, their first packets are
    #: dropped and come again after a second, which no store does.
    request_queue_size = 1024


@contextmanager
def serve(folder: Path, throttle: Throttle) -> Iterator[str]:
    """A server of the files of ``folder``; the context is its address."""
    handler = functools.partial(_Handler, throttle, directory=str(folder))
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
