"""The replay of autocast, what is left out of a compilation, and whose a frame is, who is to blame and what is kept."""

import functools
import linecache
import os
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._dynamo import guards
from torch._export import utils
from torch.export import decomp_utils, exported_program
from torch.library import Library

from ampcheck.checks.scenario import Amp
from ampcheck.compilers import source
from ampcheck.compilers.kinds import quiet
from ampcheck.devices.registry import known
from ampcheck.observe import blame
from ampcheck.observe import recorder as observe
from ampcheck.observe.isolation import in_thread, reset
from ampcheck.observe.overhead import without_overhead
from ampcheck.observe.recorder import by_policies, replay
from ampcheck.runner.judge import status_of
from ampcheck.spec.case import assign
from tests.cli_support import ROOT

DEVICES = known()


def test_replay_casts_by_the_specification() -> None:
    device = DEVICES["virtual:cuda"]
    with device.activate():
        x = torch.empty(3, 3, device="cuda", dtype=torch.float16)
        single = torch.empty(3, 3, device="cuda")

        def call() -> list[torch.Tensor]:
            return [torch.mm(single, x), torch.exp(x), torch.sum(x), torch.atan2(x, single), torch.relu(x)]

        seen, kernels = replay(call, "cuda", device.policies(), by_policies(device.policies(), torch.bfloat16))
    assert [t.dtype for t in seen.outputs] == [torch.bfloat16, *[torch.float32] * 3, torch.float16]
    assert kernels == [("mm", ("bf16",) * 2), ("exp", ("fp32",)), ("sum", ("fp16",)), ("atan2", ("fp32",) * 2)]


def test_replay_of_the_other_overload_and_of_a_refusal() -> None:
    device = DEVICES["virtual:cuda"]
    with device.activate():
        x = torch.empty(3, 3, device="cuda", dtype=torch.float16)
        promised = device.policies(), by_policies(device.policies(), torch.float16)
        norm, _ = replay(lambda: torch.ops.aten.norm.ScalarOpt_dim(x, 2, [1]), "cuda", *promised)
        loss = torch.nn.functional.binary_cross_entropy
        refused, _ = replay(lambda: loss(x, x), "cuda", *promised)
    assert [t.dtype for t in norm.outputs] == [torch.float32]
    assert "binary_cross_entropy_with_logits" in str(refused.error)


def test_composite_ops_are_listed_as_before_and_those_made_meanwhile_too() -> None:
    before = decomp_utils._collect_all_valid_cia_ops()
    with torch.library._scoped_library("ampcheck_overhead", "DEF") as library, without_overhead():
        assert exported_program._collect_all_valid_cia_ops() == decomp_utils._collect_all_valid_cia_ops() == before
        library.define("half(Tensor x) -> Tensor", tags=())
        library.impl("half", lambda x: x / 2, "CompositeImplicitAutograd")
        made = exported_program._collect_all_valid_cia_ops()
        assert made - before == {torch.ops.ampcheck_overhead.half.default}


def test_a_program_decomposes_as_before() -> None:
    def decomposed() -> str:
        with quiet():
            program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
            return str(program.run_decompositions().graph)

    before = decomposed()
    with without_overhead():
        assert decomposed() == before


def test_what_is_left_out_is_put_back() -> None:
    measured, looked_up = guards.profile_guard_manager, utils._materialize_cpp_cia_ops
    with without_overhead():
        assert guards.profile_guard_manager is not measured
        assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)) == 2
        decomp_utils._collect_all_valid_cia_ops()
        assert utils._materialize_cpp_cia_ops is looked_up
    assert guards.profile_guard_manager is measured


