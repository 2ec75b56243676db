"""Scripted code under our pass agrees with eager autocast for every overload with a policy, and the command says so."""

import pytest

from ampcheck import torchscript
from ampcheck.cli.main import main
from ampcheck.devices.registry import select
from ampcheck.observe.dispatcher import live_registrations
from ampcheck.torchscript.agreement import OURS, PYTORCH, WAYS, measure


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["cpu", "virtual:cuda"])
def test_every_overload_agrees(name: str) -> None:
    """Every dtype assignment of every overload, in each of the device's lower precisions."""
    device = select([name], [])[0]
    found = list(measure(device, {OURS: torchscript.autocast}))
    assert {one.overload: one.differences for one in found if not one.agrees(OURS)} == {}
    assert {one.overload for one in found} == live_registrations()[device.key]
    assert sum(one.cases for one in found) > 1500


A_FEW = ("linear", "conv2d", "mkldnn_rnn_layer", "avg_pool3d", "linalg_svd", "nll_loss", "cat", "stack", "index_copy")
"""Overloads of the CPU, of each policy: with lists, optional arguments, several outputs, one number for a list."""


@pytest.mark.parametrize("op", A_FEW)
def test_an_overload_agrees(op: str) -> None:
    (one,) = measure(select(["cpu"], [])[0], {OURS: torchscript.autocast}, op)
    assert one.differences == {}
    assert one.cases > 5


@pytest.mark.parametrize("op", ["mm", "conv_transpose2d.input", "cat"])
def test_what_pytorch_does_is_seen(op: str) -> None:
    """PyTorch's pass casts float32 alone, knows some ops only, and widens what it does not know."""
    (one,) = measure(select(["cpu"], [])[0], WAYS, op)
    assert one.agrees(OURS)
    assert not one.agrees(PYTORCH)
    assert one.agrees(PYTORCH, "fp32") == (op != "conv_transpose2d.input")


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("mm", ("downcast", "PyTorch, mm, inputs fp16, region of bf16: argument 0 of aten::mm")),
        ("relu", ("cpu: relu has no policy",)),
    ],
)
def test_the_command(op: str, said: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["torchscript", "--op", op, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert [words for words in (torchscript.OPERATORS, *said) if words not in out] == []
