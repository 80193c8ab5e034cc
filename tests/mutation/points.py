"""Places in the sources that a mutant changes, and the changed sources.

All mutants of a tree are in it at once, each behind a question that the file NUMBER answers when a
process starts: nothing is compiled for one mutant alone.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Point(NamedTuple):
    """One mutant: the `index`-th place of its kind in a file."""

    file: str
    line: int
    index: int
    change: str


_PAIRS: list[tuple[type[ast.cmpop], type[ast.cmpop]]] = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.In, ast.NotIn),
    (ast.Is, ast.IsNot),
]
_COMPARISONS = dict(_PAIRS) | {other: one for one, other in _PAIRS}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}


def _changed(node: ast.AST) -> tuple[str, ast.expr] | None:
    """What a mutant makes of an expression, and in words; None: nothing."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and len(new.ops) == 1 and type(new.ops[0]) in _COMPARISONS:
        new.ops[0] = _COMPARISONS[type(new.ops[0])]()
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
    elif isinstance(new, ast.BinOp) and type(new.op) in _ARITHMETIC:
        if any(
            isinstance(side, (ast.JoinedStr, ast.List, ast.Tuple)) for side in (new.left, new.right)
        ):
            return None
        new.op = _ARITHMETIC[type(new.op)]()
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not):
        return "not dropped", new.operand
    elif isinstance(new, ast.Constant) and type(new.value) is int:
        new.value += 1
    elif isinstance(new, ast.Constant) and type(new.value) is bool:
        new.value = not new.value
    else:
        return None
    assert isinstance(new, ast.expr)
    return ast.unparse(new)[:60], new


class _Python(ast.NodeTransformer):
    """Numbers the places inside of functions; guards those that are in ``guarded``."""

    def __init__(self, guarded: dict[int, int]) -> None:
        self.guarded = guarded
        self.found: list[tuple[int, str]] = []
        self._depth = 0

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._depth += 1
        node.body = [self.visit(statement) for statement in node.body]  # not its signature
        self._depth -= 1
        return node

    visit_FunctionDef = _function  # noqa: N815
    visit_AsyncFunctionDef = _function  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if not self._depth or not isinstance(node.value, ast.Call):
            return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)
        number = self._number(node.lineno, "call dropped")
        self.generic_visit(node)
        if number is None:
            return node
        return ast.If(test=_question(number), body=[ast.Pass()], orelse=[node])

    def generic_visit(self, node: ast.AST) -> ast.AST:
        change = _changed(node) if self._depth else None
        number = None if change is None else self._number(getattr(node, "lineno", 0), change[0])
        super().generic_visit(node)
        if change is None or number is None:
            return node
        return ast.IfExp(test=_question(number), body=change[1], orelse=node)

    def _number(self, line: int, change: str) -> int | None:
        self.found.append((line, change))
        return self.guarded.get(len(self.found) - 1)


def _question(number: int) -> ast.expr:
    return ast.Call(func=ast.Name("_mutant", ast.Load()), args=[ast.Constant(number)], keywords=[])


def _python(text: str, guarded: dict[int, int]) -> tuple[list[tuple[int, str]], str]:
    tree = ast.parse(text)
    visitor = _Python(guarded)
    visitor.visit(tree)
    if not guarded:
        return visitor.found, text
    start = 0
    for number, statement in enumerate(tree.body):
        first = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if first or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            start = number + 1
    imported = ast.parse("from aiacc._mutant import mutant as _mutant").body
    tree.body[start:start] = imported
    return visitor.found, ast.unparse(ast.fix_missing_locations(tree)) + "\n"


#: Where an expression begins: what it is part of binds less than it does.
_BEGINS = r"(?:(?<=\()|(?<=&& )|(?<=\|\| )|(?<=return )|(?<=[=?:,] ))"
_OPERAND = r"[\w.]+(?:->\w+|\(\)|\[\w+\])*"
_CPP = (
    # What is compared, unless it belongs to a template or to something longer.
    (
        re.compile(rf"{_BEGINS}({_OPERAND}) (<|<=|>|>=|==|!=) ({_OPERAND})(?=\)| &&| \|\||;| \?)"),
        "compare",
    ),
    (re.compile(rf"{_BEGINS}({_OPERAND}) ([+\-]) (\d+|{_OPERAND})(?=[);,])"), "add"),
    # Declarations are left alone.
    (
        re.compile(r"^(\s+)if \((?!(?:const )?[\w:<>]+[ *&]+\w+ = )([^;]*)\) \{$"),
        "if",
    ),
    (
        re.compile(
            r"^(  \s*)(?!(?:return|break|continue|delete|using|throw)\b)"
            r"([\w.\->\[\]]+(?:\([^;{}]*\)| [+\-|&]?= [^;{}]*));$"
        ),
        "drop",
    ),
)
_NO_CODE = ("//", "#", "for (", "case ", "static_assert", "return {")
_SWAPPED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+"}