def test_cases_compile_the_same_code_as_often_as_there_are_cases() -> None:
    """Dynamo compiles a function eight times, and refuses the ninth."""

    def made(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        return torch.compile(lambda x: x + len(name), backend="eager", fullgraph=True)

    names = ["a" * length for length in range(12)]
    for name in names:
        reset({})
        assert made(name)(torch.ones(1)) == 1 + len(name)
    with pytest.raises(Exception, match="Hard failure due to fullgraph"):
        _ = [made(name)(torch.ones(1)) for name in names]
    reset({})


def raised_from(call: Callable[[], object], drop: int = 2) -> BaseException:
    """What a call raises, without the frames of this function and of the call: as if ampcheck had called it."""
    with pytest.raises(Exception) as raised:  # of any kind
        call()
    error = raised.value
    for _ in range(drop):
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    return error


def kernel(what: str) -> None:
    """A backend's kernel with several faults."""
    if what == "callback":
        observe.overload_name(None)  # type: ignore[arg-type]  # ampcheck's, which asks it for its name
    if what == "value":
        raise ValueError(f"{what} 12 is wrong")
    if what == "chained":
        try:
            kernel("value")
        except ValueError as error:
            raise RuntimeError("it did not work") from error
    raise RuntimeError(f"{what} 7 is wrong")


# ---- whose a frame is


def test_each_file_has_its_owner() -> None:
    stdlib, torch_file = sysconfig.get_paths()["stdlib"], torch.__file__
    for file, want in {
        str(ROOT / "ampcheck" / "checks" / "forward.py"): "ampcheck",
        str(ROOT / "ampcheck" / "jax_device" / "dispatch" / "call.py"): "backend",
        str(ROOT / "ampcheck" / "register" / "kernels.py"): "backend",
        str(ROOT / "ampcheck" / "suites" / "eager" / "test_cache.py"): "case",
        str(ROOT / "suites" / "eager" / "test_cache.py"): "case",
        str(ROOT / "suites_of_mine" / "x.py"): "backend",
        torch_file: "torch",
        os.path.join(os.path.dirname(os.path.dirname(torch_file)), "torch_mine", "ops.py"): "backend",
        pytest.__file__: "runner",
        os.path.join(stdlib, "contextlib.py"): "library",
        os.path.join(stdlib, "site-packages", "mine", "ops.py"): "backend",
        "<frozen importlib._bootstrap>": "library",
        "<program>": "case",
        "/opt/mine/ops.py": "backend",
    }.items():
        assert blame.owner(file) == want, file


def blamed(call: Callable[[], object]) -> str:
    """Whom ampcheck blames for what a call raises that ampcheck made."""
    return blame.raised_by(raised_from(call))


def test_a_backend_is_to_blame_even_where_ampchecks_recorder_raised_for_it() -> None:
    library = Library("planted_causes", "DEF")
    library.define("op(Tensor x) -> Tensor")
    library.impl("op", lambda x: kernel("callback"), "CPU")
    error = raised_from(lambda: observe.map_tensors(torch.ones(2), torch.ops.planted_causes.op))
    assert isinstance(error, AttributeError)
    assert blame.owner(traceback.extract_tb(error.__traceback__)[-1].filename) == "ampcheck"
    assert (blame.frame(error), status_of(error, "call")[0]) == ("test_recorder.py in kernel", "fail")
    alone = raised_from(lambda: observe.overload_name(None))  # type: ignore[arg-type]  # the same without a backend
    assert status_of(alone, "call")[0] == "error"


@pytest.mark.parametrize(
    "change",
    [torch.linalg.inv, functools.partial(torch.select, dim=5, index=0), functools.partial(torch.mm, mat2="no tensor")],
    ids=["RuntimeError", "IndexError", "TypeError"],
)
def test_pytorchs_cpp_is_to_blame_for_a_call_that_ampcheck_made(change: Any) -> None:
    assert blamed(lambda: observe.map_tensors(torch.ones(2, 3), change)) == "torch"


@pytest.mark.parametrize(
    ("code", "whose"),
    [
        ("x[5]", "torch"),
        ("x.select(7, 0)", "torch"),
        ("x + 'text'", "torch"),
        ("torch.mm(\n    x, 'text')", "torch"),
        ("(lambda *given: torch.select(*given, 5, 0))(x)", "torch"),
        ("[1][3]", "ampcheck"),
        ("x.no_such_name", "ampcheck"),
        ("int('text')", "ampcheck"),
        ("torch.nn.functional.relu(1, 2, 3, 4)", "ampcheck"),  # Python's own, of a function that Python has the code of
    ],
)
def test_what_pytorch_evaluates_is_its_own(code: str, whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file, text = str(ROOT / "ampcheck" / "checks" / "made.py"), f"def run(x):\n    return ({code})\n"
    monkeypatch.setitem(linecache.cache, file, (len(text), None, text.splitlines(keepends=True), file))
    names: dict[str, Any] = {"torch": torch}
    exec(compile(text, file, "exec"), names)
    assert blamed(lambda: names["run"](torch.ones(2, 3))) == whose


@pytest.mark.parametrize(
    "call",
    [
        lambda: assign("fp32_bf16at9", 2),
        lambda: observe.overload_name(None),  # type: ignore[arg-type]
        lambda: assign(None, 2),  # type: ignore[arg-type]
        lambda: Amp(known()["cpu"], "bf16").finish(),
        lambda: source.written(_circle(), iter(())),
    ],
    ids=["its own raise", "an attribute that is not there", "a call of Python's own", "misuse", "a recursion"],
)
def test_ampcheck_is_to_blame_for_what_it_raised_by_itself(call: Callable[[], object]) -> None:
    assert blamed(call) == "ampcheck"


def _circle() -> list[Any]:
    """A list that is in itself."""
    found: list[Any] = []
    found.append(found)
    return found


def test_the_frame_is_that_of_a_cause_where_the_last_exception_has_none() -> None:
    inner = raised_from(lambda: kernel("value"), 1)
    outer = RuntimeError("wrapped")
    outer.__cause__ = inner
    assert (blame.frame(outer), blame.frame(RuntimeError("nobody's"))) == ("test_recorder.py in kernel", "")


# ---- tracebacks


def test_without_a_backends_frame_the_harness_shows_its_own() -> None:
    text = blame.trimmed(raised_from(lambda: assign("fp32_bf16at9", 2)))
    assert 'case.py", line' in text
    assert "in assign" in text


def test_the_line_of_a_scenario_that_made_the_call_is_kept() -> None:
    code = "def test_x():\n    in_thread(lambda: kernel('mm'), nullcontext)\n"
    names: dict[str, Any] = {"in_thread": in_thread, "kernel": kernel, "nullcontext": nullcontext}
    exec(compile(code, str(ROOT / "suites" / "eager" / "test_x.py"), "exec"), names)
    lines = blame.trimmed(raised_from(names["test_x"], 1)).splitlines()
    frames = [line.partition(" in ")[2] for line in lines if line.startswith("  File")]
    assert frames == ["<lambda>", "kernel"]


def test_a_traceback_is_bounded() -> None:
    def even(left: int) -> None:  # two functions, for Python shows one that calls itself as repeated
        odd(left - 1)

    def odd(left: int) -> None:
        if left <= 0:
            raise RuntimeError("x" * 20_000 * (left < 0) + "bottom")
        even(left)

    text = blame.trimmed(raised_from(lambda: odd(100), 0))
    assert 30 < text.count('", line ') <= 40
    assert text.endswith("RuntimeError: bottom")
    text = blame.trimmed(raised_from(lambda: odd(-1), 0))
    assert len(text) < 8100
    assert "[…]" in text
