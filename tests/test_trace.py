"""`ampcheck.tracing` against independent truth: the profiler's event tree, and sums done by hand."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from ampcheck.devices.virtual import DEVICES
from ampcheck.errors import UsageError
from ampcheck.tracing import Trace, trace
from ampcheck.tracing.report import size

Program = Callable[[], Any]


def casts(t: Trace, *origins: str) -> list[Any]:
    return [cast for op in t.ops for cast in op.casts if cast.origin in origins]


def region(**options: Any) -> torch.autocast:
    return torch.autocast("cpu", **options)


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.fc2 = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.norm(self.fc1(x))))


def _mlp() -> Program:
    model, x = Mlp(), torch.randn(2, 8)
    return lambda: model(x)


def _conv() -> Program:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding="same"), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    x = torch.randn(2, 3, 6, 6)
    return lambda: model(x)


def _recurrent(kind: type[torch.nn.Module]) -> Program:
    model, x = kind(4, 4, num_layers=2), torch.randn(3, 2, 4)
    return lambda: model(x)[0]


def _attention() -> Program:
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(2, 3, 8)
    return lambda: model(x)


def _losses() -> Program:
    weight = torch.nn.Parameter(torch.randn(4, 4))
    x = torch.randn(4, 4)

    def run() -> torch.Tensor:
        y = torch.einsum("ij,jk->ik", x, weight)
        y = torch.cat([y, x.double().float()], 1)
        return F.cosine_similarity(y, x.repeat(1, 2)).sum() + F.mse_loss(y, y.detach() * 2) + y.softmax(-1).norm()

    return run


PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp": _mlp,
    "conv_bn": _conv,
    "lstm": lambda: _recurrent(torch.nn.LSTM),
    "gru": lambda: _recurrent(torch.nn.GRU),
    "transformer": _attention,
    "losses": _losses,
}
GRAD: dict[str, Callable[[], Any]] = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def profiled(run: Program) -> tuple[int, int, int]:
    """All casts, those autocast makes and those of gradients that a program makes, from the profiler.

    A kernel of autocast casts and then calls its own op again, so such a cast's parent holds an op of its own name.
    """
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        run()
    found = [event for event in prof.events() if event.name == "aten::_to_copy"]
    autocast = gradient = 0
    for event in found:
        conversion = event.cpu_parent
        caller = conversion.cpu_parent if conversion is not None else None
        if caller is None:
            continue
        if any(child.name == caller.name for child in caller.cpu_children):
            autocast += 1
        elif "ToCopyBackward" in caller.name:
            gradient += 1
    return len(found), autocast, gradient


@pytest.mark.parametrize("mode", GRAD)
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_casts_are_those_the_profiler_sees(program: str, mode: str) -> None:
    run = PROGRAMS[program]()

    def inside() -> None:
        with region(), GRAD[mode]():
            run()
            run()

    total, autocast, _ = profiled(inside)
    with trace() as t:
        inside()
    assert len(casts(t, "autocast")) == autocast > 0
    _compare_totals(program, t, total)


def _compare_totals(program: str, t: Trace, total: int) -> None:
    seen = sum(len(op.casts) for op in t.ops)
    # The profiler also sees what a single kernel casts inside of itself, as the recurrent one does.
    assert seen == total if program in ("mlp", "conv_bn") else seen <= total


@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_casts_of_a_backward_are_those_the_profiler_sees(program: str, where: str) -> None:
    run = PROGRAMS[program]()

    def step() -> None:
        with region():
            loss = run().float().sum()
            if where == "inside":
                loss.backward()
        if where == "outside":
            loss.backward()

    total, autocast, gradient = profiled(step)
    with trace() as t:
        step()
    _compare_totals(program, t, total)
    assert len(casts(t, "autocast")) == autocast > 0
    of_the_program = sum(op.phase == "backward" for op in t.ops for cast in op.casts if cast.origin == "user")
    if program in ("mlp", "conv_bn"):
        assert len(casts(t, "gradient")) + of_the_program == gradient
    assert 0 < len(casts(t, "gradient")) <= gradient
    backward = [cast for op in t.ops if op.phase == "backward" for cast in op.casts if cast.origin == "autocast"]
    assert where == "inside" or not backward


@pytest.mark.parametrize("mode", GRAD)
@pytest.mark.parametrize("program", PROGRAMS)
def test_results_are_what_they_are_without_a_trace(program: str, mode: str) -> None:
    run = PROGRAMS[program]()
    with region(), GRAD[mode]():
        expected = run()
    with trace(), region(), GRAD[mode]():
        got = run()
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)


def _trained(traced: bool, where: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Mlp(), torch.nn.Dropout(0.5), torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    out = []
    with trace() if traced else contextlib.nullcontext():
        for _ in range(3):
            with region():
                hidden = checkpoint(model, torch.randn(2, 8), use_reentrant=False)
                loss = hidden.square().mean()
                if where == "inside":
                    scaler.scale(loss).backward()
            if where == "outside":
                scaler.scale(loss).backward()
            out += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return [*out, *model.state_dict().values()]


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_training_is_what_it_is_without_a_trace(where: str) -> None:
    plain, traced = _trained(False, where), _trained(True, where)
    assert len(plain) == len(traced)
    assert all(torch.equal(a, b) for a, b in zip(plain, traced, strict=True))


def test_the_fast_path_of_a_transformer_is_taken_as_without_a_trace() -> None:
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad(), trace() as t:
        model(x)
    assert [op.name for op in t.ops] == ["_transformer_encoder_layer_fwd"]


def test_bytes_and_dtypes_of_one_linear() -> None:
    layer, x = torch.nn.Linear(8, 16), torch.randn(2, 8)
    with trace() as t, region():
        layer(x)
    (op,) = t.ops
    assert (op.name, op.policy, op.dtype, op.out, op.ran_in) == ("linear", "downcast", "bf16", "bf16", "low")
    assert {cast.source: cast.bytes for cast in op.casts} == {"fp32[2, 8]": 16 * 6, "weight": 128 * 6, "bias": 16 * 6}
    assert {cast.kind for cast in op.casts} == {"input", "weight"}
    assert op.module == "Linear"
    assert op.location.startswith("tests/test_trace.py:") or "test_trace.py:" in op.location
    assert str(op.region) == "cpu bf16"
    totals = json.loads(t.to_json())["totals"]
    assert (totals["ops"], totals["low"], totals["casts"], totals["bytes"]) == (1, 1, 3, 960)


@pytest.mark.parametrize(
    ("options", "frozen", "mode", "casts_made", "hits"),
    [
        ({}, False, "grad", 1, 2),
        ({"cache_enabled": False}, False, "grad", 3, 0),
        ({}, True, "grad", 3, 0),
        ({}, False, "no_grad", 1, 2),
        ({}, False, "inference", 3, 0),
    ],
)
def test_three_uses_of_a_weight(options: dict[str, Any], frozen: bool, mode: str, casts_made: int, hits: int) -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4), requires_grad=not frozen)
    x = torch.randn(2, 4).bfloat16()
    with trace() as t, region(**options), GRAD[mode]():
        for _ in range(3):
            F.linear(x, weight)
    assert [op.name for op in t.ops] == ["linear"] * 3
    assert len(casts(t, "autocast")) == casts_made
    assert sum(op.cache_hits for op in t.ops) == hits


def test_a_region_entered_per_call_is_named_as_the_cause() -> None:
    model = Mlp()
    x = torch.randn(2, 8).bfloat16()
    with trace() as t:
        for _ in range(5):
            with region():
                model.fc1(x)
    with trace() as off, region(cache_enabled=False):
        model.fc1(x), model.fc1(x)
    with trace() as fine, region():
        model(x), model(x)
    assert any(
        hint.startswith("5 casts of weight weight (3.8 kB): the region that its copy was cached for had ended")
        for hint in t.hints()
    )
    assert any(hint.startswith("2 casts of weight weight (1.5 kB): the weight cache is off") for hint in off.hints())
    assert not any("casts of weight" in hint for hint in fine.hints())


def test_weights_that_training_changed_are_cast_again_without_a_hint() -> None:
    model, x = Mlp(), torch.randn(2, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trace() as t:
        for _ in range(3):
            with region():
                loss = model(x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not any("casts of weight" in hint for hint in t.hints())
    assert any("is cast fp32→bf16 3 times" in hint and hint.endswith("give it as bf16") for hint in t.hints())


def test_a_frozen_weight_and_a_view_say_why_they_are_cast_again() -> None:
    layer = torch.nn.Linear(4, 4, bias=False).requires_grad_(False)
    weight = torch.nn.Parameter(torch.randn(4, 4))
    x = torch.randn(2, 4).bfloat16()
    with trace() as t, region():
        layer(x), layer(x)
        torch.mm(x, weight.t()), torch.mm(x, weight.t())
    found = "\n".join(t.hints())
    assert "2 casts of parameter weight (192 B): only tensors that require grad are cached" in found
    assert "2 casts of views of weight fp32[4, 4] (192 B): a view is not cached" in found


def test_a_stale_copy_of_a_weight_is_reported() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    x = torch.ones(1, 4).bfloat16()
    with trace() as t, region():
        before = torch.mm(x, weight)
        with torch.no_grad():
            weight.mul_(2)
        after = torch.mm(x, weight)
    assert any("was changed in place inside the region" in hint for hint in t.hints()) == torch.equal(before, after)
    with trace() as fresh, region():
        torch.mm(x, weight), torch.mm(x, weight)
    assert not any(op.stale for op in fresh.ops)


def test_conversions_of_the_program_are_not_autocasts() -> None:
    x = torch.randn(3, 3, requires_grad=True)
    with trace() as t, region():
        y = x.half().to(torch.bfloat16)
        (y.float() * 2).sum().backward()
    assert not casts(t, "autocast", "gradient")
    assert [cast.got for cast in casts(t, "user")] == ["fp16", "bf16", "fp32", "bf16", "fp16", "fp32"]
    assert "6 further casts by the program or by ops themselves" in t.summary()


def test_a_cast_that_an_op_makes_by_itself_is_the_ops() -> None:
    x = torch.randn(3, 3).bfloat16()
    with trace() as t, region():
        x.softmax(-1, dtype=torch.float64)
        x.log_softmax(-1, dtype=torch.float32)
    assert not casts(t, "autocast")
    assert [cast.got for cast in casts(t, "op")] == ["fp64", "fp32"]


def test_nested_and_disabled_regions() -> None:
    a = torch.randn(3, 3)
    with trace() as t:
        torch.mm(a, a)
        with region(dtype=torch.float16):
            torch.mm(a, a)
            with region(dtype=torch.bfloat16):
                torch.mm(a, a)
            with region(enabled=False):
                torch.mm(a, a)
    assert [(str(op.region), op.dtype, len(op.casts)) for op in t.ops] == [
        ("off", "fp32", 0),
        ("cpu fp16", "fp16", 2),
        ("cpu bf16", "bf16", 2),
        ("off", "fp32", 0),
    ]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.type)
def test_policies_are_those_of_the_device_type(device: Any) -> None:
    with device.running():
        a, b = torch.empty(4, 4, device=device.type), torch.empty(4, 4, device=device.type).half()
        with trace() as t, device.autocast("fp16"):
            torch.mm(a, a)
            F.layer_norm(b, (4,))
            torch.atan2(a, b)
            b.sum()
            torch.stack([a, b])
    policies = device.policies()
    assert [op.policy for op in t.ops] == [
        policies.get(name, "fallthrough") for name in ("mm", "layer_norm", "atan2", "sum", "stack")
    ]
    assert [op.region.device for op in t.ops] == [device.type] * 5
    assert t.ops[0].dtype == "fp16"
    assert [cast.got for cast in t.ops[2].casts] == ["fp32"]
    if policies["sum"] == "optdtype":
        assert (t.ops[3].dtype, t.ops[3].out, t.ops[3].ran_in, t.ops[3].casts) == ("fp16", "fp32", "float32", [])


def test_a_banned_op_is_recorded_with_its_error() -> None:
    device = DEVICES[0]
    with device.running():
        p = torch.empty(4, device=device.type)
        with trace() as t, device.autocast("fp16"), pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(p, p)
    assert [(op.name, op.policy) for op in t.ops] == [("binary_cross_entropy", "banned")]
    assert t.ops[0].error.startswith("RuntimeError: ")
    assert any(hint.startswith("binary_cross_entropy at ") for hint in t.hints())


def test_places_and_modules() -> None:
    model = torch.nn.Sequential(Mlp(), torch.nn.Linear(4, 2))
    with trace() as t:
        with region():
            loss = model(torch.randn(2, 8)).sum()
        loss.backward()
    modules = {op.name: op.module for op in t.ops if op.phase == "forward"}
    assert [op.module for op in t.ops if op.name == "linear"] == [
        "Sequential.0.fc1",
        "Sequential.0.fc2",
        "Sequential.1",
    ]
    assert modules["gelu"] == "Sequential.0"
    assert modules["sum"] == ""
    backward = [(op.name, op.module) for op in t.ops if op.name == "AddmmBackward0"]
    assert [module for _, module in backward] == ["Sequential.1", "Sequential.0.fc2", "Sequential.0.fc1"]
    assert all("test_trace.py:" in op.location for op in t.ops)
    lines = {op.location for op in t.ops if op.name == "gelu"}
    assert len(lines) == 1


def test_nested_traces_are_refused_and_the_outer_one_goes_on() -> None:
    with trace() as t:
        with pytest.raises(UsageError, match="one trace cannot hold another"), trace():
            pass
        torch.ones(2) + 1
    assert [op.name for op in t.ops] == ["ones", "add"]
    with pytest.raises(UsageError, match="used already"), t:
        pass


def test_an_exception_leaves_no_mode_behind_and_the_record_readable() -> None:
    original = torch.overrides.has_torch_function
    with pytest.raises(RuntimeError, match="cannot be multiplied"), trace() as t, region():
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.overrides.has_torch_function is original
    assert torch._C._is_multithreading_enabled()
    assert t.ops[-1].name == "mm"
    assert t.ops[-1].error.startswith("RuntimeError: mat1 and mat2")
    assert "mm" in t.table()
    with trace() as again:
        torch.ones(2)
    assert len(again.ops) == 1


def test_other_modes_and_subclasses_behave_as_without_a_trace() -> None:
    class Named(torch.Tensor):
        pass

    seen: list[str] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    def run() -> torch.Tensor:
        x = torch.ones(3, 3).as_subclass(Named)
        return (
            F.multi_head_attention_forward(
                *(torch.ones(2, 1, 4) for _ in range(3)),
                4,
                2,
                torch.ones(12, 4),
                None,
                None,
                None,
                False,
                0.0,
                torch.ones(4, 4),
                None,
            )[0].sum()
            + F.dropout(x, 0.0).sum()
        )

    with Watch():
        expected = run()
    plain, seen = seen, []
    with Watch(), trace() as t:
        got = run()
    assert type(got) is type(expected) is Named
    assert seen == plain
    assert t.ops


def test_table_sorts_limits_and_refuses() -> None:
    a = torch.randn(4, 4)
    with trace() as t, region():
        a + 1
        torch.mm(a, a)
        torch.mm(torch.ones(32, 32), torch.ones(32, 32, dtype=torch.bfloat16))
    first = [line.split()[0] for line in t.table().splitlines()[2:]]
    assert first == ["add", "mm", "ones", "ones", "mm"]
    by_bytes = t.table("bytes", limit=1).splitlines()
    assert "6.1 kB" in by_bytes[2]
    assert by_bytes[3] == "1 of 5 rows"
    assert t.table("casts").splitlines()[2].split()[:7] == ["mm", "downcast", "cpu", "bf16", "bf16", "1", "2"]
    with pytest.raises(UsageError, match="cannot be sorted by 'size'; it can by order, bytes, casts"):
        t.table("size")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="1 or more rows, not 0"):
        t.table(limit=0)


def test_an_empty_trace() -> None:
    with trace() as t:
        pass
    assert t.summary() == "no op ran on a tensor"
    assert json.loads(t.to_json())["totals"]["ops"] == 0


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (999_960, "1.0 MB"), (3 * 10**12, "3000.0 GB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@torch.library.custom_op("ampcheck_trace::product", mutates_args=())
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b)


torch.library.register_autocast("ampcheck_trace::product", "cpu", torch.bfloat16)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return torch.mm(a, b)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        return torch.mm(grad.float(), b.t()), torch.mm(a.t(), grad.float())


def _transforms(kind: str) -> Program:
    x, weight = torch.randn(3, 3), torch.nn.Parameter(torch.randn(3, 3))
    if kind == "vmap":
        return lambda: torch.vmap(lambda row: F.linear(row, weight))(x)
    if kind == "grad":
        return lambda: torch.func.grad(lambda p: torch.mm(x, p).sum())(weight.detach())
    if kind == "compile":
        return torch.compile(lambda: torch.mm(x, weight).relu(), backend="eager")
    if kind == "custom_op":
        return lambda: product(x, weight)
    if kind == "operators":
        return lambda: (x @ weight).__rmatmul__(weight)
    return lambda: torch.ops.aten.mm(x, weight)


@pytest.mark.parametrize(
    ("kind", "name", "policy", "count"),
    [
        ("vmap", "linear", "downcast", 2),
        ("grad", "mm", "downcast", 2),
        ("compile", "mm", "downcast", 2),
        ("custom_op", "ampcheck_trace::product", "unknown", 2),
        ("operators", "matmul", "downcast", 2),
        ("packet", "mm", "downcast", 2),
    ],
)
def test_ways_to_call_an_op(kind: str, name: str, policy: str, count: int) -> None:
    run = _transforms(kind)
    with region():
        expected = run()
    with trace() as t, region():
        got = run()
    assert torch.equal(got, expected)
    assert (t.ops[0].name, t.ops[0].policy) == (name, policy)
    assert [cast.origin for cast in t.ops[0].casts] == ["autocast"] * count


def test_the_backward_of_a_custom_function_is_traced_by_its_own_lines() -> None:
    a, b = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    with trace() as t:
        with region():
            y = _Product.apply(a, b)
        y.backward(torch.ones(3, 3, dtype=torch.bfloat16))
    rows = [op for op in t.ops if op.name == "mm"]
    assert [op.phase for op in rows] == ["forward", "backward", "backward"]
    assert len({op.location for op in rows}) == 2


def test_the_recomputation_of_a_checkpoint_is_traced() -> None:
    model, x = Mlp(), torch.randn(2, 8)
    with trace() as t:
        with region():
            loss = checkpoint(model, x, use_reentrant=False).sum()
        loss.backward()
    linear = [op for op in t.ops if op.name == "linear"]
    assert [op.phase for op in linear] == ["forward", "forward", "backward", "backward"]
    assert all(str(op.region) == "cpu bf16" and op.autocasts for op in linear)
    # The recomputation stops before the last kernel, which nothing needs again.
    assert [op.dtype for op in linear] == ["bf16", "bf16", "bf16", ""]
    assert not any(op.error for op in t.ops)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_ops_of_torchscript_are_rows_of_their_own() -> None:
    scripted = torch.jit.script(_scripted)
    x = torch.randn(3, 3)
    for _ in range(3):
        scripted(x)
    with trace() as t, region():
        scripted(x)
    row = next(op for op in t.ops if op.name == "mm")
    assert (row.policy, row.dtype, [cast.origin for cast in row.casts]) == ("downcast", "bf16", ["autocast"])


def _scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, x).relu()


def test_the_cost_of_a_trace_is_bounded() -> None:
    """No absolute time: a traced run may take many times as long as an untraced one of tiny ops, but not thousands."""
    import time

    run = _mlp()

    def timed() -> float:
        start = time.perf_counter()
        for _ in range(10):
            with region():
                run()
        return time.perf_counter() - start

    timed()
    plain = min(timed() for _ in range(3))
    with trace():
        traced = min(timed() for _ in range(3))
    assert 1 < traced / plain < 200
