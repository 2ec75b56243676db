"""Plain torch for each attribute of `ampcheck.checks.scenario.Amp`: a shim is made of those that a scenario uses.

The text between the quotes is pasted by people into reports.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ampcheck.checks.scenario import Amp
from ampcheck.observe import isolation


@dataclass(frozen=True, slots=True)
class ShimAttribute:
    """A attribute: its text in the body of a class, and the attributes it needs.

    `fake`: its text on a device without values, where that is another one.
    """

    text: str
    needs: tuple[str, ...] = ()
    fake: str = ""


class _Plain(ast.NodeTransformer):
    """Takes annotations out of a function and calls its object `amp`."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([self.visit(node.target)], self.visit(node.value)), node)

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("amp", node.ctx) if node.id == "self" else node


def _own(function: Callable[..., Any], *needs: str) -> ShimAttribute:
    """Return a attribute whose text is the source of the function itself, and the attributes that the function uses."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    made = tree.body[0]
    assert isinstance(made, ast.FunctionDef)
    made.args.args = [arg for arg in made.args.args if arg.arg != "self"]
    made.returns = None
    made.body = made.body[1:] if ast.get_docstring(made) else made.body
    text = ast.unparse(ast.fix_missing_locations(_Plain().visit(tree)))
    return ShimAttribute(text.replace("{", "{{").replace("}", "}}"), needs)


ATTRIBUTES = {
    "type": ShimAttribute("type = {type!r}"),
    "dtype": ShimAttribute("dtype = {dtype}"),
    "other": ShimAttribute("other = {other}"),
    "default": ShimAttribute("default = {default}"),
    "region": ShimAttribute(
        """\
def region(dtype=dtype, **options):
    return {region}(amp.type, dtype=dtype, **options)""",
        ("type", "dtype"),
    ),
    "rand": ShimAttribute(
        """\
drawn = 0

def rand(*shape, dtype=torch.float32, requires_grad=False):  # from 0.05 to 0.95, other values each time
    amp.drawn += 1
    generator = torch.Generator().manual_seed(zlib.crc32(repr((shape, "unit", amp.drawn, 0)).encode()))
    x = 0.05 + 0.9 * torch.rand(shape, generator=generator, dtype=torch.float64)
    return x.to(dtype).to(amp.type).requires_grad_(requires_grad)""",
        ("type",),
        fake="""\
def rand(*shape, dtype=torch.float32, requires_grad=False):
    return torch.rand(shape, device=amp.type).to(dtype).requires_grad_(requires_grad)""",
    ),
    "probe": _own(Amp.probe, "rand"),
    "state": _own(Amp.state, "type"),
    "depth": _own(isolation.depth),
    "check": ShimAttribute(
        """\
def check(right, what, found, error=None):
    print("ok  " if right else "FAIL", what, "|", found)"""
    ),
    "assert_equal": _own(Amp.assert_equal, "check"),
    "assert_raises": _own(Amp.assert_raises, "check"),
    "warned": _own(Amp.warned),
    "assert_warns": _own(Amp.assert_warns, "check", "warned"),
    "assert_no_warning": _own(Amp.assert_no_warning, "check", "warned"),
    "thread": ShimAttribute(
        """\
