"""Rule limits: a scripted or traced program does in and around regions what it does eagerly, or is refused clearly.

TorchScript does not support everything that torch.autocast does. PyTorch documents the limitations in
torch/csrc/jit/JIT-AUTOCAST.md; others follow from torch/csrc/jit/passes/autocast.cpp. The programs are data: text with
the device and the dtypes left open, and what `ampcheck lint` finds in them.
"""

import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.tools.lint.cases import PROGRAMS, Limit, check, check_found, of_limit

pytestmark = pytest.mark.rule("limits")

_ON, _MM, _POLICIES = "torch.autocast({device})", "torch.mm(a, b)", ("policies-in-script",)
_BODIES: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "enabled_at_run_time": (
        "torch.autocast({device}, enabled=bool(a.size(0) > 1))",
        _MM,
        ("enabled-not-constant",),
        "Autocast _enabled argument must be a constant",
    ),
    "dtype_at_run_time": ("torch.autocast({device}, dtype=low)", _MM, ("dtype-not-constant",), ""),
    "bound_only": ("torch.autocast({device}) as unused", _MM, (), ""),
    "constant_region": (_ON, _MM, (), ""),
    "added_products": (_ON, "torch.add(torch.mm(a, b), torch.mm(b, a))", _POLICIES, ""),
    "exponential": (_ON, "torch.exp(torch.mm(a, b))", _POLICIES, ""),
    "summed": (_ON, "torch.sum(torch.mm(a, b))", _POLICIES, ""),
    "layer_normed": (_ON, "F.layer_norm(torch.mm(a, b), [2])", _POLICIES, ""),
    "attention": (_ON, "F.scaled_dot_product_attention(a[None], b[None], b[None])", _POLICIES, ""),
    "inverted": (_ON, "torch.linalg.inv(torch.mm(a, b))", _POLICIES, ""),
    "entropy": (_ON, "F.binary_cross_entropy(torch.sigmoid(torch.mm(a, b)), b)", _POLICIES, ""),
    "concatenated": (_ON, "torch.cat([torch.mm(a, b), a])", (), ""),
    "disabled": ("torch.autocast({device}, enabled=False)", _MM, ("disabled-in-script",), ""),
    "wide_dtype": ("torch.autocast({device}, dtype=torch.float64)", _MM, ("unsupported-dtype",), ""),
    "foreign_device": (
        'torch.autocast("xpu")',
        "torch.relu(a)",
        ("device-in-script",),
        "unrecognized device for autocast pass: xpu",
    ),
    "asked_by_type": (
        _ON,
        "(torch.mm(a, b), torch.is_autocast_enabled({device}))",
        ("query-in-script",),
        "is_autocast_enabled",
    ),
    "dtype_asked": (
        "torch.autocast({device}, dtype={other})",
        "a.to(torch.get_autocast_dtype({device}))",
        ("query-in-script", "dtype-in-script"),
        "",
    ),
    "dtype_in_a_region": ("torch.autocast({device}, dtype={other})", _MM, ("dtype-in-script",), ""),
    "two_at_once": ("torch.no_grad(), torch.autocast({device})", _MM, (), ""),
}
"""A region and what is computed in it, by name; what the linter must find; what a refusal must say."""


_limit = partial(Limit, "script")


def _of_body(region: str, result: str, finds: tuple[str, ...], says: str) -> Limit:
    first = "    low = {other} if a.size(0) > 1 else {dtype}\n" if "low" in region else ""
    text = f"def program(a, b):\n{first}    with {region}:\n        return {result}\n"
    if "autocast({device})" in region or 'autocast("xpu")' in region or "enabled=bool" in region:
        finds = (*finds, "default-dtype")
    return _limit(text, finds, says)


