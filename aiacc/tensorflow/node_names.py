"""By which names ranks meet at the nodes of graphs.

A name has to be the same on every rank each time the node runs, also where one rank has traced a
function again and another has not, or has nodes in it that the other lacks. TensorFlow's own names
have numbers of the process and of the whole graph. So names are made while a function is traced:
of an unnamed node after the function, the loops and branches that it is in and the kind of
operation, numbered in the order of the function. Those of each process set are numbered by
themselves: another member may be in fewer sets. (Different names also keep TensorFlow from taking
two nodes with the same inputs for one.)

A function that others call is traced once for all its calls. When it runs, its nodes are part of
the graph of the caller, and their names begin with that of the call. So calls are named as nodes
are (`calls`), and the kernel adds that to the names of the nodes in the function
(csrc/bindings/tensorflow/node_calls.h).
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

#: Classes of the graphs of loops. They are not public in TensorFlow.
_LOOPS = ("WhileBodyFuncGraph", "WhileCondFuncGraph")


@dataclass
class _Names:
    """Those of the nodes of a graph."""

    #: How many have which automatic name, among those of which process sets.
    numbers: Counter[tuple[str, frozenset[int]]] = field(default_factory=Counter)
    #: Process sets of the nodes, also in its loops and branches, and in functions that it calls.
    sets: set[int] = field(default_factory=set)
    #: Given to nodes of the graph itself, each with its process set.
    inside: set[str] = field(default_factory=set)
    #: Also those given in its loops and branches, and in functions that it calls.
    below: set[str] = field(default_factory=set)


def of_node(graph: Any, verb: str, process_set: int = 0) -> str:
    """Name of a node that was given none."""
    return _numbered(graph, [verb, "node", "/".join(_place(graph))], {process_set})


def of_given(graph: Any, verb: str, name: str, process_set: int = 0) -> str:
    """Name of a node that was given one: followed by .1, .2 and so on if others have it.

    The branches of a `tf.cond` may have the same names, for one of them runs.
    """
    given = f"{verb}.{name}"
    _note(graph, {process_set})
    return _followed(given, _reserved(graph, {f"{process_set} {given}"}))


def of_call(graph: Any, function: Any) -> str | None:
    """Name scope of the call of a function, given by its graph; None if it has no collectives.

    "aiacc_call.LOOPS.NUMBER.NAME/": the loops in ``graph`` that the call is in, what follows the
    names that are given in the function, and what follows the automatic ones.
    """
    inside: _Names | None = getattr(function, "_aiacc_names", None)
    if inside is None:
        return None
    number = _reserved(graph, inside.below)
    name = _numbered(graph, [*_place(graph), _plain_name(function)], inside.sets)
    return f"aiacc_call.{loops_around(graph)}.{number}.{name}/"


def loops_around(graph: Any) -> int:
    """How many loops of its function, or session, a graph is in."""
    graphs = _within_function(graph)
    loops = sum(any(cls.__name__ in _LOOPS for cls in type(part).__mro__) for part in graphs)
    context = getattr(graphs[-1], "_control_flow_context", None)  # of loops that are no graphs
    while context is not None:
        loops += context.IsWhileContext()
        context = context.outer_context
    return loops


def _numbered(graph: Any, parts: list[str], sets: set[int]) -> str:
    """An automatic name: the parts that are not empty, and a number among those of these sets."""
    _note(graph, sets)
    name = ".".join(filter(None, parts))
    numbers, key = _names_of(_within_function(graph)[-1]).numbers, (name, frozenset(sets))
    numbers[key] += 1
    return f"{name}.{numbers[key]}"


def _note(graph: Any, sets: set[int]) -> None:
    for outer in _within_function(graph):
        _names_of(outer).sets |= sets


def _reserved(graph: Any, names: set[str]) -> int:
    """The least number that makes given names new in ``graph``, if it follows each of them."""
    graphs = _within_function(graph)
    taken = _names_of(graph).below.union(*(_names_of(outer).inside for outer in graphs[1:]))
    for number in itertools.count():
        chosen = {_followed(name, number) for name in names}
        if chosen.isdisjoint(taken):
            break
    _names_of(graph).inside.update(chosen)
    for outer in graphs:
        _names_of(outer).below.update(chosen)
    return number


def _followed(name: str, number: int) -> str:
    return f"{name}.{number}" if number else name


def label(graph: Any, verb: str) -> str:
    """What a node is called in messages of TensorFlow, which numbers it. Pure."""
    function = _plain_name(graph)
    return f"{function}.{verb}" if function else verb


def _plain_name(graph: Any) -> str:
    """Name of a graph without the numbers that depend on what was traced before."""
    name = re.sub(r"_\d+(?=_|$)", "", getattr(graph, "name", ""))
    return re.sub(r"[^A-Za-z0-9_.\-]", "", name).lstrip("_-")


def _place(graph: Any) -> list[str]:
    """The function that ``graph`` is in, and the loops and branches, from the outside in."""
    return [name for name in map(_plain_name, reversed(_within_function(graph))) if name]


def _within_function(graph: Any) -> list[Any]:
    """``graph``, and those around it up to the one of the `tf.function`, or of the session."""
    found = [graph]
    while _is_control_flow(found[-1]):
        found.append(found[-1].outer_graph)
    return found


def _is_control_flow(graph: Any) -> bool:
    # Neither these classes nor what tells them apart are public in TensorFlow.
    return any(cls.__name__ == "ControlFlowFuncGraph" for cls in type(graph).__mro__)


def _names_of(graph: Any) -> _Names:
    names: _Names | None = getattr(graph, "_aiacc_names", None)
    if names is None:
        names = graph._aiacc_names = _Names()
    return names
