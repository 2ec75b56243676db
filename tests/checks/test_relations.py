"""Relations of a program: each way to run it is seen to be noticed where it goes wrong."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.checks import relations
from ampcheck.checks.relations import Form, assert_program, assert_relations, forms
from ampcheck.checks.scenario import DeviceAmp
from ampcheck.devices.registry import known

Patch = Callable[[pytest.MonkeyPatch], None]


def _off_where(wrong: Callable[[torch.autocast], bool]) -> Patch:
    """Return a patch by which the regions of which `wrong` is true as they are entered are off."""
    enter: Callable[[torch.autocast], Any] = torch.autocast.__enter__

    def entered(region: torch.autocast) -> Any:
        region._enabled &= not wrong(region)
        return enter(region)

    return lambda patch: patch.setattr(torch.autocast, "__enter__", entered)


class Widened(TorchDispatchMode):
    """Gives results of kernels in float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})).float()


WRONG: dict[str, Patch] = {
    "decorator": lambda patch: patch.setattr(torch.autocast, "__call__", lambda self, function: function),
    "region entered again": _off_where(lambda _: torch.is_autocast_enabled("cpu")),
    "region without a cache": _off_where(lambda region: not region._cache_enabled),
    "thread": _off_where(lambda _: threading.current_thread() is not threading.main_thread()),
    "checkpoint": lambda patch: patch.setattr(relations, "checkpoint", lambda call, *_, **__: call(nullcontext)),
    "dispatch mode": lambda patch: patch.setattr(relations, "FlopCounterMode", lambda **_: Widened()),
}


@pytest.mark.parametrize("way", WRONG)
def test_a_way_that_differs_is_named(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    amp = DeviceAmp(known()["cpu"], "bf16")
    assert_program(amp, "a @ b")
    assert amp.differences == []
    WRONG[way](monkeypatch)
    assert_program(amp, "a @ b")
    said = f"{way} of sample 0: gave torch.float32[4, 4]; the other way gave torch.bfloat16[4, 4]"
    assert said in amp.differences


OFF = torch.autocast("cpu", enabled=False)


def _doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *rest: function(x, *rest).mul_(2 if torch.is_autocast_enabled("cpu") else 1)


@pytest.mark.parametrize(
    ("op", "given", "form", "wrong", "said"),
    [
        ("matmul", "wide", "operator", OFF, "operator of sample 0: gave torch.float32"),
        ("matmul", "low", "operator", OFF, "operator of sample 0: raised RuntimeError"),
        ("linalg.det", "wide", "det", _doubled, "det of sample 0: is off by 1"),
        ("mul", "wide", "Tensor.mul_", _doubled, "in_place Tensor.mul_ of sample 0: is off by 1"),
    ],
)
def test_a_form_that_differs_is_named(
    op: str, given: str, form: str, wrong: Callable[..., Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form is a sibling of the op itself: an alias, an operator, a call in place."""

    def planted(info: Any) -> list[Form]:
        return [one._replace(function=wrong(one.function)) if one.name == form else one for one in forms(info)]

    amp = DeviceAmp(known()["cpu"], "bf16")
    assert_relations(amp, op, given)
    assert amp.differences == []
    monkeypatch.setattr(relations, "forms", planted)
    assert_relations(amp, op, given)
    assert [text for text in amp.differences if text.startswith(said)]


def test_what_overflows_is_named_but_where_large_terms_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    amp = DeviceAmp(known()["cpu"], "fp16")
    assert_relations(amp, "nn.functional.conv_transpose2d", "large")
    assert amp.differences == []
    relu = amp.op_info("nn.functional.relu")
    right = relu.op
    monkeypatch.setattr(relu, "op", lambda *x: right(*x) * (torch.inf if torch.is_autocast_enabled("cpu") else 1))
    assert_relations(amp, "nn.functional.relu", "large")
    assert [text for text in amp.differences if text.startswith("accuracy of output 0 of sample 3: gave inf")]
