"""Loads eBPF programs and maps by the system call itself.

The queueing discipline holds the program, the program its map, so that all of it goes when the
virtual host goes.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

from bench.bed import BedError

_SYSCALLS = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE, _MAP_NEXT_KEY, _PROG_LOAD, _PIN = range(7)
_HASH = 1
_SCHED_CLS = 3
_LOG_BYTES = 1 << 16

_LIBC = ctypes.CDLL(None, use_errno=True)


class Map:
    """A hash map of the kernel, by its descriptor. Keys and values are bytes of fixed lengths."""

    def __init__(self, key_bytes: int, value_bytes: int, entries: int) -> None:
        """A new, empty map. Raises BedError."""
        self._key_bytes, self._value_bytes = key_bytes, value_bytes
        try:
            self.descriptor = _bpf(
                _MAP_CREATE, struct.pack("=IIIII", _HASH, key_bytes, value_bytes, entries, 0)
            )
        except OSError as error:
            raise BedError(
                f"the kernel refuses an eBPF map: {error}; it needs CONFIG_BPF_SYSCALL, you root"
            ) from error

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys with their values; what is added meanwhile may be missing."""
        key = self._next_key(None)
        while key is not None:
            value = self.get(key)
            if value is not None:
                yield key, value
            key = self._next_key(key)

    def get(self, key: bytes) -> bytes | None:
        """Value of a key, None if there is none."""
        value = ctypes.create_string_buffer(self._value_bytes)
        found = self._element(_MAP_LOOKUP, key, ctypes.addressof(value))
        return value.raw if found else None

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        held = ctypes.create_string_buffer(value, self._value_bytes)
        self._element(_MAP_UPDATE, key, ctypes.addressof(held))

    def clear(self) -> None:
        """Remove all keys of a hash map."""
        for key, _ in list(self.items()):
            self._element(_MAP_DELETE, key, 0)

    def close(self) -> None:
        """Give up the descriptor; the map lives on while a program uses it."""
        os.close(self.descriptor)

    def _next_key(self, key: bytes | None) -> bytes | None:
        held = ctypes.create_string_buffer(self._key_bytes)
        found = self._element(_MAP_NEXT_KEY, key, ctypes.addressof(held))
        return held.raw if found else None

    def _element(self, command: int, key: bytes | None, other: int) -> bool:
        """One command on a key; False if the key is not there."""
        held = None if key is None else ctypes.create_string_buffer(key, self._key_bytes)
        at = 0 if held is None else ctypes.addressof(held)
        try:
            _bpf(command, struct.pack("=IIQQQ", self.descriptor, 0, at, other, 0))
        except FileNotFoundError:
            return False
        return True


def load_classifier(code: bytes) -> int:
    """Descriptor of a program that gives packets their class. Raises BedError."""
    held = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(_LOG_BYTES)
    arguments = struct.pack(
        "=IIQQIIQI",
        _SCHED_CLS,
        len(code) // 8,
        ctypes.addressof(held),
        ctypes.addressof(licence),
        1,
        _LOG_BYTES,
        ctypes.addressof(log),
        0,
    )
    try:
        return _bpf(_PROG_LOAD, arguments)
    except OSError as error:
        reason = log.value.decode(errors="replace")
        raise BedError(f"the kernel refuses the classifier: {error}\n{reason}") from error


def pin(program: int, path: Path) -> None:
    """Give a program a name in a file system of type bpf."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    _bpf(_PIN, struct.pack("=QII", ctypes.addressof(name), program, 0))


def _bpf(command: int, arguments: bytes) -> int:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise BedError(
            f"no number of the bpf system call is known for {platform.machine()} (expected one of "
            f"{', '.join(_SYSCALLS)}); add it to {__file__}"
        )
    held = ctypes.create_string_buffer(arguments, len(arguments))
    result = _LIBC.syscall(number, command, ctypes.byref(held), len(arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)
