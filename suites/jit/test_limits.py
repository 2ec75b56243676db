"""Rule limits, scripted: `ampcheck.spec.rules` says what it promises.

The limitations are those of torch/csrc/jit/JIT-AUTOCAST.md and what else torch/csrc/jit/passes/autocast.cpp leaves out.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

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


def _of(name: str) -> Limit:
    region, result = _BODY[name]
    first = "    low = {other} if a.size(0) > 1 else {dtype}\n" if "low" in region else ""
    text = f"def program(a, b):\n{first}    with {region}:\n        return {result}\n"
    finds = _FINDS.get(name, ())
    if "autocast({device})" in region or 'autocast("xpu")' in region or "enabled=bool" in region:
        finds = (*finds, "default-dtype")
    return Limit("script", text, finds, _SAYS.get(name, ""))


LIMITS = {
    **{name: _of(name) for name in _BODY},
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
    "tracing_callee": Limit(
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
"""Programs that are scripted, by name; the last word on each is what it does eagerly."""


@pytest.mark.parametrize("name", list(LIMITS))
@scenario(types=("cpu", "cuda"), values=True, dtypes="default")
def test_jit(amp: Amp, name: str) -> None:
    """A scripted region does what it does eagerly, or is refused in words that name it (JIT-AUTOCAST.md)."""
    check(amp, LIMITS[name], name)


@pytest.mark.parametrize("name", list(LIMITS))
@scenario(types=("cpu",), values=True, dtypes="default")
def test_jit_found(amp: Amp, name: str) -> None:
    """Where PyTorch gives no diagnostic, ampcheck's linter gives one (JIT-AUTOCAST.md, Diagnostics)."""
    check_found(amp, LIMITS[name], name)


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

    In a process of its own, which the question may end.
    """
    asked = "is_autocast_cpu_enabled" if amp.type == "cpu" else "is_autocast_enabled"
    with TemporaryDirectory() as folder:
        file = Path(folder, "program.py")
        file.write_text(_ASKING.format(device=amp.type, asked=asked), encoding="utf-8")
        command = [sys.executable, "-W", "ignore", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    amp.expect("exit code of the process", done.returncode, 0)
    amp.expect("the answers", done.stdout.split(), ["True"] * 3)


def in_plain_torch(body: object, amp: Amp, name: str = "", **others: object) -> str:
    """A limit in plain torch, for `ampcheck.reproduce`; "" for other scenarios."""
    return of_limit(LIMITS[name], amp) if body is test_jit else ""
