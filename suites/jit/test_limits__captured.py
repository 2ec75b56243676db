"""Rule limits, traced, traced symbolically and exported: `ampcheck.spec.rules` says what it promises."""

import warnings

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.tools.lint.cases import Limit, check, check_found
from ampcheck.tools.lint.reproduce import of_limit

pytestmark = pytest.mark.rule("limits")

_REGION = """
def program(a, b):
    with torch.autocast({device}):
        return torch.mm(a, b)
"""
_DISABLED = """
def program(a, b):
    with torch.autocast({device}, enabled=False):
        return torch.mm(a, b)
"""
_OTHER = """
def program(a, b):
    with torch.autocast({device}, dtype={other}):
        return torch.mm(a, b)
"""
_ANNOTATED = """
@torch.autocast({device}, enabled=False)
def program(a, b):
    return torch.mm(a, b)
"""
_ASKED = """
def program(a, b):
    return torch.mm(a, b) if torch.is_autocast_enabled({device}) else a + b
"""
_SET = """
def program(a, b):
    before = torch.is_autocast_enabled({device})
    torch.set_autocast_enabled({device}, True)
    a = torch.mm(a, b)
    torch.set_autocast_enabled({device}, before)
    return a
"""
_CUSTOM = """
class Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type={device}, cast_inputs=torch.float32)
    def forward(ctx, a, b):
        return torch.mm(a, b)

def program(a, b):
    return Product.apply(a, b)
"""
_SCRIPTED_CALLEE = """
@torch.jit.script
def helper(a, b):
    return torch.mm(a, b)

def program(a, b):
    with torch.autocast({device}):
        return helper(a, b)
"""
_TRACED_CALLEE = """
def helper(a, b):
    with torch.autocast({device}, enabled=False):
        return torch.mm(a, b)

traced = torch.jit.trace(helper, (a, b), check_trace=False)

def program(a, b):
    with torch.autocast({device}):
        return traced(a, b)
"""
_NESTED = """
def program(a, b):
    with torch.autocast({device}, dtype={dtype}):
        a = torch.mm(a, b)
        with torch.autocast({device}, enabled=False):
            return a, torch.mm(b, b)
"""

_CAST = """
def program(a, b):
    with torch.autocast({device}, dtype={dtype}):
        return torch.mm(a, b).float()
"""
_PARTS = """
def program(a, b):
    with torch.autocast({device}):
        return torch.einsum("ij,jk->ik", a, b)
"""


def _as_module(text: str) -> str:
    """Exports take modules: the program becomes the forward of one."""
    head, _, body = text.strip("\n").rpartition("def program(a, b):\n")
    decorator = head.splitlines()[-1] if head.rstrip().endswith(")") and head.splitlines()[-1].startswith("@") else ""
    head = head[: len(head) - len(decorator) - 1] if decorator else head
    lines = [decorator, "def forward(self, a, b):", *body.splitlines()]
    inner = "\n".join(f"    {line}" for line in lines if line)
    return f"{head}class Program(torch.nn.Module):\n{inner}\n\nprogram = Program()\n"


LIMITS = {
    "tracing_region": Limit("traced", _REGION, ("default-dtype",)),
    "tracing_disabled": Limit("traced", _DISABLED, ("lost-in-trace",)),
    "tracing_own_dtype": Limit("traced", _OTHER, ("lost-in-trace",)),
    "tracing_annotated": Limit("traced", _ANNOTATED, ("lost-in-trace",)),
    "tracing_nested": Limit("traced", _NESTED, ("lost-in-trace",)),
    "tracing_asking": Limit("traced", _ASKED, ("query-frozen",)),
    "tracing_setting": Limit("traced", _SET, ("query-frozen", "state-change")),
    "tracing_custom": Limit("traced", _CUSTOM),
    "tracing_parts": Limit("traced", _PARTS, ("default-dtype",)),
    "jit_callee": Limit("traced", _SCRIPTED_CALLEE, ("default-dtype", "scripted-callee")),
    "tracing_callee": Limit("traced", _TRACED_CALLEE, ("default-dtype", "lost-in-trace", "traced-callee")),
    "symbolic_region": Limit("fx", _REGION, ("lost-in-fx",)),
    "symbolic_disabled": Limit("fx", _DISABLED, ("lost-in-fx",)),
    "symbolic_annotated": Limit("fx", _ANNOTATED, ("lost-in-fx",)),
    "symbolic_asking": Limit("fx", _ASKED, ("query-frozen",)),
    "symbolic_setting": Limit("fx", _SET, ("query-frozen", "state-change")),
    "symbolic_custom": Limit("fx", _CUSTOM, ("custom-fwd",)),
    "ep_region": Limit("export", _as_module(_REGION), ("default-dtype",)),
    "ep_disabled": Limit("export", _as_module(_DISABLED)),
    "ep_own_dtype": Limit("export", _as_module(_OTHER)),
    "ep_annotated": Limit("export", _as_module(_ANNOTATED)),
    "ep_nested": Limit("export", _as_module(_NESTED)),
    "ep_asking": Limit("export", _as_module(_ASKED), ("query-frozen",)),
    "ep_setting": Limit("export", _as_module(_SET), ("query-frozen", "state-change")),
    "ep_custom": Limit("export", _as_module(_CUSTOM), ("custom-fwd",)),
    "ep_tight_region": Limit("strict", _as_module(_REGION), ("default-dtype",)),
    "ep_tight_nested": Limit("strict", _as_module(_NESTED)),
    "ep_cast": Limit("export", _as_module(_CAST)),
    "ep_tight_cast": Limit("strict", _as_module(_CAST)),
    "ep_tight_custom": Limit("strict", _as_module(_CUSTOM), ("custom-fwd",)),
}
"""Programs that are traced or exported, by name."""


@pytest.mark.parametrize("name", list(LIMITS))
@scenario(values=True, dtypes="default")
def test_captured(amp: Amp, name: str) -> None:
    """A region that is traced or exported does what it does eagerly (JIT-AUTOCAST.md; pytorch#62043; export.html)."""
    check(amp, LIMITS[name], name)


@pytest.mark.parametrize("name", list(LIMITS))
@scenario(types=("cpu",), values=True, dtypes="default")
def test_found_in_captures(amp: Amp, name: str) -> None:
    """Where PyTorch gives no diagnostic, ampcheck's linter gives one (JIT-AUTOCAST.md, Diagnostics)."""
    check_found(amp, LIMITS[name], name)


@scenario(types=("cpu", "cuda"), values=True)
def test_tracing_in_a_region(amp: Amp) -> None:
    """Tracing where casts of weights are kept is refused, and with cache_enabled=False it works (pytorch#50231)."""
    module = amp.module(lambda: torch.nn.Linear(2, 2)).requires_grad_(True)
    x = amp.rand(2, 2)

    def trace(cache_enabled: bool) -> object:
        with amp.region(cache_enabled=cache_enabled):
            return torch.jit.trace(module, (x,))

    with warnings.catch_warnings():  # TorchScript is deprecated as a whole, and a cache is no constant
        warnings.simplefilter("ignore")
        amp.raises("tracing with the cache", RuntimeError, "requires grad as a constant", lambda: trace(True))
        traced = trace(False)
        with amp.region():
            amp.expect("dtype in a region", traced(x).dtype, module(x).dtype)  # type: ignore[operator]


def in_plain_torch(body: object, amp: Amp, name: str = "", **others: object) -> str:
    """A limit in plain torch, for `ampcheck.reproduce`; "" for other scenarios."""
    return of_limit(LIMITS[name], amp) if body is test_captured else ""
