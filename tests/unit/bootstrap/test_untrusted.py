"""What others send at start-up is read, or refused with the one error that the caller expects."""

from __future__ import annotations

import copy
import json
import random
import socket
import threading
from dataclasses import asdict

import pytest

from aiacc.bootstrap import frames
from aiacc.bootstrap.job_plan import Contribution, JobPlan, agree
from aiacc.bootstrap.providers import torchrun
from aiacc.bootstrap.providers.torchrun import TorchrunProvider
from aiacc.bootstrap.reach import Candidate, Presence
from aiacc.bootstrap.records import Record
from aiacc.bootstrap.untrusted import check_fields, read_object
from aiacc.config import TorchrunEnvironment
from aiacc.exceptions import BootstrapError

CHALLENGE = bytes(16)
HELLO = frames.Hello(1, 2, 0, "host pid 1", "00" * 16, pid=1, space="boot/pid:[1]")
RECORD = Record(1, 2, 0, nonce="ab", seen={"0": "cd"}, label="host pid 1")
ROW = Contribution(
    rank=0,
    size=1,
    host="a/boot",
    presence=Presence("a", 5000, [Candidate("eth0", "10.0.0.1", 24)], ["10.0.0.2"]),
    engine="auto",
    gpu_engine="auto",
    engines={"local": "", "tcp": ""},
    lanes=0,
    unit_bytes=1 << 20,
    version="1",
    launcher="rendezvous",
    generation=0,
    token=bytes(16),
    gpus=["0000:1a:00.0"],
    command=["train.py", "--lr=0.1"],
    equal={"AIACC_CACHE_CAPACITY": 4096},
)
DEEP = b"[" * 100_000
#: What no field expects, or only some.
VALUES = (
    None,
    True,
    -1,
    1 << 31,
    1 << 63,
    10**400,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "\ud800",
    "\0\n\x1b[2J",
    "\u00e9" * 300,
    [],
    [None],
    [[[]]],
    {},
    {"0": 3},
    {"": {"": []}},
)


def values_in(node):
    """Every place in an object that can hold another value: (container, key)."""
    keys = node.keys() if isinstance(node, dict) else range(len(node))
    for key in list(keys):
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from values_in(node[key])


def mutated(data: bytes, draw: random.Random) -> bytes:
    """A message like ``data``, wrong in one or a few places."""
    value = json.loads(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        places = list(values_in(value))
        if not places:
            break
        container, key = draw.choice(places)
        what = draw.randrange(4)
        if what == 0:
            del container[key]
        elif what == 1 and isinstance(container, dict):
            container[str(draw.choice(VALUES))] = copy.deepcopy(draw.choice(VALUES))
        else:
            container[key] = copy.deepcopy(draw.choice(VALUES))
    text = bytearray(json.dumps(value).encode())
    how = draw.randrange(6)
    if how == 0:
        text[draw.randrange(len(text))] = draw.randrange(256)
    elif how == 1:
        del text[draw.randrange(len(text)) :]
    elif how == 2:
        at = draw.randrange(len(text))
        text[at:at] = draw.choice((DEEP, b"\xff", b"\xed\xa0\x80", b"\0" * 9, b"9" * 5000))
    return bytes(text)


def hello_mutations(draw):
    """A hello wrong inside or outside of what its proof covers, of somebody without the token."""
    fields = mutated(json.dumps(HELLO._asdict()).encode(), draw).decode(errors="surrogateescape")
    outer = json.dumps({"fields": fields, "proof": "00" * 32}).encode()
    return mutated(outer, draw) if draw.random() < 0.5 else outer


def test_hellos_are_read_or_refused():
    draw = random.Random(1)
    read = 0
    for _ in range(3000):
        try:
            hello, known = frames.Hello.decode(hello_mutations(draw), "secret", CHALLENGE)
        except frames.ProtocolError:
            continue
        assert not known
        hello.encode("secret", CHALLENGE)
        assert hello.label.isprintable()
        frames.proof("secret", b"", hello.challenge)
        read += 1
    assert read > 10


def test_records_are_read_or_refused():
    draw = random.Random(2)
    read = 0
    header, _, payload = RECORD.encode(b"payload").partition(b"\n")
    for _ in range(3000):
        try:
            record, rest = Record.decode(mutated(header, draw) + b"\n" + payload)
        except ValueError:
            continue
        assert record.encode(rest)
        try:
            record.check_against(RECORD, 1)
        except BootstrapError as error:
            str(error).encode()
        read += 1
    assert read > 10


def test_rows_are_read_and_agreed_on_or_refused():
    draw = random.Random(3)
    agreed = 0
    for _ in range(3000):
        try:
            row = Contribution.decode(mutated(ROW.encode(), draw))
            plan = agree([row])
        except BootstrapError as error:
            str(error).encode()
            continue
        assert isinstance(plan, JobPlan)
        assert 0 <= plan.epoch < 1 << 32
        assert len(plan.token) == len(ROW.token)
        if plan.reach is not None:
            plan.reach.seen_by(0)[0].encode()
        agreed += 1
    assert agreed > 10


def test_frames_are_cut_right_or_refused():
    draw = random.Random(4)
    whole = b"".join(
        frames._HEADER.pack(b"AIRV", 1, kind, len(body)) + body
        for kind in frames.Kind
        for body in (b"", b"x" * 50)
    )
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 3))):
            data[draw.randrange(len(data))] = draw.randrange(256)
        ours, theirs = socket.socketpair()
        channel = frames.Channel(ours, limit=frames.MAX_HELLO_BYTES)
        with theirs:
            theirs.sendall(data)
        try:
            while True:
                for message in channel.receive():
                    assert len(message.body) <= frames.MAX_HELLO_BYTES
        except (frames.ProtocolError, frames.ConnectionGoneError):
            pass
        finally:
            channel.close()


