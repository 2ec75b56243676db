"""`ampcheck precision`: its answer, with the code that keeps lines in float32, as text, as a picture and as JSON."""

import argparse
import ast
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite, log10
from pathlib import Path
from textwrap import dedent, indent, shorten, wrap

import torch
from tabulate import tabulate

from ampcheck.errors import UsageError
from ampcheck.observe.closeness import relative_error
from ampcheck.runner.record import first_line
from ampcheck.tools import user_program
from ampcheck.tools.lint.names import last_line
from ampcheck.tools.precision.runs import Figures, Pair, Program, checked, least

_SCREEN = 22
"""Lines of the answer on a terminal of 24."""


@dataclass(frozen=True, slots=True)
class PastedCode:
    """Code that replaces the lines `first` to `last` of a file; without a file it belongs where the model is made."""

    text: str
    file: str = ""
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class ModuleError:
    """How far a module's outputs, or its parameters' gradients, are from float64's, and the region's from float32's."""

    module: str
    backward: bool
    region: float
    float32: float
    apart: float


@dataclass(frozen=True, slots=True)
class OpError:
    """An op's errors against float64: of what it was given and what it returned, and the latter of float32's run."""

    name: str
    unit: str
    backward: bool
    given: float
    region: float
    float32: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The result. `least`: the units to keep in float32, None where all of them are not enough; `reached`: with them.

    `losses`: by step, of the region, float32, float64 and the least set. `step`: the one that was looked at.
    """

    program: str
    training: bool
    low: str
    tolerance: float
    distance: float
    least: Sequence[str] | None
    reached: float
    step: int
    runs: int
    changes: Sequence[PastedCode]
    ops: Sequence[OpError]
    modules: Sequence[ModuleError]
    losses: Sequence[tuple[float, ...]]


def find(program: Program, tolerance: float, name: str) -> Answer:
    """Run a program until it is known where it loses accuracy. Raises UsageError where it gives nothing to compare."""
    region = checked(program.run("as it is", quiet=False), "as it is")
    program.training = region.training
    if region.scales and region.scales[-1] < region.scales[0]:
        program.scale = region.scales[-1]  # no step is skipped from the start on, in no run
        region = checked(program.run("from the scale where no step is skipped"), "at another scale")
    wide = checked(program.run("in float32, with float64 beside it", None, exact=True), "in float32")
    distance = region.distance(wide)
    pairs = enumerate(zip(region.losses, wide.losses, strict=False), 1)
    step = next((step for step, (a, b) in pairs if not a.isfinite().all() and b.isfinite().all()), 1)
    seen = program.run(f"step {step}, op by op", look=step)
    seen_wide = program.run(f"step {step} in float32, op by op", look=step, wide=True)
    ops = _ops(seen, seen_wide)
    units = list(dict.fromkeys(op.unit for op in ops if op.unit))
    found: list[str] | None = []
    if not distance <= tolerance:
        found = least(units, lambda some: program.kept(some).distance(wide) <= tolerance)
    kept = program.kept(found) if found else region
    on = [record.region for record, _ in seen.ops if record.region.enabled]
    device, low = (on[0].device, on[0].dtype) if on else ("cpu", "the region")
    changes = pasted(found or (), seen.lines | kept.lines, seen.variables, device)
    sizes = [[float(x.norm()) for x in some] for some in (region.losses, wide.losses, wide.exact, kept.losses)]
    losses = list(zip(*sizes, strict=False))
    modules = _modules(seen, seen_wide)
    reached = kept.distance(wide)
    return Answer(name, region.training, low, tolerance, distance, found, reached, step, program.runs, changes, ops,
                  modules, losses)  # fmt: skip


# ---- code that keeps a line of a program, or some modules, in float32

_NARROW = ("half", "bfloat16", "float16")


def pasted(
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
    found = [x for x in ast.walk(ast.parse(source)) if isinstance(x, ast.stmt) and x.lineno <= line <= last_line(x)]
    statement = max(found, key=lambda x: x.lineno)
    margin = " " * statement.col_offset
    if hasattr(statement, "body"):  # its head alone would have to be in float32
        return PastedCode(f"{margin}# in float32: {source.splitlines()[line - 1].strip()}", file, line, line - 1)
    code = ast.unparse(_Widened(tensors).visit(statement))
    text = f'with torch.autocast("{device}", enabled=False):\n{indent(code, "    ")}'
    return PastedCode(indent(text, margin), file, statement.lineno, last_line(statement))


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
        if node.attr in _NARROW:
            whole = isinstance(node.value, ast.Name) and node.value.id == "torch"
            return ast.Attribute(self.visit(node.value), "float32" if whole else "float", node.ctx)
        self.generic_visit(node)
        return node


# ---- the errors of ops and modules


def _ops(seen: Figures, wide: Figures) -> list[OpError]:
    """Return each op of the program once, those whose error grew most first, if not float32's grew as much."""
    in_float32: dict[tuple[str, str, bool], float] = {}
    for record, lost in wide.ops:
        key = record.name, lost.unit, lost.backward
        in_float32[key] = max(in_float32.get(key, 0.0), lost.out)
    found: dict[tuple[str, str, bool], tuple[float, OpError]] = {}
    for record, lost in seen.ops:
        key = record.name, lost.unit, lost.backward
        base = in_float32.get(key, 0.0)
        weight = lost.growth if lost.out > 10 * base else 0.0
        if key not in found or weight > found[key][0]:
            found[key] = weight, OpError(record.name, lost.unit, lost.backward, lost.given, lost.out, base)
    return [op for _, op in sorted(found.values(), key=lambda one: -one[0])]


