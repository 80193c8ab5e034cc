"""Reads a Dockerfile as far as those of docker/ go. Pure: docker_check.py executes it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

KEYWORDS = {
    *("ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE"),
    *("FROM", "HEALTHCHECK", "RUN", "USER", "WORKDIR"),
}
_FLAG = re.compile(r"--([a-z-]+)=(\S+)\s+")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")


@dataclass(frozen=True)
class Instruction:
    """One instruction; its text is not expanded yet."""

    line: int
    keyword: str
    flags: Mapping[str, str]
    text: str

    def words(self) -> list[str]:
        """The text as a list: that of JSON (exec form), else of words."""
        return json.loads(self.text) if self.text.startswith("[") else self.text.split()


@dataclass
class Stage:
    """What follows a FROM."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)


def parse(text: str, arguments: Mapping[str, str] | None = None) -> list[Stage]:
    """The stages of a Dockerfile, in order; one without a name is called by its number.

    Args:
        text: Contents of the file.
        arguments: Values of ARGs, as by --build-arg; for those before the first FROM, which say
            what the bases are.

    Raises:
        ValueError: Something that is no part of what this reads, with its line.
    """
    variables: dict[str, str] = {}
    stages: list[Stage] = []
    for instruction in _instructions(text):
        if instruction.keyword == "FROM":
            words = expand(instruction.text, variables).split()
            named = len(words) == 3 and words[1].upper() == "AS"
            if len(words) != 1 and not named:
                raise ValueError(
                    f"line {instruction.line}: FROM {instruction.text} (expected FROM image, or "
                    "FROM image AS name)"
                )
            stages.append(Stage(words[2] if named else str(len(stages)), words[0]))
        elif stages:
            stages[-1].instructions.append(instruction)
        elif instruction.keyword == "ARG":
            variables |= argument(instruction, variables, arguments or {})
        else:
            raise ValueError(f"line {instruction.line}: {instruction.keyword} before any FROM")
    if not stages:
        raise ValueError("no FROM (expected at least one stage)")
    return stages


def needed(stages: list[Stage], target: str) -> list[Stage]:
    """The stages that make up ``target``, in order: its bases, and what it copies from.

    Raises:
        ValueError: There is no such stage.
    """
    by_name = {stage.name: stage for stage in stages}
    if target not in by_name:
        raise ValueError(f"no stage {target!r} (expected one of {', '.join(by_name)})")
    wanted, waiting = set(), [target]
    while waiting:
        stage = by_name.get(waiting.pop())
        if stage is not None and stage.name not in wanted:
            wanted.add(stage.name)
            waiting += [stage.base, *filter(None, map(source, stage.instructions))]
    return [stage for stage in stages if stage.name in wanted]


def source(instruction: Instruction) -> str:
    """The stage that an instruction takes files from, "" if none."""
    if instruction.keyword == "RUN":
        return mount(instruction).get("from", "")
    return instruction.flags.get("from", "")


def mount(instruction: Instruction) -> dict[str, str]:
    """The parts of a RUN's --mount, {} without one.

    Raises:
        ValueError: It is not of type bind.
    """
    if "mount" not in instruction.flags:
        return {}
    parts = dict(part.split("=", 1) for part in instruction.flags["mount"].split(","))
    if parts.get("type") != "bind" or not {"from", "source", "target"} <= parts.keys():
        raise ValueError(
            f"line {instruction.line}: --mount={instruction.flags['mount']} (expected type=bind "
            "with from, source and target)"
        )
    return parts


def argument(
    instruction: Instruction, variables: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """The variable that an ARG defines; none without a value."""
    name, _, default = instruction.text.partition("=")
    if name in given:
        return {name: given[name]}
    return {name: expand(default, variables)} if default else {}


def assignments(instruction: Instruction, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that an ENV sets, all by the values from before it.

    Raises:
        ValueError: The old form without "=".
    """
    found = {}
    for word in instruction.text.split():
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"line {instruction.line}: ENV {word} (expected NAME=value)")
        found[name] = expand(value.strip('"'), variables)
    return found


def expand(text: str, variables: Mapping[str, str]) -> str:
    """$NAME, ${NAME} and ${NAME:-default} replaced; what is unknown is empty."""
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2]) or found[3] or "", text)


def _instructions(text: str) -> list[Instruction]:
    found: list[Instruction] = []
    parts: list[str] = []
    begin = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not line.strip():
            continue  # also between the lines of one instruction
        if not parts:
            begin = number
        parts.append(line.strip().removesuffix("\\").rstrip())
        if not line.rstrip().endswith("\\"):
            found.append(_instruction(begin, " ".join(parts)))
            parts = []
    if parts:
        raise ValueError(f"line {begin}: an instruction that does not end ({parts[0]} ...)")
    return found


def _instruction(line: int, text: str) -> Instruction:
    keyword, _, rest = text.partition(" ")
    keyword, rest = keyword.upper(), rest.strip()
    if keyword not in KEYWORDS:
        raise ValueError(
            f"line {line}: {keyword} is not known (expected one of {', '.join(sorted(KEYWORDS))})"
        )
    flags = {}
    while keyword != "ENV" and (found := _FLAG.match(rest)):
        flags[found[1]] = found[2]
        rest = rest[found.end() :]
    return Instruction(line, keyword, flags, rest)
