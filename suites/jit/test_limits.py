"""Rule limits: a compiled program does in and around regions what it does eagerly, or is refused in clear words.

TorchScript, tracing, torch.fx and torch.export do not support everything that torch.autocast does. PyTorch documents
the limitations of TorchScript in torch/csrc/jit/JIT-AUTOCAST.md; others follow from torch/csrc/jit/passes/autocast.cpp.
Parts: scripted programs; captured ones, which are traced, traced symbolically or exported. The programs are data: text
with the device and the dtypes left open, and what `ampcheck lint` finds in them.
"""

import subprocess
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.tools.lint.cases import Limit, check, check_found
from ampcheck.tools.lint.reproduce import of_limit

pytestmark = pytest.mark.rule("limits")

_BODY = {
    "enabled_at_run_time": ("torch.autocast({device}, enabled=bool(a.size(0) > 1))", "torch.mm(a, b)"),
    "dtype_at_run_time": ("torch.autocast({device}, dtype=low)", "torch.mm(a, b)"),
    "bound_only": ("torch.autocast({device}) as unused", "torch.mm(a, b)"),
    "constant_region": ("torch.autocast({device})", "torch.mm(a, b)"),
    "added_products": ("torch.autocast({device})", "torch.add(torch.mm(a, b), torch.mm(b, a))"),
    "exponential": ("torch.autocast({device})", "torch.exp(torch.mm(a, b))"),
    "summed": ("torch.autocast({device})", "torch.sum(torch.mm(a, b))"),
    "layer_normed": ("torch.autocast({device})", "F.layer_norm(torch.mm(a, b), [2])"),
    "attention": ("torch.autocast({device})", "F.scaled_dot_product_attention(a[None], b[None], b[None])"),
    "inverted": ("torch.autocast({device})", "torch.linalg.inv(torch.mm(a, b))"),
    "entropy": ("torch.autocast({device})", "F.binary_cross_entropy(torch.sigmoid(torch.mm(a, b)), b)"),
    "concatenated": ("torch.autocast({device})", "torch.cat([torch.mm(a, b), a])"),
    "disabled": ("torch.autocast({device}, enabled=False)", "torch.mm(a, b)"),
    "wide_dtype": ("torch.autocast({device}, dtype=torch.float64)", "torch.mm(a, b)"),
    "foreign_device": ('torch.autocast("xpu")', "torch.relu(a)"),
    "asked_by_type": ("torch.autocast({device})", "(torch.mm(a, b), torch.is_autocast_enabled({device}))"),
    "dtype_asked": ("torch.autocast({device}, dtype={other})", "a.to(torch.get_autocast_dtype({device}))"),
    "two_at_once": ("torch.no_grad(), torch.autocast({device})", "torch.mm(a, b)"),
}
_FINDS = {
    "enabled_at_run_time": ("enabled-not-constant",),
    "dtype_at_run_time": ("dtype-not-constant",),
    "added_products": ("policies-in-script",),
    "exponential": ("policies-in-script",),
    "summed": ("policies-in-script",),
    "layer_normed": ("policies-in-script",),
    "attention": ("policies-in-script",),
    "inverted": ("policies-in-script",),
    "entropy": ("policies-in-script",),
    "disabled": ("disabled-in-script",),
    "wide_dtype": ("unsupported-dtype",),
    "foreign_device": ("device-in-script",),
    "asked_by_type": ("query-in-script",),
    "dtype_asked": ("query-in-script", "dtype-in-script"),
}
_SAYS = {
    "enabled_at_run_time": "Autocast _enabled argument must be a constant",
    "foreign_device": "unrecognized device for autocast pass: xpu",
    "asked_by_type": "is_autocast_enabled",
}


def _scripted_limit(name: str) -> Limit:
    region, result = _BODY[name]
    first = "    low = {other} if a.size(0) > 1 else {dtype}\n" if "low" in region else ""
    text = f"def program(a, b):\n{first}    with {region}:\n        return {result}\n"
    finds = _FINDS.get(name, ())
    if "autocast({device})" in region or 'autocast("xpu")' in region or "enabled=bool" in region:
        finds = (*finds, "default-dtype")
    return Limit("script", text, finds, _SAYS.get(name, ""))