def _error(pairs: Sequence[Pair]) -> float:
    return relative_error(torch.cat([x.flatten() for x, _ in pairs]), torch.cat([x.flatten() for _, x in pairs]))


def _modules(seen: Figures, wide: Figures) -> list[ModuleError]:
    """Return the errors by module, in the program's order, each once forward and once backward."""
    out: dict[tuple[str, bool], ModuleError] = {}
    for (path, region), (_, float32) in zip(seen.outputs, wide.outputs, strict=False):
        if region and [x.shape for x, _ in region] == [x.shape for x, _ in float32]:
            apart = _error([(a, b) for (a, _), (b, _) in zip(region, float32, strict=True)])
            one = ModuleError(path, False, _error(region), _error(float32), apart)
            out[path, False] = max(out.get((path, False), one), one, key=lambda x: x.region)
    owners: dict[str, list[str]] = {}
    for name in seen.gradients.keys() & wide.gradients.keys():
        owners.setdefault(name.rpartition(".")[0], []).append(name)
    for path, names in owners.items():
        ours, theirs = [seen.gradients[name] for name in names], [wide.gradients[name] for name in names]
        apart = _error([(a, b) for (a, _), (b, _) in zip(ours, theirs, strict=True)])
        out[path, True] = ModuleError(path, True, _error(ours), _error(theirs), apart)
    order = {path: place for place, path in enumerate(dict.fromkeys(path for path, _ in out))}
    return sorted(out.values(), key=lambda x: (order[x.module], x.backward))


def percent(error: float) -> str:
    """Return an error for people: "0.03 %", "not finite"."""
    if not isfinite(error):
        return "not finite"
    return f"{100 * error:.2g} %" if error < 1 else f"{error:.2g} times"


_UNIT = 26
"""The most characters of a line or module on the first screen."""


