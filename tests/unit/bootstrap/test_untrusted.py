"""What others send at start-up is read, or refused with the one error that the caller expects."""

import contextlib
import copy
import json
import random
import socket
import threading
from dataclasses import asdict
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch.distributed as dist

from aiacc.bootstrap import frames
from aiacc.bootstrap.job_plan import Contribution, JobPlan, agree
from aiacc.bootstrap.providers import torchrun
from aiacc.bootstrap.providers.store import StoreProvider
from aiacc.bootstrap.providers.torchrun import TorchrunProvider
from aiacc.bootstrap.reach import Candidate, Presence
from aiacc.bootstrap.records import Record
from aiacc.bootstrap.untrusted import check_fields
from aiacc.config import TorchrunEnvironment
from aiacc.exceptions import BootstrapError
from tests.support.rendezvous import SHORT_S, message
from tests.unit.bootstrap.rows import job

CHALLENGE = bytes(16)
HELLO = frames.Hello(1, 2, 0, "host pid 1", "00" * 16, pid=1, space="boot/pid:[1]")
RECORD = Record(1, 2, 0, nonce="ab", seen={"0": "cd"}, label="host pid 1")
(ROW,) = job(
    "a",
    presence=Presence("a", 5000, [Candidate("eth0", "10.0.0.1", 24)], ["10.0.0.2"]),
    gpus=["0000:1a:00.0"],
    command=["train.py", "--lr=0.1"],
    equal={"AIACC_CACHE_CAPACITY": 4096},
)
DEEP = b"[" * 100_000
#: What no field expects, or only some.
VALUES = (
    *(None, True, -1, 1 << 31, 1 << 63, 10**400, 0.5, float("nan"), float("inf")),
    *("", "\ud800", "\0\n\x1b[2J", "\u00e9" * 300),
    *([], [None], [[[]]], {}, {"0": 3}, {"": {"": []}}),
)


def values_in(node):
    """Every place in an object that can hold another value: (container, key)."""
    keys = node.keys() if isinstance(node, dict) else range(len(node))
    for key in list(keys):
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from values_in(node[key])


def mutated(data: bytes, draw: random.Random) -> bytes:
    """A message like ``data``, wrong in one or a few places, or as a whole."""
    value = json.loads(data) if draw.random() < 0.98 else draw.choice(VALUES)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        places = list(values_in(value)) if isinstance(value, dict | list) else []
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


def read_hello(draw):
    """Wrong inside or outside of what its proof covers, of somebody without the token."""
    fields = mutated(json.dumps(HELLO._asdict()).encode(), draw).decode(errors="surrogateescape")
    outer = json.dumps({"fields": fields, "proof": "00" * 32}).encode()
    data = mutated(outer, draw) if draw.random() < 0.5 else outer
    hello, known = frames.Hello.decode(data, "secret", CHALLENGE)
    assert not known
    hello.encode("secret", CHALLENGE)
    assert hello.label.isprintable()
    frames.proof("secret", b"", hello.challenge)


def read_record(draw):
    header, _, payload = RECORD.encode(b"payload").partition(b"\n")
    record, rest = Record.decode(mutated(header, draw) + b"\n" + payload)
    assert record.encode(rest)
    with contextlib.suppress(BootstrapError):
        record.check_against(RECORD, 1)


def read_row(draw):
    plan = agree([Contribution.decode(mutated(ROW.encode(), draw))])
    assert isinstance(plan, JobPlan)
    assert 0 <= plan.epoch < 1 << 32
    assert len(plan.token) == len(ROW.token)
    if plan.reach is not None:
        plan.reach.seen_by(0)[0].encode()


def read_result(draw):
    """Lengths may be wrong, but not their sum."""
    whole = frames.encode_result(7, [b"ab", b"", b"cde"])
    for length in (draw.randrange(len(whole)), len(whole) + 1):
        with pytest.raises(frames.ProtocolError):
            frames.decode_result((whole + b"x")[:length], 3)
    data = bytearray(whole)
    data[draw.randrange(len(data))] = draw.randrange(256)
    _, payloads = frames.decode_result(bytes(data), 3)
    assert sum(map(len, payloads)) == 5


