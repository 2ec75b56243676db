"""Write code that keeps a line of a program, or some modules, in float32."""

import ast
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LOW = ("half", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class PastedCode:
    """Code that replaces the lines `first` to `last` of a file; without a file it belongs where the model is made."""

    text: str
    file: str = ""
    first: int = 0
    last: int = 0


def changes(
    units: Sequence[str], lines: Mapping[str, Collection[str]], variables: Mapping[str, str], device: str
) -> list[PastedCode]:
    """Return the code that keeps some units in float32.

    Args:
        units: lines and modules as `Sources.unit` names them.
        lines: the variables that hold tensors of a line.
        variables: what holds the outermost modules, by their class.
        device: the type of the regions.
    """
    modules = [unit for unit in units if unit not in lines]
    out = [_line(unit, lines[unit], device) for unit in units if unit in lines]
    for root in dict.fromkeys(unit.partition(".")[0] for unit in modules):
        paths = "".join(f'"{unit.partition(".")[2]}", ' for unit in modules if unit.partition(".")[0] == root)
        text = f"""\
for name in ({paths.strip()}):
    module = {variables.get(root, "model")}.get_submodule(name)
    in_float32 = torch.amp.custom_fwd(device_type="{device}", cast_inputs=torch.float32)
    module.forward = in_float32(module.forward)"""
        out.append(PastedCode(text))
    return out


def _line(unit: str, tensors: Collection[str], device: str) -> PastedCode:
    file, _, number = unit.rpartition(":")
    line = int(number)
    source = Path(file).read_text(encoding="utf-8")
    found = [x for x in ast.walk(ast.parse(source)) if isinstance(x, ast.stmt) and x.lineno <= line <= _end(x)]
    statement = max(found, key=lambda x: x.lineno)
    indent = " " * statement.col_offset
    if hasattr(statement, "body"):  # its head alone would have to be in float32
        return PastedCode(f"{indent}# in float32: {source.splitlines()[line - 1].strip()}", file, line, line - 1)
    code = ast.unparse(_Widened(tensors).visit(statement))
    text = f'with torch.autocast("{device}", enabled=False):\n{textwrap.indent(code, "    ")}'
    return PastedCode(textwrap.indent(text, indent), file, statement.lineno, _end(statement))


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


class _Widened(ast.NodeTransformer):
    """Makes a statement compute in float32: its tensors, and the dtypes that it names."""

    def __init__(self, tensors: Collection[str]) -> None:
        self._tensors = tensors

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Widen a variable that holds a tensor."""
        if node.id not in self._tensors or not isinstance(node.ctx, ast.Load):
            return node
        return ast.Call(ast.Attribute(node, "float", ast.Load()), [], [])

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Replace `torch.float16` and `x.half()` by float32's; what only asks a tensor something stays."""
        if node.attr in _LOW:
            whole = isinstance(node.value, ast.Name) and node.value.id == "torch"
            return ast.Attribute(self.visit(node.value), "float32" if whole else "float", node.ctx)
        self.generic_visit(node)
        return node