SCRIPTED = {
    **{name: _of_body(*row) for name, row in _BODIES.items()},
    "no_region": _limit("def program(a, b):\n    return torch.mm(a, b)\n", dynamic=True),
    "annotated_function": _limit(
        """
        @torch.autocast({device})
        def program(a, b):
            return torch.mm(a, b)
        """,
        ("decorator",),
        "@autocast() decorator is not supported in script mode",
    ),
    "annotated_helper": _limit(
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
    "bound_and_entered": _limit(
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
    "object_chosen": _limit(
        """
        def program(a, b):
            on, off = torch.autocast({device}), torch.autocast({device}, enabled=False)
            with on if a.size(0) > 1 else off:
                return torch.mm(a, b)
        """,
        ("object-elsewhere",),
        "Unsupported autocast syntax",
    ),
    "object_of_the_file": _limit(
        """
        region = torch.autocast({device})

        def program(a, b):
            with region:
                return torch.mm(a, b)
        """,
        ("object-elsewhere",),
        "python value of type 'autocast' cannot be used as a value",
    ),
    "object_in_turn": _limit(
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
    "traced_callee": _limit(
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
    "default_inside": _limit(
        """
        def program(a, b):
            with torch.autocast({device}, dtype={other}):
                with torch.autocast({device}):
                    return torch.mm(a, b)
        """,
        ("default-dtype", "dtype-in-script"),
    ),
    "low_into_another": _limit(
        """
        def program(a, b):
            with torch.autocast({device}, dtype={other}):
                a = torch.mm(a, b)
            with torch.autocast({device}, dtype={dtype}):
                return torch.mm(a, b)
        """,
        ("dtype-in-script",),
    ),
    "left_to_python": _limit(
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
    "forked": _limit(
        """
        def helper(a, b):
            return torch.mm(a, b)

        def program(a, b):
            with torch.autocast({device}):
                return torch.jit.wait(torch.jit.fork(helper, a, b))
        """,
        ("default-dtype", "left-to-python"),
    ),
    "maybe_a_tensor": _limit(
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
    "set_by_call": _limit(
        """
        def program(a, b):
            torch.set_autocast_enabled({device}, True)
            return torch.mm(a, b)
        """,
        ("state-change",),
        "aten::set_autocast_enabled",
    ),
    "helper_with_a_region": _limit(
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


@scenario(
    name=SCRIPTED,
    types=("cpu", "cuda"),
    values=True,
    dtypes="default",
    program=lambda amp, name: of_limit(SCRIPTED[name], amp),
)
def test_jit(amp: Amp, name: str) -> None:
    """A scripted region acts as in eager mode, or is refused by an error that names it (JIT-AUTOCAST.md)."""
    check(amp, SCRIPTED[name], name)


@scenario(name=SCRIPTED, types=("cpu",), values=True, dtypes="default")
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


# ---- traced
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
_TRACED = {
    "region": ("default-dtype",),
    "disabled": ("lost-in-trace",),
    "own_dtype": ("lost-in-trace",),
    "annotated": ("lost-in-trace",),
    "nested": ("lost-in-trace",),
    "asking": ("query-frozen",),
    "setting": ("query-frozen", "state-change"),
    "custom": (),
    "parts": ("default-dtype",),
}

TRACED = {
    **{f"traced_{name}": Limit("traced", PROGRAMS[name], finds) for name, finds in _TRACED.items()},
    "scripted_callee": Limit("traced", _SCRIPTED_CALLEE, ("default-dtype", "scripted-callee")),
    "traced_callee": Limit("traced", _TRACED_CALLEE, ("default-dtype", "lost-in-trace", "traced-callee")),
}
"""Programs that are traced, by name."""


@scenario(name=TRACED, values=True, dtypes="default", program=lambda amp, name: of_limit(TRACED[name], amp))
def test_captured(amp: Amp, name: str) -> None:
    """A traced region acts as in eager mode (JIT-AUTOCAST.md; pytorch#62043)."""
    check(amp, TRACED[name], name)


@scenario(name=TRACED, types=("cpu",), values=True, dtypes="default")
def test_found_in_captures(amp: Amp, name: str) -> None:
    """ampcheck's linter reports the limitations that PyTorch gives no diagnostic for (JIT-AUTOCAST.md, Diagnostics)."""
    check_found(amp, TRACED[name], name)


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
            amp.assert_equal("dtype in a region", traced(x).dtype, module(x).dtype)