def test_results_are_read_or_refused():
    draw = random.Random(5)
    whole = frames.encode_result(7, [b"ab", b"", b"cde"])
    for _ in range(2000):
        data = bytearray(whole)
        data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            _, payloads = frames.decode_result(bytes(data), 3)
        except frames.ProtocolError:
            continue
        assert sum(map(len, payloads)) == 5


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(DEEP, id="deep"),
        pytest.param(b'{"a":' * 50_000, id="deep object"),
        pytest.param(b"\xff\xfe{", id="half of UTF-16"),
        pytest.param(b"{\xff}", id="no UTF-8"),
        pytest.param(b"9" * 5000, id="long number"),
        b"null",
        b"",
    ],
)
def test_what_is_no_object(data):
    with pytest.raises(ValueError, match=r"."):
        read_object(data)
    with pytest.raises(BootstrapError, match="cannot be read"):
        Contribution.decode(data)
    with pytest.raises(ValueError, match=r"."):
        Record.decode(data + b"\n")
    with pytest.raises(frames.ProtocolError, match="malformed hello"):
        frames.Hello.decode(data, "", CHALLENGE)


def test_a_wrong_type_is_named():
    with pytest.raises(ValueError, match=r"challenge is 7 \(expected str\)"):
        check_fields(frames.Hello, HELLO._asdict() | {"challenge": 7})
    with pytest.raises(ValueError, match=r"gpus is \[1\] \(expected .*Sequence\[str\]"):
        check_fields(Contribution, {"gpus": [1]})
    with pytest.raises(ValueError, match="unknown field 'colour'"):
        check_fields(Record, {"colour": "blue"})
    check_fields(Contribution, vars(ROW) | {"local_rank": None})


class Store:
    """Stands for torch's: a dictionary in which rank 1 has left something."""

    def __init__(self, entry, seen):
        self.values = {"aiacc/0/0/0/entry/1": entry, "aiacc/0/0/0/seen/1": seen}

    def set(self, key, value):
        self.values[key] = value.encode() if isinstance(value, str) else value

    def wait(self, keys, timeout):
        pass

    def multi_get(self, keys):
        return [self.values[key] for key in keys]


def under_torchrun():
    place = TorchrunEnvironment(0, 2, -1, -1, "127.0.0.1", 1, True, 0, "")
    return TorchrunProvider(place, generation=0)


@pytest.mark.parametrize(
    "entry",
    [pytest.param(DEEP, id="deep"), pytest.param(b"\xff", id="no UTF-8"), b'{"rank": 1}', b"[]"],
)
def test_an_entry_in_a_store_that_cannot_be_read(entry, monkeypatch):
    monkeypatch.setattr(torchrun, "_connect", lambda *_: Store(entry + b"\n", b"{}"))
    with pytest.raises(BootstrapError, match="entry of rank 1 cannot be read"):
        under_torchrun().all_gather(b"", timeout_s=0.2)


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(DEEP, id="deep"),
        pytest.param(b"\xff", id="no UTF-8"),
        b"[]",
        b'{"nonce": "ab", "seen": 3}',
        b'{"nonce": "ab"}',
    ],
)
def test_a_confirmation_in_a_store_that_cannot_be_read_confirms_nothing(seen, monkeypatch):
    monkeypatch.setattr(torchrun, "_connect", lambda *_: Store(RECORD.encode(b""), seen))
    with pytest.raises(BootstrapError, match="rank 1 of 2 did not come"):
        under_torchrun().all_gather(b"", timeout_s=0.2)


def test_a_thread_that_cannot_be_made(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(BootstrapError, match=r"can't start new thread.*ulimit -u"):
        under_torchrun().all_gather(b"", timeout_s=0.2)


def test_a_record_of_another_version_may_have_other_fields():
    mine = Record(0, 2, 0)
    header = json.dumps({**asdict(mine), "rank": 1, "version": 99, "color": "red"})
    theirs, payload = Record.decode(header.encode() + b"\npayload")
    assert payload == b"payload"
    with pytest.raises(BootstrapError, match="speaks bootstrap version 99"):
        theirs.check_against(mine, 1)