SCRIPTED = {
    **{name: _scripted_limit(name) for name in _BODY},
    "no_region": Limit("script", "def program(a, b):\n    return torch.mm(a, b)\n", dynamic=True),
    "annotated_function": Limit(
        "script",
        """
        @torch.autocast({device})
        def program(a, b):
            return torch.mm(a, b)
        """,
        ("decorator",),
        "@autocast() decorator is not supported in script mode",
    ),
    "annotated_helper": Limit(
        "script",
        """
        @torch.autocast({device})
        def helper(a, b):
            return torch.mm(a, b)

        def program(a, b):
            return helper(a, b)
        """,
        ("decorator",),
        "@autocast() decorator is not supported in script mode",
    ),
    "bound_and_entered": Limit(
        "script",
        """
        def program(a, b):
            with torch.autocast({device}) as region:
                a = torch.mm(a, b)
            with region:
                return torch.mm(a, b)
        """,
        ("bound", "default-dtype"),
        "`with autocast() as ...` is not supported",
    ),
    "object_chosen": Limit(
        "script",
        """
        def program(a, b):
            on, off = torch.autocast({device}), torch.autocast({device}, enabled=False)
            with on if a.size(0) > 1 else off:
                return torch.mm(a, b)
        """,
        ("object-elsewhere",),
        "Unsupported autocast syntax",
    ),
    "object_of_the_file": Limit(
        "script",
        """
        region = torch.autocast({device})

        def program(a, b):
            with region:
                return torch.mm(a, b)
        """,
        ("object-elsewhere",),
        "python value of type 'autocast' cannot be used as a value",
    ),
    "object_in_turn": Limit(
        "script",
        """
        def program(a, b):
            region = torch.autocast({device})
            with region:
                a = torch.mm(a, b)
            with region:
                return torch.mm(a, b)
        """,
        dynamic=True,
    ),
    "traced_callee": Limit(
        "script",
        """
        def helper(a, b):
            with torch.autocast({device}, enabled=False):
                return torch.mm(a, b)

        traced = torch.jit.trace(helper, (a, b))

        def program(a, b):
            with torch.autocast({device}):
                return traced(a, b)
        """,
        ("default-dtype", "lost-in-trace", "traced-callee"),
    ),
    "dtype_in_a_region": Limit(
        "script",
        """
        def program(a, b):
            with torch.autocast({device}, dtype={other}):
                return torch.mm(a, b)
        """,
        ("dtype-in-script",),
    ),
    "default_inside": Limit(
        "script",
        """
        def program(a, b):
            with torch.autocast({device}, dtype={other}):
                with torch.autocast({device}):
                    return torch.mm(a, b)
        """,
        ("default-dtype", "dtype-in-script"),
    ),
    "low_into_another": Limit(
        "script",
        """
        def program(a, b):
            with torch.autocast({device}, dtype={other}):
                a = torch.mm(a, b)
            with torch.autocast({device}, dtype={dtype}):
                return torch.mm(a, b)
        """,
        ("dtype-in-script",),
    ),
    "left_to_python": Limit(
        "script",
        """
        @torch.jit.ignore
        def helper(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.mm(a, b)

        def program(a, b):
            with torch.autocast({device}):
                return helper(a, b)
        """,
        ("default-dtype", "left-to-python"),
    ),
    "forked": Limit(
        "script",
        """
        def helper(a, b):
            return torch.mm(a, b)

        def program(a, b):
            with torch.autocast({device}):
                return torch.jit.wait(torch.jit.fork(helper, a, b))
        """,
        ("default-dtype", "left-to-python"),
    ),
    "maybe_a_tensor": Limit(
        "script",
        """
        def program(a, b):
            bias: Optional[torch.Tensor] = None
            if a.size(0) > 1:
                bias = b[0]
            with torch.autocast({device}):
                return F.linear(a, b, bias)
        """,
        ("default-dtype",),
    ),
    "set_by_call": Limit(
        "script",
        """
        def program(a, b):
            torch.set_autocast_enabled({device}, True)
            return torch.mm(a, b)
        """,
        ("state-change",),
        "aten::set_autocast_enabled",
    ),
    "helper_with_a_region": Limit(
        "script",
        """
        def helper(a, b):
            with torch.autocast({device}):
                return torch.mm(a, b)

        def program(a, b):
            for _ in range(2):
                a = helper(a, b).float()
            return a, torch.mm(a, b)
        """,
        ("default-dtype",),
    ),
}
"""Programs that are scripted, by name; eager mode says what is right."""


@pytest.mark.parametrize("name", list(SCRIPTED))
@scenario(types=("cpu", "cuda"), values=True, dtypes="default")
def test_jit(amp: Amp, name: str) -> None:
    """A scripted region acts as in eager mode, or is refused by an error that names it (JIT-AUTOCAST.md)."""
    check(amp, SCRIPTED[name], name)


@pytest.mark.parametrize("name", list(SCRIPTED))
@scenario(types=("cpu",), values=True, dtypes="default")
def test_jit_found(amp: Amp, name: str) -> None:
    """ampcheck's linter reports the limitations that PyTorch gives no diagnostic for (JIT-AUTOCAST.md, Diagnostics)."""
    check_found(amp, SCRIPTED[name], name)


_ASKING = """
import torch

def program(a):
    with torch.autocast({device!r}):
        return torch.mm(a, a).dtype, torch.{asked}()

compiled = torch.jit.script(program)
for _ in range(3):
    print(compiled(torch.rand(2, 2, device={device!r}))[1])
"""


