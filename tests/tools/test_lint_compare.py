"""`check_scripted` reports what compiling changes, with the line, and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ampcheck
from ampcheck.errors import UsageError
from ampcheck.tools.lint.compare import Differs

X = torch.tensor([[0.1, 0.7], [0.3, 1.3]])

# TorchScript warns of itself.
pytestmark = pytest.mark.filterwarnings(r"ignore:(?s).*torch\.jit\.:DeprecationWarning")


def plain(a):  # type: ignore[no-untyped-def]
    return torch.mm(a, a)


def disabled(a):  # type: ignore[no-untyped-def]
    with torch.autocast("cpu", enabled=False):
        return torch.mm(a, a)


def asks(a):  # type: ignore[no-untyped-def]
    return torch.mm(a, a), torch.is_autocast_cpu_enabled()


LINE = disabled.__code__.co_firstlineno + 1


@pytest.mark.parametrize(("program", "compilers"), [(plain, ("fx", "export")), (disabled, ("export",))])
def test_what_agrees_is_not_reported(program: Callable[..., object], compilers: tuple[str, ...]) -> None:
    assert ampcheck.check_scripted(program, X, compilers=compilers, raise_on_difference=True) == []


def test_values_that_were_rounded_twice_are_found() -> None:
    """TorchScript keeps the dtype of the region it was first called in (docs/findings, script-keeps-first-dtype)."""
    found = ampcheck.check_scripted(plain, X, compilers=("script", "traced"))
    assert {(one.compiler, one.rule, one.what) for one in found} == {
        (compiler, "result", "in a region of fp16") for compiler in ("script", "traced")
    }


class Net(torch.nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return disabled(a)


def traced() -> torch.jit.ScriptFunction:
    return torch.jit.trace(disabled, (X,), check_trace=False)


def calling(program: Callable[..., object]) -> Callable[..., object]:
    def caller(a):  # type: ignore[no-untyped-def]
        return program(a)

    return caller


def from_a_file(folder: Path) -> object:
    traced().save(str(folder / "traced.pt"))
    return torch.jit.load(str(folder / "traced.pt"))


@pytest.mark.parametrize(
    ("program", "options", "rule"),
    [
        (lambda _: disabled, {"compilers": ("script",)}, "disabled-in-script"),
        (lambda _: disabled, {"compilers": ("traced",)}, "lost-in-trace"),
        (lambda _: disabled, {"compilers": ("fx",)}, "lost-in-fx"),
        (lambda _: torch.jit.script(disabled), {}, "disabled-in-script"),
        (lambda _: Net(), {"compilers": ("traced",)}, "lost-in-trace"),
        (lambda _: calling(traced()), {"compilers": ("script",)}, "lost-in-trace"),
        (from_a_file, None, "lost-in-trace"),
    ],
)
def test_a_dropped_region_is_placed(program: Any, options: dict[str, Any] | None, rule: str, tmp_path: Path) -> None:
    made = program(tmp_path)
    eager, options = (made, options) if options is not None else (disabled, {"compiled": made})
    found = ampcheck.check_scripted(eager, X, **options)
    assert {(Path(one.file).name, one.line) for one in found} == {(Path(__file__).name, LINE)}
    rules = {one.rule for one in found}
    assert rule in rules
    assert rules == {rule} or program is from_a_file  # which has no source, so that its questions are told, too
    assert any("in a region of bf16" in one.what for one in found)
    assert any("gives mm fp32, fp32" in one.eager and "bf16, bf16" in one.compiled for one in found)


def test_an_exported_module_agrees() -> None:
    assert ampcheck.check_scripted(Net(), X, compiled=torch.export.export(Net(), (X,))) == []


def test_a_question_that_ends_the_process_is_not_asked() -> None:
    (found,) = ampcheck.check_scripted(asks, X, compilers=("script",))
    assert (found.rule, found.line) == ("query-in-script", asks.__code__.co_firstlineno + 1)


def test_the_state_is_left_alone() -> None:
    def switches(a):  # type: ignore[no-untyped-def]
        torch.set_autocast_enabled("cpu", True)
        return torch.mm(a, a)

    with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        found = ampcheck.check_scripted(switches, X, compilers=("export",))
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.float16
        assert not torch.is_autocast_cache_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert {one.rule for one in found} <= {"state-change", "kernel-dtype"}


def test_it_may_raise() -> None:
    with pytest.raises(Differs, match="lost-in-fx") as caught:
        ampcheck.check_scripted(disabled, X, compilers=("fx",), raise_on_difference=True)
    assert caught.value.diagnostics


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ampcheck.check_scripted(plain, X, compilers=("dynamo",)), "there is no compiler 'dynamo'"),
        (lambda: ampcheck.check_scripted(plain), "no device"),
        (lambda: ampcheck.check_scripted(torch.jit.script(torch.nn.Linear(2, 2)), X), "give the eager one"),
        (lambda: ampcheck.check_scripted(3, X), "a int is not a program"),  # type: ignore[arg-type]
        (lambda: ampcheck.check_scripted(plain, X.to("meta")), "no autocast on 'meta'"),
        (lambda: ampcheck.check_scripted(plain, X, compiled=plain), "is not a program that was scripted"),
    ],
)
def test_what_cannot_be_compared_is_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call()