def read_frames(draw):
    whole = [message(kind, body) for kind in frames.Kind for body in (b"", b"x" * 50)]
    data = bytearray(b"".join(whole))
    for _ in range(draw.choice((1, 1, 3))):
        data[draw.randrange(len(data))] = draw.randrange(256)
    ours, theirs = socket.socketpair()
    with contextlib.closing(frames.Channel(ours, limit=frames.MAX_HELLO_BYTES)) as channel:
        with theirs:
            theirs.sendall(data)
        while True:
            assert all(len(one.body) <= frames.MAX_HELLO_BYTES for one in channel.receive())


#: (reads something that is wrong in random places, the errors for what it refuses, least read)
READERS = [
    (read_hello, frames.ProtocolError, 10),
    (read_record, ValueError, 10),
    (read_row, BootstrapError, 10),
    (read_result, frames.ProtocolError, 1),
    (read_frames, (frames.ProtocolError, frames.ConnectionGoneError), 0),
]


@pytest.mark.parametrize(("read", "refusals", "least"), READERS)
def test_what_is_wrong_in_random_places_is_read_or_refused(read, refusals, least):
    draw = random.Random(read.__name__)
    count = 0
    for _ in range(500 if read is read_frames else 3000):
        try:
            read(draw)
        except refusals as error:
            str(error).encode()
        else:
            count += 1
    assert count >= least


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (frames.Hello, HELLO._asdict() | {"challenge": 7}, r"challenge is 7 \(expected str\)"),
        (Contribution, {"gpus": [1]}, r"gpus is \[1\] \(expected .*Sequence\[str\]"),
        (Record, {"colour": "blue"}, "unknown field 'colour'"),
    ],
)
def test_a_wrong_type_is_named(kind, fields, text):
    with pytest.raises(ValueError, match=text):
        check_fields(kind, fields)
    check_fields(Contribution, vars(ROW) | {"local_rank": None})


def under_torchrun():
    place = TorchrunEnvironment(0, 2, -1, -1, "127.0.0.1", 1, True, 0, "")
    return TorchrunProvider(place, generation=0)


#: (what a store holds as entry of rank 1, as what it has seen, and the error)
STORED = [
    *(
        (entry + b"\n", b"{}", "entry of rank 1 cannot be read")
        for entry in (DEEP, b"\xff", b'{"rank": 1}', b"[]")
    ),
    # What cannot be read confirms nothing.
    *(
        (RECORD.encode(b""), seen, "rank 1 of 2 did not come")
        for seen in (DEEP, b"\xff", b"[]", b'{"nonce": "ab", "seen": 3}', b'{"nonce": "ab"}')
    ),
]


@pytest.mark.parametrize(("entry", "seen", "text"), STORED, ids=range(len(STORED)))
def test_what_a_store_holds_and_cannot_be_read(entry, seen, text, monkeypatch):
    store = dist.HashStore()  # in which rank 1 has left something
    store.set("aiacc/0/0/0/entry/1", entry)
    store.set("aiacc/0/0/0/seen/1", seen)
    monkeypatch.setattr(torchrun, "_connect", lambda *_: store)
    with pytest.raises(BootstrapError, match=text):
        under_torchrun().all_gather(b"", timeout_s=SHORT_S)


def test_a_lost_store_and_a_thread_that_cannot_be_made_are_errors(monkeypatch):
    lost = RuntimeError("Connection reset by peer\nstack")
    broken = SimpleNamespace(set=Mock(side_effect=lost))
    with pytest.raises(BootstrapError, match=r"lost the store.*Connection reset by peer;"):
        StoreProvider(broken, 0, 2).all_gather(b"x", timeout_s=20)
    refuse = Mock(side_effect=RuntimeError("can't start new thread"))
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