def text(answer: Answer, *, everything: bool = False) -> str:
    """Return the answer as text, cut to a screen unless everything is asked for."""
    width = user_program.screen_width()
    what = "loss" if answer.training else "output"
    far = "is not finite" if answer.distance == inf else f"is up to {percent(answer.distance)} from float32's"
    head = f"In {answer.low} the {what} of {answer.program} {far} in {len(answer.losses)} steps"
    if answer.least is None:
        head += f"; with every op in float32 it is still more than {percent(answer.tolerance)} away, so that it "
        head += "draws other random numbers, or lowers precision where no call shows it."
    elif not answer.least:
        head += f", within the tolerance of {percent(answer.tolerance)}: nothing has to be in float32."
    else:
        head += f". With {len(answer.least)} of its lines and modules in float32 it is up to "
        head += f"{percent(answer.reached)} from it (tolerance {percent(answer.tolerance)}):"
    lines = wrap(head, width)
    pasted = [line for change in answer.changes for line in _pasted(change)]
    if not everything and len(pasted) > 9:
        pasted = [*pasted[:8], f"# … {len(pasted) - 8} more lines with --all"]
    lines += [indent(line, "    ") for line in pasted]
    ops, losses = _op_table(answer, everything), _loss_table(answer, what, everything)
    room = None if everything else max(_SCREEN - len(lines) - len(ops) - len(losses) - 3, 1)
    of = _module_table(answer, room)
    tables = ["", *ops, "", *losses, *(["", *of] if answer.modules else [])]
    if everything:
        return "\n".join([*lines, *tables])
    height = sum(1 + (len(line) - 1) // width for line in lines)
    return "\n".join(lines + [first_line(line, width) for line in tables[: max(_SCREEN - height, 0)]])


def _pasted(change: PastedCode) -> list[str]:
    where = f"{change.file}:{change.first}" if change.file else "after the model is made"
    instead = ", instead of what is there" if change.last >= change.first > 0 else ""
    return [f"# {where}{instead}", *dedent(change.text).splitlines()]


def _named(name: str, backward: bool) -> str:
    return f"↩ {name}" if backward else name


def _table(rows: list[tuple[str, ...]], heads: tuple[str, ...]) -> list[str]:
    return tabulate(rows, heads, disable_numparse=True).splitlines()


def _op_table(answer: Answer, everything: bool) -> list[str]:
    rows = []
    for op in answer.ops:
        if everything or op.region > op.given or not isfinite(op.region):
            unit = op.unit if everything else user_program.end(op.unit, _UNIT)
            rows.append((_named(op.name, op.backward), unit, *map(percent, (op.given, op.region, op.float32))))
    heads = ("op that loses most", "line or module", "error given", f"returned in {answer.low}", "in float32")
    return _table(rows if everything else rows[:4], heads)


def _loss_table(answer: Answer, what: str, everything: bool) -> list[str]:
    count = len(answer.losses)
    steps = range(count) if everything else sorted({0, count // 2, count - 1})
    told = [(str(step + 1), *(f"{x:.5g}" for x in answer.losses[step])) for step in steps if count]
    return _table(told, (f"{what} in step", answer.low, "float32", "float64", "the least set"))


def _module_table(answer: Answer, room: int | None) -> list[str]:
    """Return the errors of modules: all of them, or the worst for which there is room."""
    shown = answer.modules if room is None else sorted(answer.modules, key=lambda x: -x.region)[:room]
    rows = [(_named(x.module, x.backward), *map(percent, (x.region, x.float32, x.apart))) for x in shown]
    heads = (f"module (↩ gradients), step {answer.step}", f"{answer.low} from float64", "float32 from float64", "apart")
    return _table(rows, heads)


def picture(answer: Answer) -> str:
    """Return an SVG: the error of each module against float64, forward and backward, in the region and in float32."""

    def place(error: float) -> float:
        return 330 + 40 * (min(max(log10(error), -9), 1) + 9) if error > 0 else 330

    how = {"place": place, "percent": percent, "named": _named, "shorten": shorten}
    return user_program.drawn(Path(__file__).with_name("picture.svg"), answer=answer, **how)


def data(answer: Answer) -> dict[str, object]:
    """Return the answer as JSON data; what is not finite is a string."""
    return {"schema": 1} | user_program.plain(asdict(answer))  # type: ignore[no-any-return]


def parser() -> argparse.ArgumentParser:
    """Return the parser of `ampcheck precision`."""
    out = user_program.Parser(
        "ampcheck precision",
        "Run a program again and again, and say where it loses accuracy and what has to be in float32.",
        "[--steps N] [--tolerance T] [--all] [--svg FILE] [--json FILE]",
    )
    out.add_argument("--steps", type=int, default=10, metavar="N", help="end each run after N steps (10)")
    out.add_argument(
        "--tolerance", type=float, default=0.02, metavar="T", help="how far the loss may be from float32's (0.02)"
    )
    out.add_argument("--all", action="store_true", help="show every op, module and step, not one screen")
    return out.ended(svg="a picture of the modules", json="every figure")


def command(argv: list[str]) -> int:
    """Run `ampcheck precision` with its arguments.

    Returns the exit code: 0 where the program is within the tolerance, else 1. Raises UsageError for bad arguments, or
    a program that cannot be found or called, fails, or gives nothing to compare.
    """
    options = parser().parse_args(argv)
    if options.steps < 1:
        raise UsageError(f"--steps must be 1 or more, not {options.steps}")
    if not 0 < options.tolerance < inf:
        raise UsageError(f"--tolerance must be more than 0, not {options.tolerance}")
    program = Program(
        options.target, options.args, options.steps, lambda line: print(line, file=sys.stderr, flush=True)
    )
    answer = find(program, options.tolerance, options.target)
    print(text(answer, everything=options.all))
    user_program.write(options.svg, lambda: picture(answer))
    user_program.write(options.json, lambda: json.dumps(data(answer), indent=1))
    return int(answer.distance > options.tolerance)
