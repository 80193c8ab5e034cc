"""The classifier that gives every TCP flow a class of its own, as eBPF instructions. Pure.

Loaded by `bench.bed.bpf`. Unlike a hash of ports it cannot put two flows into one class: a map
from addresses and ports to a class is filled when the first packet of a flow is sent, with the next
number that nobody has. When the numbers have run out, the counter says so (`COUNTERS`), and the
packets take the default class.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

#: Handle of the queueing discipline, and the first of its classes that belongs to a flow.
MAJOR = 1
FIRST_MINOR = 0x100
#: The class of what is no flow (ARP), and that of a flow that is slowed down.
DEFAULT_MINOR = 0xF0
SLOW_MINOR = 0xF1

#: A flow that has sent as much carries data, and may be chosen to be slow.
DATA_BYTES = 1 << 20

FLOW_KEY = struct.Struct("!4s4sHH")  # source, destination, their ports
FLOW_VALUE = struct.Struct("=QQ")  # class, bytes sent
COUNTERS = struct.Struct("=QQ")  # flows that asked for a class, flows that may still become slow
#: Where the counters are among the flows.
COUNTERS_KEY = bytes(FLOW_KEY.size)

_ETHERNET = 14
_HEADERS = 24  # IPv4 without options, and the ports
_ETH_P_IP = 0x0008  # as it stands in the packet
_IPPROTO_TCP = 6

# Offsets in the context, and helpers, as in linux/bpf.h.
_SKB_LEN, _SKB_PROTOCOL = 0, 16
_LOOKUP, _UPDATE, _LOAD_BYTES = 1, 2, 26
_NO_EXIST = 1

# Where things lie below the frame pointer.
_PACKET = -32
_KEY = _PACKET + 12
_ZERO = -48
_VALUE = -64


@dataclass(frozen=True)
class Instruction:
    """One eBPF instruction; a jump names a label, which `assemble` resolves."""

    opcode: int
    target: int = 0
    source: int = 0
    offset: int = 0
    immediate: int = 0
    jump: str = ""


def classifier(flows: int, classes: int) -> bytes:
    """The program: returns the class of a packet, 0 for the default one.

    Args:
        flows: Descriptor of the hash map FLOW_KEY to FLOW_VALUE; it has COUNTERS, too.
        classes: Number of classes from FIRST_MINOR on.
    """
    return assemble(
        [
            _move(6, 1),
            _load(4, 0, 6, _SKB_PROTOCOL),
            _jump("!=", 0, _ETH_P_IP, "default"),
            *_call(
                _LOAD_BYTES,
                _move(1, 6),
                _set(2, _ETHERNET),
                *_address(3, _PACKET),
                _set(4, _HEADERS),
            ),
            _jump("!=", 0, 0, "default"),
            _load(1, 0, 10, _PACKET),
            _jump("!=", 0, 0x45, "default"),
            _load(1, 0, 10, _PACKET + 9),
            _jump("!=", 0, _IPPROTO_TCP, "default"),
            _store(8, 10, _ZERO, 0),
            _store(4, 10, _ZERO + 8, 0),
            *_find(flows, _KEY),
            _jump("!=", 0, 0, "known"),
            # A new flow takes a number.
            *_find(flows, _ZERO),
            _jump("==", 0, 0, "default"),
            _set(1, 1),
            _fetch_add(0, 0, 1),
            _jump(">=", 1, classes, "default"),
            _add(1, MAJOR << 16 | FIRST_MINOR),
            _store_register(10, _VALUE, 1),
            _store(8, 10, _VALUE + 8, 0),
            # Two packets of one flow may meet here on two cores: the first wins.
            *_call(
                _UPDATE,
                *_map(1, flows),
                *_address(2, _KEY),
                *_address(3, _VALUE),
                _set(4, _NO_EXIST),
            ),
            *_find(flows, _KEY),
            _jump("!=", 0, 0, "known"),
            "default",
            _set(0, 0),
            _exit(),
            "known",
            _move(7, 0),
            _load(4, 8, 6, _SKB_LEN),
            _move(1, 8),
            _fetch_add(7, 8, 1),
            # The packet that takes a flow beyond DATA_BYTES asks whether it is to be slow.
            _jump(">=", 1, DATA_BYTES, "classified"),
            _add_register(1, 8),
            _jump("<", 1, DATA_BYTES, "classified"),
            *_find(flows, _ZERO),
            _jump("==", 0, 0, "classified"),
            _load(8, 1, 0, 8),
            _jump("==", 1, 0, "classified"),
            _store(8, 0, 8, 0),
            _store(8, 7, 0, MAJOR << 16 | SLOW_MINOR),
            "classified",
            _load(8, 0, 7, 0),
            _exit(),
        ]
    )


def assemble(lines: Iterable[Instruction | str]) -> bytes:
    """Machine code of instructions; a text among them is a label.

    Raises:
        KeyError: A jump names a label that does not exist.
    """
    labels: dict[str, int] = {}
    instructions: list[Instruction] = []
    for line in lines:
        if isinstance(line, str):
            labels[line] = len(instructions)
        else:
            instructions.append(line)
    code = b""
    for position, line in enumerate(instructions):
        offset = labels[line.jump] - position - 1 if line.jump else line.offset
        code += struct.pack(
            "=BBhi", line.opcode, line.source << 4 | line.target, offset, line.immediate
        )
    return code


# Instruction encodings, as in the kernel's instruction-set document. A size is in bytes.

_SIZES = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}
_JUMPS = {"==": 0x15, "!=": 0x55, ">=": 0x35, "<": 0xA5}


def _move(target: int, source: int) -> Instruction:
    return Instruction(0xBF, target, source)


def _set(target: int, value: int) -> Instruction:
    return Instruction(0xB7, target, immediate=value)


def _add(target: int, value: int) -> Instruction:
    return Instruction(0x07, target, immediate=value)


def _add_register(target: int, source: int) -> Instruction:
    return Instruction(0x0F, target, source)


def _load(size: int, target: int, source: int, offset: int) -> Instruction:
    return Instruction(0x61 | _SIZES[size], target, source, offset)


def _store(size: int, target: int, offset: int, value: int) -> Instruction:
    return Instruction(0x62 | _SIZES[size], target, offset=offset, immediate=value)


def _store_register(target: int, offset: int, source: int) -> Instruction:
    return Instruction(0x7B, target, source, offset)


def _fetch_add(target: int, offset: int, source: int) -> Instruction:
    """Add ``source`` to 8 bytes in memory, atomically; ``source`` gets what was there."""
    return Instruction(0xDB, target, source, offset, 0x01)


def _jump(condition: str, target: int, value: int, label: str) -> Instruction:
    return Instruction(_JUMPS[condition], target, immediate=value, jump=label)


def _exit() -> Instruction:
    return Instruction(0x95)


def _map(target: int, descriptor: int) -> list[Instruction]:
    return [Instruction(0x18, target, 1, immediate=descriptor), Instruction(0)]


def _address(target: int, below_frame: int) -> list[Instruction]:
    return [_move(target, 10), _add(target, below_frame)]


def _call(helper: int, *arguments: Instruction) -> list[Instruction]:
    return [*arguments, Instruction(0x85, immediate=helper)]


def _find(flows: int, key: int) -> list[Instruction]:
    """Put where the value of the key lies that is below the frame into register 0, else 0."""
    return _call(_LOOKUP, *_map(1, flows), *_address(2, key))
