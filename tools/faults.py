"""What a small fault is: a changed operator, comparison, condition or number (tools/mutants.py runs tests on them)."""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SWAPS = {
    ast.Add: ["-"], ast.Sub: ["+"], ast.Mult: ["/"], ast.Div: ["*"], ast.FloorDiv: ["*"], ast.Mod: ["+"],
    ast.BitAnd: ["|"], ast.BitOr: ["&"], ast.LShift: [">>"], ast.RShift: ["<<"], ast.Pow: ["*"], ast.MatMult: [],
    ast.Lt: ["<=", ">"], ast.LtE: ["<", ">="], ast.Gt: [">=", "<"], ast.GtE: [">", "<="], ast.Eq: ["!="],
    ast.NotEq: ["=="], ast.Is: ["is not"], ast.IsNot: ["is"], ast.In: ["not in"], ast.NotIn: ["in"],
}  # fmt: skip


def text_of(source: str, node: ast.AST) -> str:
    """The words of a node, in brackets if it is more than one."""
    words = ast.get_source_segment(source, node) or ""
    return (
        words if isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript) else f"({words})"
    )


def changes(source: str, node: ast.AST) -> list[str]:
    """What may stand in the place of a node."""
    if isinstance(node, ast.BinOp):
        left, right = text_of(source, node.left), text_of(source, node.right)
        return [f"({left} {new} {right})" for new in SWAPS.get(type(node.op), [])]
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = text_of(source, node.left), text_of(source, node.comparators[0])
        return [f"({left} {new} {right})" for new in SWAPS[type(node.ops[0])]]
    if isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        return ["(" + word.join(text_of(source, value) for value in node.values) + ")"]
    if isinstance(node, ast.UnaryOp):
        return [text_of(source, node.operand)]
    if isinstance(node, ast.IfExp):
        return [f"({text_of(source, node.body)})", f"({text_of(source, node.orelse)})"]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return [str(not node.value)]
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return [repr(node.value + 1), *([repr(node.value - 1)] if node.value else [])]
    return []


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes that may be changed: no annotations, no errors, no options, no formatted words."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            option = isinstance(child, ast.Call) and getattr(child.func, "id", "") == "option"
            if isinstance(child, ast.AST) and not option and not isinstance(child, ast.Raise | ast.JoinedStr):
                yield child
                yield from parts(child)


@dataclass(frozen=True)
class Mutant:
    """A file with one fault, and the lines of the statement that has it."""

    file: Path
    text: str
    first: int
    last: int
    imported: bool  # whether the statement runs at import

    def item(self, outcome: str = "", commit: str = "") -> dict[str, object]:
        """What is written down of it."""
        before = (ROOT / self.file).read_text().splitlines()
        diff = list(difflib.unified_diff(before, self.text.splitlines(), n=0, lineterm=""))[2:]
        return {"file": str(self.file), "diff": diff, "outcome": outcome, "commit": commit}


def mutants(file: Path) -> Iterator[Mutant]:
    """The file with one fault, for every fault."""
    source = (ROOT / file).read_text()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    inside = [(one.body[0].lineno, one.end_lineno) for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
    statement = tree.body[0]
    for node in parts(tree):
        if isinstance(node, ast.stmt):
            statement = node  # its own parts follow it
        for new in changes(source, node):
            first = starts[node.lineno - 1] + node.col_offset  # the sources are ASCII
            last = starts[node.end_lineno - 1] + node.end_col_offset
            imported = not any(begin <= node.lineno <= end for begin, end in inside)
            text = source[:first] + new + source[last:]
            yield Mutant(file, text, statement.lineno, node.end_lineno, imported)
