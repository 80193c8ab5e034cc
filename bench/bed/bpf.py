"""Loads eBPF programs and maps by the system call itself, and attaches a classifier by netlink.

Nothing is pinned to a file: the queueing discipline holds the program, the program its maps, so
that all of it goes when the virtual host goes. Another process finds a map by its number.
"""

import ctypes
import os
import platform
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SYSCALLS = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE, _MAP_NEXT_KEY, _PROG_LOAD = range(6)
_PROG_TEST_RUN, _MAP_BY_ID, _INFO_BY_FD = 10, 14, 15
_HASH, _ARRAY = 1, 2
_SCHED_CLS = 3
_LOG_BYTES = 1 << 16

_LIBC = ctypes.CDLL(None, use_errno=True)


class BpfError(RuntimeError):
    """The kernel refused; the text has its reason, for a program the verifier's log too."""


class Map:
    """A map of the kernel, by its descriptor. Keys and values are bytes of fixed lengths."""

    def __init__(self, descriptor: int, key_bytes: int, value_bytes: int) -> None:
        self.descriptor = descriptor
        self._key_bytes, self._value_bytes = key_bytes, value_bytes

    @classmethod
    def hash(cls, key_bytes: int, value_bytes: int, entries: int) -> "Map":
        """A new, empty hash map."""
        return cls(_new_map(_HASH, key_bytes, value_bytes, entries), key_bytes, value_bytes)

    @classmethod
    def array(cls, value_bytes: int, entries: int) -> "Map":
        """A new array of zeros; keys are 4-byte indices."""
        return cls(_new_map(_ARRAY, 4, value_bytes, entries), 4, value_bytes)

    @classmethod
    def of_number(cls, number: int, key_bytes: int, value_bytes: int) -> "Map":
        """The map that has this number (`number`) as long as somebody holds it."""
        return cls(_bpf(_MAP_BY_ID, struct.pack("=III", number, 0, 0)), key_bytes, value_bytes)

    @property
    def number(self) -> int:
        """Number of the map in this machine's kernel."""
        info = ctypes.create_string_buffer(80)
        arguments = struct.pack("=IIQ", self.descriptor, len(info), ctypes.addressof(info))
        _bpf(_INFO_BY_FD, arguments)
        return int(struct.unpack_from("=II", info.raw)[1])

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
    """Descriptor of a program that gives packets their class. Raises BpfError."""
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
        raise BpfError(f"the kernel refuses the classifier: {error}\n{reason}") from error


def classify_once(program: int, packet: bytes) -> int:
    """What a loaded classifier returns for a packet, Ethernet header included; nothing is sent."""
    held = ctypes.create_string_buffer(packet, len(packet))
    arguments = ctypes.create_string_buffer(
        struct.pack("=IIIIQQIIIIQQ", program, 0, len(packet), 0, ctypes.addressof(held), *[0] * 7)
    )
    _bpf_in_place(_PROG_TEST_RUN, arguments)
    return int(struct.unpack_from("=II", arguments.raw)[1])


def attach_classifier(namespace: Path, interface: str, parent: int, program: int) -> None:
    """Let a queueing discipline, by its handle ``parent``, ask a program for classes.

    Raises:
        OSError: The kernel refuses; EOPNOTSUPP and ENOENT mean that it lacks cls_bpf.
    """
    with _in_namespace(namespace):
        index = socket.if_nametoindex(interface)
        link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    with link:
        link.send(filter_message(index, parent, program))
        # Length, type, flags, sequence and port of the answer, then minus an errno.
        answer = link.recv(4096)
        code = struct.unpack_from("=IHHIIi", answer)[5]
    if code != 0:
        raise OSError(-code, os.strerror(-code))


def filter_message(interface: int, parent: int, program: int) -> bytes:
    """The netlink message that adds a classifier to a queueing discipline. Pure."""
    new_filter, request, acknowledge, exclusive, create = 44, 0x1, 0x4, 0x200, 0x400
    kind, options, bpf_descriptor, bpf_name = 1, 2, 6, 7
    all_protocols = socket.htons(0x0003)
    priority = 1
    body = struct.pack("=BxxxiIII", 0, interface, 0, parent, priority << 16 | all_protocols)
    body += _attribute(kind, b"bpf\0")
    body += _attribute(
        options,
        _attribute(bpf_descriptor, struct.pack("=I", program))
        + _attribute(bpf_name, b"aiacc_flows\0"),
    )
    flags = request | acknowledge | exclusive | create
    return struct.pack("=IHHII", 16 + len(body), new_filter, flags, 1, 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    padding = b"\0" * (-len(value) % 4)
    return struct.pack("=HH", 4 + len(value), kind) + value + padding


@contextmanager
def _in_namespace(namespace: Path) -> Iterator[None]:
    """Moves the calling thread into a network namespace."""
    with Path("/proc/thread-self/ns/net").open() as home, namespace.open() as away:
        _set_namespace(away.fileno())
        try:
            yield
        finally:
            _set_namespace(home.fileno())


def _set_namespace(descriptor: int) -> None:
    clone_newnet = 0x40000000
    if _LIBC.setns(descriptor, clone_newnet) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _new_map(kind: int, key_bytes: int, value_bytes: int, entries: int) -> int:
    try:
        return _bpf(_MAP_CREATE, struct.pack("=IIIII", kind, key_bytes, value_bytes, entries, 0))
    except OSError as error:
        raise BpfError(
            f"the kernel refuses an eBPF map: {error}; it needs CONFIG_BPF_SYSCALL, and you root"
        ) from error


def _bpf(command: int, arguments: bytes) -> int:
    return _bpf_in_place(command, ctypes.create_string_buffer(arguments, len(arguments)))


def _bpf_in_place(command: int, arguments: "ctypes.Array[ctypes.c_char]") -> int:
    """The kernel may write to the arguments."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise BpfError(
            f"no number of the bpf system call is known for {platform.machine()} (expected one of "
            f"{', '.join(_SYSCALLS)}); add it to {__file__}"
        )
    result = _LIBC.syscall(number, command, ctypes.byref(arguments), len(arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)
