"""`ampcheck.trace`: records, advice and the command; beside the profiler's event tree and runs without a trace."""

import contextlib
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from ampcheck import trace
from ampcheck.cli import main
from ampcheck.devices.virtual import DEVICES
from ampcheck.errors import UsageError
from ampcheck.tools.trace import Trace
from tests.cli_support import printed
from tests.processor import lstm_that_runs  # noqa: F401  # a fixture

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


def _model(*layers: torch.nn.Module, given: tuple[int, ...]) -> Program:
    model, x = torch.nn.Sequential(*layers), torch.randn(given)
    first = isinstance(layers[-1], torch.nn.RNNBase)  # which gives its state, too
    return lambda: model(x)[0] if first else model(x)


def _losses() -> Program:
    weight = torch.nn.Parameter(torch.randn(4, 4))
    x = torch.randn(4, 4)

    def run() -> torch.Tensor:
        y = torch.einsum("ij,jk->ik", x, weight)
        y = torch.cat([y, x.double().float()], 1)
        return F.cosine_similarity(y, x.repeat(1, 2)).sum() + F.mse_loss(y, y.detach() * 2) + y.softmax(-1).norm()

    return run


PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp": lambda: _model(Mlp(), given=(2, 8)),
    "conv_bn": lambda: _model(nn.Conv2d(3, 4, 3, padding="same"), nn.BatchNorm2d(4), nn.ReLU(), given=(2, 3, 6, 6)),
    "lstm": lambda: _model(nn.LSTM(4, 4, num_layers=2), given=(3, 2, 4)),
    "gru": lambda: _model(nn.GRU(4, 4, num_layers=2), given=(3, 2, 4)),
    "transformer": lambda: _model(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), given=(2, 3, 8)),
    "losses": _losses,
}
GRAD: dict[str, Callable[[], Any]] = {
    "grad": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode
}  # fmt: skip


# ---- records


def test_bytes_and_dtypes_of_one_linear() -> None:
    layer, x = torch.nn.Linear(8, 16), torch.randn(2, 8)
    with trace() as t, region():
        layer(x)
    (op,) = t.ops
    assert (op.name, op.policy, op.dtype, op.out, op.ran_in) == ("linear", "downcast", "bf16", "bf16", "low")
    assert {cast.source: cast.bytes for cast in op.casts} == {"fp32[2, 8]": 16 * 6, "weight": 128 * 6, "bias": 16 * 6}
    assert ({cast.kind for cast in op.casts}, op.module) == ({"input", "weight"}, "Linear")
    assert "test_trace.py:" in op.location
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
    assert ([op.name for op in t.ops], len(casts(t, "autocast"))) == (["linear"] * 3, casts_made)
    assert sum(op.cache_hits for op in t.ops) == hits


def test_casts_of_the_program_and_of_ops_are_not_autocasts() -> None:
    x = torch.randn(3, 3, requires_grad=True)
    with trace() as t, region():
        y = x.half().to(torch.bfloat16)
        (y.float() * 2).sum().backward()
    assert not casts(t, "autocast", "gradient")
    assert [cast.got for cast in casts(t, "user")] == ["fp16", "bf16", "fp32", "bf16", "fp16", "fp32"]
    low = torch.randn(3, 3).bfloat16()
    with trace() as t, region():
        low.softmax(-1, dtype=torch.float64)
        low.log_softmax(-1, dtype=torch.float32)
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
    off = ("off", "fp32", 0)
    seen = [(str(op.region), op.dtype, len(op.casts)) for op in t.ops]
    assert seen == [off, ("cpu fp16", "fp16", 2), ("cpu bf16", "bf16", 2), off]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.type)
