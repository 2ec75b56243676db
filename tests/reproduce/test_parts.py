"""What reproductions are made of: values, plain source, the lines for a device, the pytest line."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck import samples
from ampcheck.devices.base import Device
from ampcheck.devices.registry import known
from ampcheck.reproduce import of_scenario, preamble, pytest_line
from ampcheck.reproduce.source import Unreproducible, plain
from ampcheck.reproduce.values import EXPRESSIONS, SEEDED, expression
from ampcheck.samples.describe import TensorArg
from ampcheck.samples.tensors import FILLS, host_tensor
from tests.cli_support import LIMIT, ROOT


@pytest.mark.parametrize("fill", [*FILLS, "integers", "arange", "pivots", "complex"])
def test_values_are_those_of_the_case(fill: str) -> None:
    assert set(EXPRESSIONS) == set(FILLS)
    own = {"integers": "int64", "arange": "int64", "pivots": "int32", "complex": "complex64"}.get(fill)
    for dtype in (own,) if own else ("fp32", "bf16", "fp64", "int64", "bool"):
        for place, shape in enumerate(((3, 3), (2, 4, 4))):
            arg = TensorArg(shape, own, "normal" if fill == "complex" else fill, high=5, seed=3)
            space: dict[str, Any] = {"torch": torch}
            exec(f"{SEEDED}\nmade = {expression(arg, dtype, place, known()['cpu'])}", space)
            wanted = host_tensor(arg, dtype, place)
            assert space["made"].dtype == wanted.dtype
            assert torch.equal(space["made"], wanted), f"{fill} as {dtype}"


def test_every_fill_of_the_catalogue_has_an_expression() -> None:
    from ampcheck.samples.describe import leaves

    every = [leaf for op in samples.catalogue().values() for sample in op.samples for leaf in leaves(sample)]
    for leaf in every:
        compile(expression(leaf, leaf.dtype or "fp32", 0, known()["cpu"]), leaf.fill, "eval")


MODULE = '''
"""A suite file."""
import math
from pathlib import Path, PurePath
from ampcheck.observe.recorder import observe
from ampcheck.spec.torch_dtypes import name_of
import pytest

ONE: int = 1
CHOICE = {"a": (ONE, lambda x: math.pi), "b": (2, lambda x: Path(x))}
UNUSED = PurePath("é")


class Held:
    """Kept for its field."""

    value: "list[int]" = 3


def helper(amp: object, *rest: int, other: str = "a -> b") -> "tuple[int, ...]":
    """Dropped."""

    @wraps_nothing
    def inner(x: int) -> int:
        """Kept."""
        return x

    return inner(Held.value) + ONE  # type: ignore[no-any-return]  # dropped too


def wraps_nothing(call: object) -> object:
    return call


@pytest.mark.parametrize("kind", list(CHOICE))
def test_it(amp: object, kind: str) -> None:
    """What it does.

    More of it.
    """
    # é: a comment stays
    found, call = CHOICE[kind]
    amp.assert_equal(name_of(found), helper(amp, 1), __file__)


def test_other(amp: object) -> None:
    observe(amp, CHOICE)
'''


def _module(folder: Path) -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    path = folder / "test_given.py"
    path.write_text(MODULE.replace('@pytest.mark.parametrize("kind", list(CHOICE))\n', ""), encoding="utf-8")
    spec = spec_from_file_location("test_given", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_source_is_made_plain(tmp_path: Path) -> None:
    found = plain(_module(tmp_path).test_it, {"kind": "a"}, {"name_of"})
    assert found.comment == "What it does."
    assert found.imports == ["import math"]
    assert found.foreign == {"name_of"}
    assert found.helpers == [
        "ONE = 1",
        "CHOICE = {'a': (ONE, lambda x: math.pi)}",
        "class Held:\n    value: object = 3",
        'def helper(amp, *rest, other = "a -> b"):\n    @wraps_nothing\n    def inner(x):\n        """Kept."""\n'
        "        return x\n\n    return inner(Held.value) + ONE",
        "def wraps_nothing(call):\n    return call",
    ]
    assert found.code == (
        "def test_it(amp, kind):\n    # é: a comment stays\n    found, call = CHOICE[kind]\n"
        "    amp.assert_equal(name_of(found), helper(amp, 1), (lambda: 0).__code__.co_filename)"
    )
    assert len(plain(_module(tmp_path).test_it, {}, {"name_of"}).imports) == 2  # without a choice all of it


def test_what_plain_torch_lacks_is_said(tmp_path: Path) -> None:
    module = _module(tmp_path)
    with pytest.raises(Unreproducible, match="observe of ampcheck"):
        plain(module.test_other, {}, ())
    text = of_scenario(module.test_other, known()["cpu"], torch.bfloat16)
    assert "# This scenario needs observe of ampcheck.observe.recorder, for which plain torch has nothing" in text
    exec(text, {})
    text = of_scenario(module.test_it, known()["cpu"], torch.bfloat16, {"kind": object()})
    assert "needs the object that pytest gives it" in text


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
    finally:
        del sys.modules["their_backend"]


def test_the_pytest_line_is_quoted_and_runs() -> None:
    node = "suites/eager/test_errors.py::test_refused[unknown-bf16-cpu]"
    line = pytest_line(node, known()["cpu"], ("a b",), further=["--nightly"])
    assert "'suites/eager/test_errors.py::test_refused[unknown-bf16-cpu]'" in line
    assert shlex.split(line) == ["pytest", node, "--device=cpu", "--device-module=a b", "--nightly"]
    ran = f"{sys.executable} -m {pytest_line(node, known()['cpu'])} --no-run-file"
    done = subprocess.run(ran, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert "1 passed" in done.stdout, done.stdout[-1500:]
