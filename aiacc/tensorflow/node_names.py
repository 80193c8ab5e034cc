"""By which names ranks meet at the nodes of graphs.

A name has to be the same on every rank each time the node runs, also where one rank has traced a
function again and another has not, or has nodes in it that the other lacks. TensorFlow's own names
have numbers of the process and of the whole graph. So names are made while a function is traced:
of an unnamed node after the function, the loops and branches that it is in and the kind of
operation, numbered in the order of the function. (Different names also keep TensorFlow from taking
two nodes with the same inputs for one.) What calls the function is known when it runs: the kernel
adds it to the names of unnamed nodes.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Names:
    """Those of the nodes of a graph."""

    #: How many have which automatic name.
    numbers: Counter[str] = field(default_factory=Counter)
    #: Given to nodes of the graph itself.
    inside: set[str] = field(default_factory=set)
    #: Also those given in its loops and branches.
    below: set[str] = field(default_factory=set)


def of_node(graph: Any, verb: str) -> str:
    """Name of a node that was given none."""
    graphs = _within_function(graph)
    path = "/".join(filter(None, (_plain_name(part) for part in reversed(graphs))))
    name = ".".join(filter(None, [verb, "node", path]))
    numbers = _names_of(graphs[-1]).numbers
    numbers[name] += 1
    return f"{name}.{numbers[name]}"


def of_given(graph: Any, verb: str, name: str) -> str:
    """Name of a node that was given one: followed by .1, .2 and so on if others have it.

    The branches of a `tf.cond` may have the same names, for one of them runs.
    """
    graphs = _within_function(graph)
    taken = _names_of(graph).below.union(*(_names_of(outer).inside for outer in graphs[1:]))
    candidates = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(1)))
    chosen = next(c for c in (f"{verb}.{c}" for c in candidates) if c not in taken)
    _names_of(graph).inside.add(chosen)
    for outer in graphs:
        _names_of(outer).below.add(chosen)
    return chosen


def label(graph: Any, verb: str) -> str:
    """What a node is called in messages of TensorFlow, which numbers it. Pure."""
    function = _plain_name(graph)
    return f"{function}.{verb}" if function else verb


def _plain_name(graph: Any) -> str:
    """Name of a graph without the numbers that depend on what was traced before."""
    name = re.sub(r"_\d+(?=_|$)", "", getattr(graph, "name", ""))
    return re.sub(r"[^A-Za-z0-9_.\-]", "", name).lstrip("_-")


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