def _cpp_places(lines: list[str]) -> Iterator[tuple[int, re.Match[str], str]]:
    for number, line in enumerate(lines):
        begins = lines[number - 1].rstrip().endswith((";", "{", "}"))  # with this line
        if line.strip().startswith(_NO_CODE) or re.search('constexpr|operator|template|"', line):
            continue
        for pattern, kind in _CPP:
            for match in pattern.finditer(line):
                whole = kind != "if" or match[2].count("(") == match[2].count(")")
                if whole and (kind != "drop" or begins):
                    yield number, match, kind


def _cpp(text: str, guarded: dict[int, int]) -> tuple[list[tuple[int, str]], str]:
    lines = text.split("\n")
    changed = list(lines)
    found: list[tuple[int, str]] = []
    for line, match, kind in _cpp_places(lines):
        number = guarded.get(len(found))
        ask = f"aiacc_mutant({number})"
        old = match[0].strip()
        if kind in ("compare", "add"):
            new = f"{match[1]} {_SWAPPED[match[2]]} {match[3]}"
            change, made = f"{old} -> {new}", f"({ask} ? ({new}) : ({match[0]}))"
        elif kind == "if":
            change, made = f"negated: {old}", f"{match[1]}if (bool({match[2]}) != {ask}) {{"
        else:
            change, made = f"dropped: {old}", f"{match[1]}if (!{ask}) {{ {match[2]}; }}"
        found.append((line + 1, change[:80]))
        # One change a line: positions of others have moved.
        if number is not None and changed[line] == lines[line]:
            changed[line] = lines[line][: match.start()] + made + lines[line][match.end() :]
    return found, "\n".join(changed)


def _convert(path: Path, guarded: dict[int, int]) -> tuple[list[tuple[int, str]], str]:
    return (_python if path.suffix == ".py" else _cpp)(path.read_text(), guarded)


def points_of(root: Path, files: list[str]) -> list[Point]:
    """All that a mutant could change in these files."""
    return [
        Point(file, line, index, change)
        for file in files
        for index, (line, change) in enumerate(_convert(root / file, {})[0])
    ]


def plant(root: Path, points: list[Point], number_file: Path) -> None:
    """Write mutant 0, 1, ... for the points into the sources below ``root``."""
    by_file: dict[str, dict[int, int]] = {}
    for number, point in enumerate(points):
        by_file.setdefault(point.file, {})[point.index] = number
    for file, guarded in by_file.items():
        (root / file).write_text(_convert(root / file, guarded)[1])
    reached = number_file.with_name("reached")
    (root / "aiacc" / "_mutant.py").write_text(_PYTHON_QUESTION.format(number_file, reached))
    (root / "mutant.h").write_text(
        _CPP_QUESTION.replace("NUMBER", str(number_file)).replace("REACHED", str(reached))
    )


_PYTHON_QUESTION = """from pathlib import Path

_CHOSEN = int(Path("{0}").read_text())
_SEEN: set = set()


def mutant(number):
    if _CHOSEN == -1 and number not in _SEEN:
        _SEEN.add(number)
        (Path("{1}") / str(number)).touch()
    return number == _CHOSEN
"""
_CPP_QUESTION = """#ifdef __cplusplus
#include <cstdio>
static int aiacc_chosen_mutant() {
  int number = -2;
  if (std::FILE* file = std::fopen("NUMBER", "r")) {
    if (std::fscanf(file, "%d", &number) != 1) number = -2;
    std::fclose(file);
  }
  return number;
}
[[maybe_unused]] static bool aiacc_mutant(int number) {
  static const int chosen = aiacc_chosen_mutant();
  static char seen[4096] = {};
  if (chosen == -1 && !seen[number]) {
    seen[number] = 1;
    char name[4096];
    std::snprintf(name, sizeof name, "REACHED/%d", number);
    if (std::FILE* file = std::fopen(name, "w")) std::fclose(file);
  }
  return number == chosen;
}
#endif
"""
