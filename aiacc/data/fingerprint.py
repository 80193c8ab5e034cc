"""Which records belong to which dataset: fingerprints and keys.

A fingerprint is a hash of what a dataset is made of: its class, its length and its attributes, and
of theirs what they are made of, down to the code of the user's functions and classes and to what
that code names. It is the same in every process and every job as long as that is the same, and as
relative paths lead to the same files. What cannot be described is refused, never left out. It does
not look into files: whoever changes these in place gives another ``version``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from aiacc.data.described.objects import Members, Texts, name_of, parts_of, text_of
from aiacc.data.described.places import Places
from aiacc.data.described.program import Of, Part, Parts

#: Format of records, and what fingerprints are made of. Others' records are never read.
FORMAT = "aiacc-data-3"
_KEY_BYTES = 16


def fingerprint_of(dataset: Any, version: str = "") -> str:
    """32 hexadecimal digits for what ``dataset`` is made of, and ``version``.

    Raises:
        ValueError: Something in it cannot be described; the text says where it is.
    """
    _check_version(version)
    try:
        return _digest((FORMAT, version, _digest_of(dataset, "dataset", (), Places()))).hex()
    except _RefusedError as refused:
        where, kind, why = refused.args
        raise ValueError(
            f"{where} is a {kind}, and nothing says what it holds: {why} (expected attributes, or "
            "that it can be pickled); datasets that differ in it alone would get each other's "
            "samples: name the dataset by fingerprint=, or open the handle when it is first used"
        ) from refused


def named(fingerprint: str, version: str = "") -> str:
    """The same for a fingerprint that the user chose."""
    _check_version(version)
    return _digest((FORMAT, version, _digest(("str", fingerprint)))).hex()


def _check_version(version: Any) -> None:
    if not isinstance(version, str):
        raise ValueError(f"version={version!r} (expected a string)")


def key_of(fingerprint: str, name: int | str | bytes) -> bytes:
    """16 bytes for one sample of a dataset: its index, or the name that it has."""
    kind = type(name).__name__.encode()
    data = name if isinstance(name, bytes) else str(name).encode(errors="surrogatepass")
    prefix = bytes.fromhex(fingerprint) + kind + b"\0"
    return hashlib.blake2b(prefix + data, digest_size=_KEY_BYTES).digest()


class _RefusedError(Exception):
    """Where something is that cannot be described, its class, and why."""


class _Digest:
    """Of parts, one after another."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=_KEY_BYTES)

    def add(self, part: Part) -> None:
        data = part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
        self._hash.update(len(data).to_bytes(8, "little"))
        self._hash.update(data)

    def value(self) -> bytes:
        return self._hash.digest()


def _digest(parts: Iterable[Part]) -> bytes:
    found = _Digest()
    for part in parts:
        found.add(part)
    return found.value()


def _digest_of(top: Any, where: str, around: tuple[int, ...], places: Places) -> bytes:
    """The digest of what an object is made of, however deep that goes.

    Every object is described once. One that contains itself has a number, by which it is meant
    where it is met inside.

    Args:
        top: The object.
        where: What it is called in errors.
        around: By their id, the sets that it is a member of.
        places: Where relative paths lead to.
    """
    known: dict[int, tuple[Any, bytes | None]] = {}
    numbers: dict[int, int] = {}
    whole = _Digest()
    open_ones: list[tuple[Any, _Digest, Parts]] = [(None, whole, iter([Of(top, where)]))]
    path: list[str] = []
    while open_ones:
        value, digest, parts = open_ones[-1]
        try:
            part = next(parts, None)
            if isinstance(part, Members):
                part = _digest(sorted(_digests_of_members(value, part.items, around, places)))
            elif isinstance(part, Texts):
                part = places.of(part.items)
        except _RefusedError as refused:
            where, kind, why = refused.args
            raise _RefusedError("".join(path) + where, kind, why) from refused
        except Exception as error:
            why = str(error) or type(error).__name__
            raise _RefusedError("".join(path), name_of(type(value)), why) from error
        if part is None:
            open_ones.pop()
            if open_ones:
                path.pop()
                if id(value) in numbers:
                    digest.add(f"number {numbers[id(value)]}")
                known[id(value)] = value, digest.value()
                open_ones[-1][1].add(digest.value())
        elif not isinstance(part, Of):
            digest.add(part)
        elif (text := text_of(part.value)) is not None:
            digest.add(text[0])
            digest.add(text[1])
            if place := places.of([part.value]):
                digest.add(place)
        elif id(part.value) not in known:
            known[id(part.value)] = part.value, None
            digest.add("object")
            path.append(part.where)
            open_ones.append((part.value, _Digest(), parts_of(part.value)))
        else:
            found = known[id(part.value)][1]
            digest.add("object" if found else "around")
            digest.add(found or str(numbers.setdefault(id(part.value), len(numbers))))
    return whole.value()


def _digests_of_members(
    value: Any, items: Iterable[Any], around: tuple[int, ...], places: Places
) -> list[bytes]:
    """Each by itself, for their order is another one in each process."""
    if id(value) in around:
        raise ValueError("its members refer to it")
    return [_digest_of(item, " member", (*around, id(value)), places) for item in items]
