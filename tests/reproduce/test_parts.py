"""What reproductions are made of: values, the lines for a device, the pytest line."""

import shlex
import sys
from typing import Any

import pytest
import torch

from ampcheck import samples
from ampcheck.checks.program import expression, preamble, pytest_line, written
from ampcheck.devices.base import Device
from ampcheck.devices.registry import known
from ampcheck.devices.virtual import Virtual
from ampcheck.samples.describe import TensorArg, leaves
from ampcheck.samples.tensors import FILLS, host_tensor
from tests.cli_support import ROOT, pytest_here


@pytest.mark.parametrize("fill", [*FILLS, "integers", "arange", "pivots", "complex"])
def test_values_are_those_of_the_case(fill: str) -> None:
    own = {"integers": "int64", "arange": "int64", "pivots": "int32", "complex": "complex64"}.get(fill)
    for dtype in (own,) if own else ("fp32", "bf16", "fp64", "int64", "bool"):
        for place, shape in enumerate(((3, 3), (2, 4, 4))):
            arg = TensorArg(shape, own, "normal" if fill == "complex" else fill, high=5, seed=3)
            space: dict[str, Any] = {"torch": torch}
            text, needed = expression(arg, dtype, place, known()["cpu"])
            exec(written(known()["cpu"], (), needed, [f"made = {text}"]), space)
            wanted = host_tensor(arg, dtype, place)
            assert space["made"].dtype == wanted.dtype
            assert torch.equal(space["made"], wanted), f"{fill} as {dtype}"


def test_every_fill_of_the_catalogue_has_an_expression() -> None:
    every = (leaf for op in samples.catalogue().values() for sample in op.samples for leaf in leaves(sample))
    for leaf in {(leaf.fill, leaf.dtype, len(leaf.shape)): leaf for leaf in every}.values():
        compile(expression(leaf, leaf.dtype or "fp32", 0, known()["cpu"])[0], leaf.fill, "eval")


def test_a_third_party_is_imported() -> None:
    class Theirs(Device):
        name = token = type = "theirs"
        key = "AutocastPrivateUse1"

        def unavailable(self) -> str | None:
            return None

        def tensor(self, arg: TensorArg, dtype: str, position: int) -> torch.Tensor:
            raise NotImplementedError

    device = Theirs()
    lines = preamble(device)
    assert lines[:2] == ["import torch", f"import {__name__}"]
    assert "x.to('theirs') must work" in lines[2]
    module = type(sys)("their_backend")
    module.DEVICES = (device,)  # type: ignore[attr-defined]  # a module takes any attribute
    sys.modules["their_backend"] = module
    try:
        assert preamble(device, ("json", "their_backend"))[1] == "import their_backend"
        module.DEVICES = (Virtual("theirs", "vth", "AutocastPrivateUse1"),)  # type: ignore[attr-defined]
        lines = preamble(module.DEVICES[0], ("their_backend",))
        assert lines.index("import their_backend") < lines.index("fake.__enter__()")  # none starts on fake tensors
    finally:
        del sys.modules["their_backend"]


def test_the_pytest_line_is_quoted_and_runs() -> None:
    node = "suites/eager/test_errors.py::test_refused[unknown-bf16-cpu]"
    line = pytest_line(node, known()["cpu"], ("a b",), further=["--nightly"])
    assert "'suites/eager/test_errors.py::test_refused[unknown-bf16-cpu]'" in line
    assert shlex.split(line) == ["pytest", node, "--device=cpu", "--device-module=a b", "--nightly"]
    code, said = pytest_here(ROOT, *shlex.split(pytest_line(node, known()["cpu"]))[1:], "--no-run-file")
    assert code == 0
    assert "1 passed" in said
