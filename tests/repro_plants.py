"""Wrong behaviour for `tests/test_repro.py`: code that plants it before a program runs, and what the program must say.

Each text defines `undo`.
"""

from __future__ import annotations

_EXIT = """\
import torch
before = torch.autocast.__exit__
torch.autocast.__exit__ = lambda self, *given: torch.autocast_decrement_nesting() and None
def undo():
    torch.autocast.__exit__ = before
"""
MM = """\
import torch
library = torch.library.Library("aten", "IMPL")
def kernel(a, b):
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return torch.mm(BODY)
library.impl("mm", kernel, "AutocastCPU", allow_override=True)
undo = library._destroy
"""
_QUIET = """\
import warnings
before, warnings.warn = warnings.warn, lambda *given, **more: None
def undo():
    warnings.warn = before
"""
_SET = """\
import torch
before = torch.set_autocast_enabled
torch.set_autocast_enabled = lambda *given: before(*given) if len(given) == 2 and type(given[1]) is bool else None
def undo():
    torch.set_autocast_enabled = before
"""
_SHARED = """\
import torch
before = torch.is_autocast_enabled, torch.autocast.__enter__
state = []
torch.is_autocast_enabled = lambda *given: bool(state) or before[0](*given)
def enter(self):
    state.append(1)
    return before[1](self)
torch.autocast.__enter__ = enter
def undo():
    torch.is_autocast_enabled, torch.autocast.__enter__ = before
"""
_LOSS = """\
import torch
before, enabled = torch.nn.functional.linear, torch.is_autocast_enabled
torch.nn.functional.linear = lambda *given: before(*given) * (2 if enabled("cpu") else 1)
def undo():
    torch.nn.functional.linear = before
"""
_UNSCALED = """\
import torch
before = torch.amp.GradScaler._unscale_grads_
def keep(self, optimizer, inv_scale, *given):
    return before(self, optimizer, torch.ones_like(inv_scale), *given)
torch.amp.GradScaler._unscale_grads_ = keep
def undo():
    torch.amp.GradScaler._unscale_grads_ = before
"""
_BACKWARD = """\
import torch
before = torch.amp.custom_bwd
torch.amp.custom_bwd = lambda *given, **more: lambda call: call
def undo():
    torch.amp.custom_bwd = before
"""
_COMPILED = """\
import torch
before = torch.compile
torch.compile = lambda call, **more: lambda *given: torch.utils._pytree.tree_map(lambda x: x.double(), call(*given))
def undo():
    torch.compile = before
"""
_TRACED = """\
import torch
before = torch.jit.trace
torch.jit.trace = lambda call, *given, **more: lambda *given: 2 * call(*given)
def undo():
    torch.jit.trace = before
"""
PLANTED = {
    "a region that does not restore": (
        "eager/test_context.py::test_restores_on_exit[bf16-cpu]",
        _EXIT,
        "FAIL state after the region",
    ),
    "the same on a virtual device": (
        "eager/test_context.py::test_restores_on_exit[fp16-vcu]",
        _EXIT,
        "FAIL state after the region",
    ),
    "a product that is not cast": (
        "eager/test_eligibility.py::test_requires_grad_is_no_matter[bf16-cpu]",
        MM.replace("BODY", "a, b"),
        "FAIL dtypes mm receives, requires_grad=False | got ('fp32', 'fp32') | expected ('bf16', 'bf16')",
    ),
    "a cast that is made twice": (
        "eager/test_cache.py::test_one_cast_for_many_uses[bf16-cpu]",
        MM.replace("BODY", "a.bfloat16(), b.bfloat16()"),
        "FAIL casts of a parameter used by five products | got 5 | expected 1",
    ),
    "copies": (
        "eager/test_cache.py::test_not_for_views[bf16-cpu]",
        MM.replace("BODY", "a, b"),
        "FAIL casts of a view of a leaf",
    ),
    "a warning that is not given": (
        "eager/test_errors.py::test_unsupported_dtype[single-bf16-cpu]",
        _QUIET,
        "FAIL a region of torch.float32 | warned [] | expected UserWarning In CPU autocast",
    ),
    "a wrong argument that is taken": (
        "eager/test_state.py::test_wrong_argument[set_number-bf16-cpu]",
        _SET,
        "FAIL the wrong call set_number | raised None | expected TypeError",
    ),
    "a state that threads share": (
        "eager/test_threads.py::test_starts_outside[bf16-cpu]",
        _SHARED,
        "FAIL the same, started in a region | got ((True",
    ),
    "a module whose values are wrong": (
        "eager/test_modules.py::test_layer[Linear-wide-bf16-cpu]",
        _LOSS,
        "FAIL whether outputs of Linear have the bits",
    ),
    "a module whose op is not cast": (
        "eager/test_modules.py::test_layer[Linear-low-bf16-cpu]",
        MM.replace('"mm"', '"linear"')
        .replace("a, b)", "a, b, c)")
        .replace("torch.mm(BODY)", "a.float() @ b.float().T"),
        "FAIL listed ops that ran in Linear | got",
    ),
    "gradients that are not divided": (
        "scaler/test_unscale.py::test_divides[4-bf16-cpu]",
        _UNSCALED,
        "FAIL gradient 0",
    ),
    "a backward pass that leaves the region": (
        "autograd/customfn/test_functions.py::test_region_of_forward[call-bf16-cpu]",
        _BACKWARD,
        "RuntimeError: expected m1 and m2 to have the same dtype",
    ),
    "a compiled program of another dtype": (
        "jit/test_context.py::test_body_alone[dynamo-bf16-cpu]",
        _COMPILED,
        "FAIL dtypes before, inside and behind, second call | got [torch.float64",
    ),
    "a traced program of other values": (
        "jit/test_limits.py::test_captured[tracing_custom-bf16-cpu]",
        _TRACED,
        "FAIL whether the first call in a region gives the same values | got False | expected True",
    ),
}
"""Of each: the case whose program runs, the code, and what the program must print or raise."""
