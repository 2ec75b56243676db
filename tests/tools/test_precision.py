"""`ampcheck precision` finds the op that loses accuracy, and the code it writes keeps the loss within the tolerance."""

import json
import tomllib
from pathlib import Path

import pytest
import torch

from ampcheck.errors import UsageError
from ampcheck.observe.closeness import relative_error
from ampcheck.tools.precision import report, runs, shadow
from ampcheck.tools.precision.runs import Program

LOSSY = tomllib.loads(Path(__file__).with_name("lossy.toml").read_text(encoding="utf-8"))
STEPS = 4


def quiet(line: str) -> None:
    """Say nothing."""


def losses(path: Path, keep: tuple[str, ...] | None = ()) -> runs.Figures:
    """Return what a program gives, or in float32 if nothing is named to be kept."""
    return Program(str(path), [], STEPS, quiet).run("", keep)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in ("gpt", "vision"))) for name in LOSSY]
)
def test_the_op_that_loses_is_found_and_the_code_to_paste_mends_it(name: str, here: Path) -> None:
    path = here / f"{name}.py"
    source = LOSSY[name]["program"].splitlines()
    path.write_text("\n".join(source), encoding="utf-8")
    marked = next(number for number, line in enumerate(source, 1) if "# loses" in line)
    tolerance = LOSSY[name]["tolerance"]

    answer = report.find(Program(path.name, [], STEPS, quiet), tolerance, path.name)

    assert answer.ops[0].unit == f"{path.name}:{marked}"
    assert answer.distance > tolerance
    assert answer.least
    assert answer.reached <= tolerance
    wide = losses(path, None)
    assert losses(path).distance(wide) > tolerance
    for change in sorted(answer.changes, key=lambda one: -one.first):
        first = change.first or 1 + next(n for n, line in enumerate(source, 1) if line.strip().startswith("model = "))
        source[first - 1 : change.last or first - 1] = change.text.splitlines()
    path.write_text("\n".join(source), encoding="utf-8")
    assert losses(path).distance(wide) <= tolerance

    screen = report.text(answer).splitlines()
    assert sum(1 + max(len(line) - 1, 0) // 100 for line in screen) <= 23
    assert f"{path.name}:{marked}" in "\n".join(screen)
    drawn = report.picture(answer)
    assert all(f">{'↩ ' if one.backward else ''}{one.module}<" in drawn for one in answer.modules)
    assert json.dumps(report.data(answer), allow_nan=False)


@pytest.mark.parametrize(
    ("needed", "tries"), [("", 2), ("a", 8), ("h", 8), ("ch", 12), ("abcdefgh", 60)], ids=lambda x: str(x)
)
def test_the_least_set_is_found_by_bisection(needed: str, tries: int) -> None:
    tried = []

    def enough(some: list[str]) -> bool:
        tried.append(some)
        return set(needed) <= set(some)

    assert sorted(runs.least("abcdefgh", enough) or ()) == sorted(needed)
    assert len(tried) <= tries
    assert runs.least("abcdefgh", lambda some: False) is None


def test_shadows_are_float64_through_views_writes_and_gradients() -> None:
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)

    def compute(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[2:4].mul_(3)
        y.t()[0] = 1
        z = torch.nn.functional.layer_norm(y @ w, (8,)).softmax(-1)
        z.log().square().mean().backward()
        return z

    shadows = shadow.Shadows()
    with shadows:
        z = compute(x, w)
    x64, w64 = x.double(), w.detach().double().requires_grad_()
    want = compute(x64, w64)
    for ours, exact in ((z, want.detach()), (w.grad, w64.grad)):
        assert relative_error(shadows.exact(ours), exact) < 1e-12
        assert 1e-9 < relative_error(ours.detach(), shadows.exact(ours)) < 1e-5


def test_a_program_without_loss_or_module_is_refused(tmp_path: Path) -> None:
    for text, message in (
        ("x = 1", "ran no backward pass and called no module"),
        ("raise OSError('no data')", "failed as it is: see above"),
    ):
        path = tmp_path / "train.py"
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            report.find(Program(str(path), [], 2, quiet), 0.01, "train.py")


def test_a_program_that_loses_nothing_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\nmodel = torch.nn.Linear(4, 4)\nmodel(torch.ones(2, 4)).square().mean().backward()\n")
    assert report.command(["--steps", "1", str(path)]) == 0
    assert "nothing has to be in float32" in " ".join(capsys.readouterr().out.split())