def test_policies_are_those_of_the_device_type(device: Any) -> None:
    with device.activate():
        a, b = torch.empty(4, 4, device=device.type), torch.empty(4, 4, device=device.type).half()
        with trace() as t, device.autocast("fp16"):
            torch.mm(a, a)
            F.layer_norm(b, (4,))
            torch.atan2(a, b)
            b.sum()
            torch.stack([a, b])
    policies = device.policies()
    names = ("mm", "layer_norm", "atan2", "sum", "stack")
    assert [op.policy for op in t.ops] == [policies.get(name, "fallthrough") for name in names]
    assert ({op.region.device for op in t.ops}, t.ops[0].dtype) == ({device.type}, "fp16")
    assert [cast.got for cast in t.ops[2].casts] == ["fp32"]
    if policies["sum"] == "optdtype":
        assert (t.ops[3].dtype, t.ops[3].out, t.ops[3].ran_in, t.ops[3].casts) == ("fp16", "fp32", "float32", [])


def test_places_and_modules() -> None:
    model = torch.nn.Sequential(Mlp(), torch.nn.Linear(4, 2))
    with trace() as t:
        with region():
            loss = model(torch.randn(2, 8)).sum()
        loss.backward()
    modules = {op.name: op.module for op in t.ops if op.phase == "forward"}
    linear = ["Sequential.0.fc1", "Sequential.0.fc2", "Sequential.1"]
    assert [op.module for op in t.ops if op.name == "linear"] == linear
    assert (modules["gelu"], modules["sum"]) == ("Sequential.0", "")
    assert [op.module for op in t.ops if op.name == "AddmmBackward0"] == linear[::-1]
    assert {op.location.rpartition(":")[0].rpartition("/")[2] for op in t.ops} == {"test_trace.py"}


# ---- ways to call an op


@torch.library.custom_op("ampcheck_trace::product", mutates_args=())
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b)


torch.library.register_autocast("ampcheck_trace::product", "cpu", torch.bfloat16)