@scenario(types=("cpu", "cuda"), values=True, dtypes="default")
def test_asked_in_a_region(amp: Amp) -> None:
    """A scripted function may ask whether it is in a region, its own ones included (pytorch#82394).

    In another process, which the question may end.
    """
    asked = "is_autocast_cpu_enabled" if amp.type == "cpu" else "is_autocast_enabled"
    with TemporaryDirectory() as folder:
        file = Path(folder, "program.py")
        file.write_text(_ASKING.format(device=amp.type, asked=asked), encoding="utf-8")
        command = [sys.executable, "-W", "ignore", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    amp.assert_equal("exit code of the process", done.returncode, 0)
    amp.assert_equal("the answers", done.stdout.split(), ["True"] * 3)


# ---- traced, traced symbolically and exported

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


CAPTURED = {
    "traced_region": Limit("traced", _REGION, ("default-dtype",)),
    "traced_disabled": Limit("traced", _DISABLED, ("lost-in-trace",)),
    "traced_own_dtype": Limit("traced", _OTHER, ("lost-in-trace",)),
    "traced_annotated": Limit("traced", _ANNOTATED, ("lost-in-trace",)),
    "traced_nested": Limit("traced", _NESTED, ("lost-in-trace",)),
    "traced_asking": Limit("traced", _ASKED, ("query-frozen",)),
    "traced_setting": Limit("traced", _SET, ("query-frozen", "state-change")),
    "traced_custom": Limit("traced", _CUSTOM),
    "traced_parts": Limit("traced", _PARTS, ("default-dtype",)),
    "scripted_callee": Limit("traced", _SCRIPTED_CALLEE, ("default-dtype", "scripted-callee")),
    "traced_callee": Limit("traced", _TRACED_CALLEE, ("default-dtype", "lost-in-trace", "traced-callee")),
    "fx_region": Limit("fx", _REGION, ("lost-in-fx",)),
    "fx_disabled": Limit("fx", _DISABLED, ("lost-in-fx",)),
    "fx_annotated": Limit("fx", _ANNOTATED, ("lost-in-fx",)),
    "fx_asking": Limit("fx", _ASKED, ("query-frozen",)),
    "fx_setting": Limit("fx", _SET, ("query-frozen", "state-change")),
    "fx_custom": Limit("fx", _CUSTOM, ("custom-fwd",)),
    "export_region": Limit("export", _as_module(_REGION), ("default-dtype",)),
    "export_disabled": Limit("export", _as_module(_DISABLED)),
    "export_own_dtype": Limit("export", _as_module(_OTHER)),
    "export_annotated": Limit("export", _as_module(_ANNOTATED)),
    "export_nested": Limit("export", _as_module(_NESTED)),
    "export_asking": Limit("export", _as_module(_ASKED), ("query-frozen",)),
    "export_setting": Limit("export", _as_module(_SET), ("query-frozen", "state-change")),
    "export_custom": Limit("export", _as_module(_CUSTOM), ("custom-fwd",)),
    "strict_region": Limit("strict", _as_module(_REGION), ("default-dtype",)),
    "strict_nested": Limit("strict", _as_module(_NESTED)),
    "export_cast": Limit("export", _as_module(_CAST)),
    "strict_cast": Limit("strict", _as_module(_CAST)),
    "strict_custom": Limit("strict", _as_module(_CUSTOM), ("custom-fwd",)),
}
"""Programs that are traced or exported, by name."""


@pytest.mark.parametrize("name", list(CAPTURED))
@scenario(values=True, dtypes="default")
def test_captured(amp: Amp, name: str) -> None:
    """A traced or exported region acts as in eager mode (JIT-AUTOCAST.md; pytorch#62043; export.html)."""
    check(amp, CAPTURED[name], name)


@pytest.mark.parametrize("name", list(CAPTURED))
@scenario(types=("cpu",), values=True, dtypes="default")
def test_found_in_captures(amp: Amp, name: str) -> None:
    """ampcheck's linter reports the limitations that PyTorch gives no diagnostic for (JIT-AUTOCAST.md, Diagnostics)."""
    check_found(amp, CAPTURED[name], name)


@scenario(types=("cpu", "cuda"), values=True)
def test_tracing_in_a_region(amp: Amp) -> None:
    """Tracing where casts of weights are cached is refused, and with cache_enabled=False it works (pytorch#50231)."""
    module = amp.module(lambda: torch.nn.Linear(2, 2)).requires_grad_(True)
    x = amp.rand(2, 2)

    def trace(cache_enabled: bool) -> object:
        with amp.region(cache_enabled=cache_enabled):
            return torch.jit.trace(module, (x,))

    with warnings.catch_warnings():  # TorchScript is deprecated as a whole, and a cache is not a constant
        warnings.simplefilter("ignore")
        amp.assert_raises("tracing with the cache", RuntimeError, "requires grad as a constant", lambda: trace(True))
        traced = trace(False)
        with amp.region():
            amp.assert_equal("dtype in a region", traced(x).dtype, module(x).dtype)  # type: ignore[operator]


def in_plain_torch(body: object, amp: Amp, name: str = "", **others: object) -> str:
    """A program of the tables above in plain torch, for `ampcheck.reproduce`; "" for other scenarios."""
    programs = {test_jit: SCRIPTED, test_captured: CAPTURED}.get(body)
    return of_limit(programs[name], amp) if programs else ""