def thread(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()""",
        fake="""\
def thread(call):
    with ThreadPoolExecutor(1, initializer=fake.__enter__) as pool:
        return pool.submit(call).result()""",
    ),
    "interleave": ShimAttribute(
        """\
def interleave(*workers):  # generators, each in a new thread, take turns: each up to its next yield
    left = [(ThreadPoolExecutor(1), worker()) for worker in workers]
    while left:
        left = [(pool, steps) for pool, steps in left if pool.submit(next, steps, amp).result() is not amp]""",
        fake="""\
def interleave(*workers):  # generators, each in a new thread, take turns: each up to its next yield
    left = [(ThreadPoolExecutor(1, initializer=fake.__enter__), worker()) for worker in workers]
    while left:
        left = [(pool, steps) for pool, steps in left if pool.submit(next, steps, amp).result() is not amp]""",
    ),
    "observe": ShimAttribute("observe = observe", ("recorder",)),
    "casts": _own(Amp.casts, "observe"),
    "received": _own(Amp.received, "observe"),
    "compiled": ShimAttribute(
        """\
def compiled(compiler, function, *inputs, **options):
{compiled}"""
    ),
    "program": ShimAttribute(
        """\
def program(body):
    source = textwrap.dedent(body).replace("DTYPE", "{dtype}").replace("TYPE", repr({type!r}))
    linecache.cache["program"] = (len(source), None, source.splitlines(keepends=True), "program")
    names = {{"torch": torch, "__name__": __name__}}
    exec(compile(source, "program", "exec"), names)
    return names["program"]"""
    ),
    "j2t": ShimAttribute(
        """\
def j2t(fn, cast_inputs=None):
    from {interop} import j2t_autograd

    return j2t_autograd(fn, cast_inputs=cast_inputs) if cast_inputs else j2t_autograd(fn)"""
    ),
    "unsupported": ShimAttribute(
        """\
def unsupported(reason):
    raise SystemExit(reason)"""
    ),
    "refused": ShimAttribute(
        """\
def refused(error, name):
    raise SystemExit(f"{{name}} raised {{error}}; it raises that without autocast, too")"""
    ),
    "assert_close": _own(Amp.assert_close, "check", "device.host"),
    "assert_identical": _own(Amp.assert_identical, "assert_equal", "assert_close", "device.host"),
    "copies": ShimAttribute(
        """\
class Copies(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {{}}))
        cast = func in (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype)
        if cast and (self.tensor is None or args[0] is self.tensor()) and args[0].dtype != out.dtype:
            self.made.append(weakref.ref(out))
        return out

def copies(call, tensor=None):  # a reference to each cast of a tensor, or of any, that a call makes
    copier = amp.Copies()
    copier.tensor, copier.made = None if tensor is None else weakref.ref(tensor), []
    with copier:
        call()
    return copier.made""",
    ),
    "module": _own(Amp.module, "type", "device.seed", "device.has_values"),
    "values": _own(Amp.values, "device.host"),
    "differences": ShimAttribute("differences = []"),
    "looked_at": ShimAttribute("looked_at = 0"),
    "unjudged": ShimAttribute('unjudged = ""'),
    "device.has_values": ShimAttribute("has_values = {has_values}"),
    "device.type": ShimAttribute("type = {type!r}"),
    "device.name": ShimAttribute("name = {name!r}"),
    "device.key": ShimAttribute("key = {key!r}"),
    "device.default_amp": ShimAttribute("default_amp = {default_amp!r}"),
    "device.amp_dtypes": ShimAttribute("amp_dtypes = {amp_dtypes!r}"),
    "device.policies": ShimAttribute(
        """\
def policies():  # what PyTorch documents for those of its ops that are asked about
    return {policies}"""
    ),
    "device.autocast": ShimAttribute(
        """\
def autocast(dtype=None, **options):
    dtypes = {{"fp16": torch.float16, "bf16": torch.bfloat16, None: None}}
    return {region}(amp.type, dtype=dtypes[dtype], **options)""",
        ("type",),
    ),
    "device.activate": ShimAttribute("activate = nullcontext", fake="activate = lambda: fake"),
    "device.host": ShimAttribute(
        """\
def host(tensor):
    return tensor.detach().cpu()"""
    ),
    "device.seed": ShimAttribute("seed = lambda: torch.manual_seed(0)", fake="seed = lambda: None"),
    "device.synchronize": ShimAttribute("synchronize = lambda: None"),
}
"""Attributes of `amp`, and behind `device.` those of its device. "recorder": that of `ampcheck.reproduce.snippets`."""