X, WEIGHT = torch.randn(3, 3), torch.nn.Parameter(torch.randn(3, 3))
WAYS: dict[str, tuple[str, Program]] = {
    "vmap": ("linear", lambda: torch.vmap(lambda row: F.linear(row, WEIGHT))(X)),
    "grad": ("mm", lambda: torch.func.grad(lambda p: torch.mm(X, p).sum())(WEIGHT.detach())),
    "compile": ("mm", torch.compile(lambda: torch.mm(X, WEIGHT).relu(), backend="eager")),
    "custom op": ("ampcheck_trace::product", lambda: product(X, WEIGHT)),
    "operators": ("matmul", lambda: (X @ WEIGHT).__rmatmul__(WEIGHT)),
    "packet": ("mm", lambda: torch.ops.aten.mm(X, WEIGHT)),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_call_an_op(way: str) -> None:
    name, run = WAYS[way]
    with region():
        expected = run()
    with trace() as t, region():
        got = run()
    assert torch.equal(got, expected)
    assert (t.ops[0].name, t.ops[0].policy) == (name, "unknown" if way == "custom op" else "downcast")
    assert [cast.origin for cast in t.ops[0].casts] == ["autocast"] * 2


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return torch.mm(a, b)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        return torch.mm(grad.float(), b.t()), torch.mm(a.t(), grad.float())


def test_the_backward_of_a_custom_function_is_traced_by_its_own_lines() -> None:
    a, b = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    with trace() as t:
        with region():
            y = Product.apply(a, b)
        y.backward(torch.ones(3, 3, dtype=torch.bfloat16))
    rows = [op for op in t.ops if op.name == "mm"]
    assert ([op.phase for op in rows], len({op.location for op in rows})) == (["forward", "backward", "backward"], 2)


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


def mm_relu(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, x).relu()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_ops_of_torchscript_are_rows_of_their_own() -> None:
    scripted = torch.jit.script(mm_relu)
    for _ in range(3):
        scripted(X)
    with trace() as t, region():
        scripted(X)
    row = next(op for op in t.ops if op.name == "mm")
    assert (row.policy, row.dtype, [cast.origin for cast in row.casts]) == ("downcast", "bf16", ["autocast"])


# ---- hints and tables


def hinted(t: Any, *words: str) -> bool:
    """Whether a hint has all the words."""
    return any(all(word in hint for word in words) for hint in t.hints())


def test_a_weight_that_is_cast_again_says_why() -> None:
    model, frozen = Mlp(), torch.nn.Linear(8, 8, bias=False).requires_grad_(False)
    x = torch.randn(2, 8).bfloat16()
    with trace() as t:
        for _ in range(5):
            with region():
                model.fc1(x)
    assert hinted(t, "5 casts of weight weight (3.8 kB)", "region")
    with trace() as t, region(cache_enabled=False):
        model.fc1(x), model.fc1(x)
    assert hinted(t, "2 casts of weight weight (1.5 kB)", "the weight cache is off")
    with trace() as t, region():
        frozen(x), frozen(x)
        torch.mm(x, model.fc1.weight.t()), torch.mm(x, model.fc1.weight.t())
    assert hinted(t, "2 casts of parameter weight", "require grad")
    assert hinted(t, "2 casts of views of weight", "a view")
    with trace() as t, region():
        model(x), model(x)
    assert not hinted(t, "casts of weight")


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
    assert not hinted(t, "casts of weight")
    assert hinted(t, "is cast fp32→bf16 3 times", "give it as bf16")


def test_a_stale_copy_of_a_weight_is_reported() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    x = torch.ones(1, 4).bfloat16()
    with trace() as t, region():
        before = torch.mm(x, weight)
        with torch.no_grad():
            weight.mul_(2)
        after = torch.mm(x, weight)
    assert hinted(t, "was changed in place inside the region") == torch.equal(before, after)
    with trace() as fresh, region():
        torch.mm(x, weight), torch.mm(x, weight)
    assert not any(op.stale for op in fresh.ops)


@pytest.mark.parametrize(
    ("uses", "options", "reported"), [(64, {}, True), (63, {}, False), (64, {"cache_enabled": False}, False)]
)
def test_a_gradient_summed_in_low_precision_is_reported(uses: int, options: dict[str, Any], reported: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    x = torch.ones(1, 2).bfloat16()
    with trace() as t, region(**options):
        for _ in range(uses):
            torch.mm(x, weight)
        with torch.no_grad():
            torch.mm(x, weight)
    assert hinted(t, "64 times", "cache_enabled=False") == reported


def test_a_banned_op_is_recorded_with_its_error() -> None:
    device = DEVICES[0]
    with device.activate():
        p = torch.empty(4, device=device.type)
        with trace() as t, device.autocast("fp16"), pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(p, p)
    assert [(op.name, op.policy) for op in t.ops] == [("binary_cross_entropy", "banned")]
    assert t.ops[0].error.startswith("RuntimeError: ")
    assert hinted(t, "binary_cross_entropy at ", "raised")


def test_table_sorts_limits_and_refuses() -> None:
    a = torch.randn(4, 4)
    with trace() as t, region():
        a + 1
        torch.mm(a, a)
        torch.mm(torch.ones(32, 32), torch.ones(32, 32, dtype=torch.bfloat16))
    assert [line.split()[0] for line in t.table().splitlines()[3:]] == ["add", "mm", "ones", "ones", "mm"]
    by_bytes = t.table("bytes", limit=1).splitlines()
    assert by_bytes[0] == "all in region cpu bf16"
    assert "6.1 kB" in by_bytes[3]
    assert by_bytes[4] == "1 of 5 rows; the others: ones 2, mm 1, add 1"
    assert t.table("casts").splitlines()[3].split()[:5] == ["mm", "downcast", "bf16", "1", "2"]
    with pytest.raises(UsageError, match="order, bytes, casts"):
        t.table("size")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(UsageError, match="not 0"):
        t.table(limit=0)


@pytest.mark.parametrize("name", ["gan", "lora", "vision"])
def test_the_first_screen_answers(
    name: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tomllib.loads(Path(__file__).with_name("programs_with_mistakes.toml").read_text(encoding="utf-8"))
    (here / f"{name}.py").write_text(programs[name]["program"], encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "100")
    assert main.main(["trace", f"{name}.py"]) in (0, 1)  # one of them raises at its end
    lines = capsys.readouterr().out.splitlines()
    first = next(place for place, line in enumerate(lines) if " casts by autocast, " in line)
    screen = lines[first : first + 24]
    assert "hints:" in screen
    rows = screen[next(place for place, line in enumerate(screen) if line.startswith("-----")) + 1 :]
    assert len(rows) >= 3
    assert all("→" in row for row in rows[:3])
    assert max(map(len, lines[first:])) <= 100
    assert not any(line.startswith(("empty", "kaiming_uniform_", "addcdiv_")) for line in rows)


def test_new_memory_may_hold_nan() -> None:
    torch.use_deterministic_algorithms(True)  # which fills it with nan
    try:
        with trace() as t:
            assert torch.empty(4).isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not hinted(t, "nan")


def test_an_empty_trace() -> None:
    with trace() as t:
        pass
    assert (t.summary(), json.loads(t.to_json())["totals"]["ops"]) == ("no op ran on a tensor", 0)


# ---- the command

PROGRAM = tomllib.loads(Path(__file__).with_name("programs.toml").read_text(encoding="utf-8"))["traced"]


@pytest.fixture
def script(here: Path) -> Path:
    path = here / "program.py"
    path.write_text(PROGRAM.replace("{end}", "pass"))
    return path


@pytest.mark.parametrize(
    ("end", "code", "shown"),
    [
        ("pass", 0, ""),
        ("raise ValueError('no more')", 1, "ValueError: no more"),
        ("sys.exit(7)", 7, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('stopped')", 1, "stopped"),
    ],
)
def test_a_script_is_shown_however_it_ends(
    script: Path, capsys: pytest.CaptureFixture[str], end: str, code: int, shown: str
) -> None:
    script.write_text(PROGRAM.replace("{end}", end))
    assert main.main(["trace", "program.py", "--sort", "x", "-v"]) == code
    shot = capsys.readouterr()
    assert "arguments ['--sort', 'x', '-v']" in shot.out
    assert "2 casts by autocast" in shot.out
    assert "program.py:6" in shot.out
    assert shown in shot.err


@pytest.mark.parametrize("target", ["program:step", "program:Holder.run"])
def test_a_function(script: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    options = ("--sort", "bytes", "--limit", "1", "--json", "out.json")
    row, count = printed(capsys, "trace", *options, target).splitlines()[-2:]
    assert (row.split()[0], count.split()[:2]) == ("mm", ["1", "of"])
    written = ["--against", "out.json", "--svg", "casts.svg", target]
    assert printed(capsys, "trace", *written).startswith("no op differs\n")
    assert "all: twice, 192 B" in script.with_name("casts.svg").read_text()
    changed = script.with_name("out.json").read_text().replace('"got": "bf16"', '"got": "fp16"').replace("bf16", "fp16")
    script.with_name("out.json").write_text(changed.replace('"bytes": 96', '"bytes": 1'))
    out = printed(capsys, "trace", *written)
    assert "2 → 2 casts by autocast, 2 B → 192 B" in out
    assert "  mm: 2 → 2 casts, 2 B → 192 B, ran in fp16 → bf16\n" in out
    data = json.loads(changed.replace("fp16", "bf16"))
    assert data["totals"]["casts"] == 2
    mm = data["ops"][-1]
    assert (mm["name"], mm["policy"], mm["ran_in"], mm["region"]["dtype"]) == ("mm", "downcast", "low", "bf16")


WHOLE = ("mlp", "conv_bn") if torch.ops.mkldnn._is_mkldnn_bf16_supported() else ("mlp",)
"""Programs whose kernels cast nothing by themselves. PyTorch's own bfloat16 convolution does, which runs where oneDNN
has none for the processor."""


def profiled(run: Program) -> tuple[Any, int, int, int]:
    """What a program gives, and from the profiler: all its casts, those autocast makes, and those of gradients.

    A kernel of autocast casts and then calls its own op again, so the last event of such a cast's parent has its name.
    """
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        out = run()
    found = [event for event in prof.events() if event.name == "aten::_to_copy"]
    callers = [event.cpu_parent and event.cpu_parent.cpu_parent for event in found]
    own = [caller for caller in callers if caller and caller.cpu_children[-1].name == caller.name]
    gradient = [caller for caller in callers if caller and caller not in own and "ToCopyBackward" in caller.name]
    return out, len(found), len(own), len(gradient)


@pytest.mark.parametrize("how", [*GRAD, "backward outside", "backward inside"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_results_are_those_without_a_trace_and_casts_those_the_profiler_sees(program: str, how: str) -> None:
    run = PROGRAMS[program]()

    def step() -> torch.Tensor:
        with region(), GRAD.get(how, contextlib.nullcontext)():
            out = run()
            if how in GRAD:
                run()  # by the casts that are kept
            if how == "backward inside":
                out.float().sum().backward()
        if how == "backward outside":
            out.float().sum().backward()
        return out

    expected, total, autocast, gradient = profiled(step)
    with trace() as t:
        got = step()
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)
    assert len(casts(t, "autocast")) == autocast > 0
    seen = sum(len(op.casts) for op in t.ops)
    # The profiler also sees what a single kernel casts inside of itself, as the recurrent one does.
    assert seen == total if program in WHOLE else seen <= total
    if how in GRAD:
        return
    backward = [cast.origin for op in t.ops if op.phase == "backward" for cast in op.casts]
    if program in WHOLE:
        assert len(casts(t, "gradient")) + backward.count("user") == gradient
    assert 0 < len(casts(t, "gradient")) <= gradient
    assert how == "backward inside" or "autocast" not in backward


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


def test_nested_traces_are_refused_and_the_outer_one_goes_on() -> None:
    with trace() as t:
        with pytest.raises(UsageError, match="one trace cannot hold another"), trace():
            pass
        torch.ones(2) + 1
    assert [op.name for op in t.ops] == ["ones", "add"]
    with pytest.raises(UsageError, match="used already"), t:
        pass


def test_an_exception_leaves_no_mode_behind_and_the_record_readable() -> None:
    original, threads = torch.overrides.has_torch_function, torch._C._is_multithreading_enabled()
    with pytest.raises(RuntimeError, match="cannot be multiplied"), trace() as t, region():
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()) == (0, 0)
    assert torch.overrides.has_torch_function is original
    assert (torch._C._is_multithreading_enabled(), t.ops[-1].name) == (threads, "mm")
    assert t.ops[-1].error.startswith("RuntimeError: mat1 and mat2")
    assert "mm" in t.table()
    with trace() as second:
        torch.ones(2)
    assert len(second.ops) == 1


class Named(torch.Tensor):
    """A subclass without behaviour of its own."""


class Names(torch.overrides.TorchFunctionMode):
    """Notes the functions that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_other_modes_and_subclasses_behave_as_without_a_trace() -> None:
    attention, given = torch.nn.MultiheadAttention(4, 2), torch.ones(2, 1, 4)

    def run() -> torch.Tensor:
        return attention(given, given, given)[0].sum() + F.dropout(torch.ones(3).as_subclass(Named), 0.0).sum()

    with Names() as plain:
        expected = run()
    with Names() as traced, trace() as t:
        got = run()
    assert type(got) is type(expected) is Named
    assert traced.seen == plain.seen
    assert t.ops
