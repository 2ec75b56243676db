"""Programs for `ampcheck.doctor`: each wrong one breaks the rule that it is listed under, each right one breaks none.

Two shapes or more of a mistake are listed, because the doctor must know the mistake and not one program's text.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.amp import GradScaler, custom_bwd, custom_fwd
from torch.nn import functional as F

Program = Callable[[], object]

BF16, FP16 = torch.bfloat16, torch.float16


def region(dtype: torch.dtype = BF16) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype)


def net(*, bias: bool = True) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32, bias=bias), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def sgd(model: torch.nn.Module, rate: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), rate)


def batch(factor: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 16) * factor, torch.randint(0, 4, (8,))


def loss_of(model: torch.nn.Module, dtype: torch.dtype = BF16, factor: float = 1.0) -> torch.Tensor:
    x, y = batch(factor)
    with region(dtype):
        return F.cross_entropy(model(x), y)


class Loop:
    """A loop of a model, an optimizer and a scaler, whose parts a program changes."""

    def __init__(self, dtype: torch.dtype = FP16, scale: float = 1024.0) -> None:
        self.model = net()
        self.optimizer = sgd(self.model)
        self.scaler = GradScaler("cpu", init_scale=scale)
        self.dtype = dtype

    def run(self, steps: int = 3) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.scaler.scale(self.loss()).backward()
            self.before_step()
            self.step()

    def loss(self) -> torch.Tensor:
        return loss_of(self.model, self.dtype)

    def before_step(self) -> None:
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


# ---- wrong: the scaler


class ClipsFirst(Loop):
    def before_step(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


class GradientsOverflow(Loop):
    """The backward pass of a steep function overflows fp16 at any scale that the scaler reaches."""

    def loss(self) -> torch.Tensor:
        x, y = batch()
        with region(FP16):
            out = self.model(x)
        return F.cross_entropy(out.float(), y) * 1e16


class _Infinite(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad / 0


class GradientsAreInfinite(Loop):
    def loss(self) -> torch.Tensor:
        x, y = batch()
        with region(FP16):
            return F.cross_entropy(_Infinite.apply(self.model(x)), y)


class Schedules(Loop):
    def __init__(self) -> None:
        super().__init__(scale=2.0**120)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def step(self) -> None:
        super().step()
        self.scheduler.step()


class SchedulesPlateau(Schedules):
    def __init__(self) -> None:
        super().__init__()
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer)

    def step(self) -> None:
        Loop.step(self)
        self.plateau.step(1.0)


# ---- wrong: regions


def backward_in_region() -> None:
    model = net()
    optimizer = sgd(model)
    x, y = batch()
    with region():
        F.cross_entropy(model(x), y).backward()
    optimizer.step()


def optimizer_in_a_region_around_all() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    with torch.autocast("cpu"):
        x, y = batch()
        out = model(x)
        with torch.autocast("cpu", enabled=False):
            F.cross_entropy(out.float(), y).backward()
        optimizer.step()


def loss_outside() -> None:
    model = net()
    x, y = batch()
    with region():
        out = model(x)
    F.cross_entropy(out, y).backward()


def mse_outside() -> None:
    model = net()
    x, _ = batch()
    with region():
        out = model(x)
    torch.nn.MSELoss()(out, torch.zeros(8, 4, dtype=BF16)).backward()


def float32_region_from_options() -> None:
    torch.amp.autocast(device_type="cpu", dtype=torch.float32, enabled=True)


def decorated_for_another_device() -> None:
    @torch.autocast("xpu", dtype=BF16)
    def forward(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(x)
        return out

    forward(net(), batch()[0]).sum().backward()


# ---- wrong: autograd functions


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, w = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad.float() @ w.t(), x.t() @ grad.float()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w)

    @staticmethod
    def setup_context(
        ctx: torch.autograd.function.FunctionCtx, inputs: tuple[torch.Tensor, ...], output: object
    ) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, w = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad.float() @ w, grad.float().t() @ x


class _InFp16(_Product):
    forward = staticmethod(custom_fwd(_Product.forward, device_type="cpu", cast_inputs=FP16))  # type: ignore[assignment]

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, w = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad @ w.t(), x.t() @ grad


class _InFp32(_InFp16):
    forward = staticmethod(custom_fwd(_Product.forward, device_type="cpu", cast_inputs=torch.float32))  # type: ignore[assignment]


def applies(kind: type[torch.autograd.Function], *shape: int) -> Program:
    def run() -> None:
        x, w = torch.randn(8, 16), torch.randn(*(shape or (16, 4)), requires_grad=True)
        with region():
            out = kind.apply(x, w)
        out.float().sum().backward()  # type: ignore[no-untyped-call]

    return run


# ---- wrong: values


def scores_overflow() -> None:
    model, optimizer = net(), None
    x, y = batch(400.0)
    with region(FP16):
        scores = model(x) @ model(x).t()
        loss = (scores.softmax(-1) @ model(x)).sum() + F.cross_entropy(model(x), y)
    optimizer = sgd(model)
    GradScaler("cpu").scale(loss).backward()
    optimizer.zero_grad()


def squares_overflow() -> None:
    w = torch.randn(16, 16, requires_grad=True)
    with region(FP16):
        y = (torch.randn(4, 16) * 300) @ w
        loss = (y.half() * y.half()).float().mean()
    GradScaler("cpu").scale(loss).backward()


def mask_overflows() -> None:
    w = torch.randn(16, 16, requires_grad=True)
    mask = torch.ones(4, 4)
    with region(FP16):
        scores = (torch.randn(4, 16) @ w) @ torch.randn(16, 4)
        scores = scores + (mask * -1e9).half()
        loss = scores.softmax(-1).float().sum()
    GradScaler("cpu").scale(loss).backward()


def mask_of_the_least_float() -> None:
    w = torch.randn(16, 16, requires_grad=True)
    bias = torch.full((4, 4), torch.finfo(torch.float32).min)
    with region(FP16):
        scores = (torch.randn(4, 16) @ w) @ torch.randn(16, 4)
        loss = torch.softmax(scores + bias.to(scores.dtype), -1).float().sum()
    GradScaler("cpu").scale(loss).backward()


def exp_overflows() -> None:
    w = torch.randn(16, 16, requires_grad=True)
    with region(FP16):
        y = (torch.randn(4, 16) * 10) @ w
    e = y.exp()
    GradScaler("cpu").scale((e / e.sum(-1, keepdim=True)).float().sum()).backward()


def softmax_in_low() -> None:
    w = torch.randn(16, 16, requires_grad=True)
    with region():
        y = torch.randn(4, 16) @ w
    y.softmax(-1).float().square().sum().backward()  # type: ignore[no-untyped-call]


def epsilon_is_zero() -> None:
    w = torch.randn(16, 16, requires_grad=True)
    with region(FP16):
        y = torch.zeros(4, 16) @ w
        loss = (y / (y.abs() + 1e-8)).float().sum()
    GradScaler("cpu").scale(loss).backward()


def log_of_a_small_one() -> None:
    w = torch.randn(16, 4, requires_grad=True)
    with region(FP16):
        p = (torch.zeros(4, 16) @ w).softmax(-1) * 1e-8
        loss = p.half().log().float().sum()
    GradScaler("cpu").scale(loss).backward()


def nan_in_the_data() -> None:
    model = net()
    x, y = batch()
    x[0, 0] = torch.nan
    with region():
        F.cross_entropy(model(x), y).backward()


def nan_in_float32() -> None:
    model = net()
    x, y = batch()
    with region():
        out = model(x).float()
    (F.cross_entropy(out, y) + (out * 0).sum() / (out * 0).sum()).backward()


def steps_with_infinite_gradients() -> None:
    model = net()
    optimizer = sgd(model)
    x, y = batch()
    with region():
        loss = F.cross_entropy(_Infinite.apply(model(x)).float(), y)
    loss.backward()
    optimizer.step()


# ---- wrong: parameters


def low_model_in_region() -> None:
    model = net().to(BF16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loss_of(model).backward()
    optimizer.step()


def low_parameters(optimizer: type[torch.optim.Optimizer] = torch.optim.SGD) -> Program:
    def run() -> None:
        model = net().to(BF16)
        made = optimizer(model.parameters(), lr=1e-5)  # type: ignore[call-arg]
        x, y = batch()
        F.cross_entropy(model(x.to(BF16)).float(), y).backward()
        made.step()

    return run


def low_average() -> None:
    model, average = net(), net().to(BF16)
    optimizer = sgd(model)
    loss_of(model).backward()
    optimizer.step()
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs.to(BF16), 0.001)


def low_average_by_decay() -> None:
    model, average = net(), [p.detach().to(BF16).clone() for p in net().parameters()]
    with torch.no_grad():
        for mine, theirs in zip(average, model.parameters(), strict=True):
            mine.mul_(0.999).add_(theirs.to(BF16), alpha=0.001)


def positions_in_fp16() -> None:
    w = torch.randn(1, 8, requires_grad=True)
    with region(FP16):
        loss = torch.nn.functional.linear(torch.arange(5000.0)[:, None], w.t()).float().mean()
    GradScaler("cpu").scale(loss).backward()


def inference_casts_weights() -> None:
    model = net().eval()
    for _ in range(5):
        with torch.no_grad(), region():
            model(batch()[0])


def run_of(kind: type[Loop], steps: int = 3) -> Program:
    return lambda: kind().run(steps)


WRONG: dict[str, dict[str, Program]] = {
    "clip-before-unscale": {"norm": run_of(ClipsFirst)},
    "scale-falls-for-ever": {"steep": run_of(GradientsOverflow, 10), "infinite": run_of(GradientsAreInfinite, 10)},
    "scheduler-after-skip": {"each": run_of(Schedules, 4), "plateau": run_of(SchedulesPlateau, 4)},
    "backward-in-region": {"with": backward_in_region},
    "optimizer-in-region": {"around": optimizer_in_a_region_around_all},
    "loss-outside-region-in-low": {"cross_entropy": loss_outside, "mse": mse_outside},
    "float32-region": {"made": float32_region_from_options},
    "device-constant": {"decorator": decorated_for_another_device},
    "function-without-custom-fwd": {"matmul": applies(_Product), "setup_context": applies(_Linear, 4, 16)},
    "cast-inputs-constant": {"fp16": applies(_InFp16)},
    "overflow-in-low": {"scores": scores_overflow, "squares": squares_overflow},
    "mask-overflow": {"added": mask_overflows, "least": mask_of_the_least_float},
    "softmax-or-exp-in-low": {"exp": exp_overflows, "softmax": softmax_in_low},
    "underflow-in-low": {"epsilon": epsilon_is_zero, "log": log_of_a_small_one},
    "non-finite-in-float32": {"data": nan_in_the_data, "division": nan_in_float32},
    "step-with-non-finite": {"plain": steps_with_infinite_gradients},
    "half-model-in-region": {"bf16": low_model_in_region},
    "low-parameters": {"sgd": low_parameters(), "adam": low_parameters(torch.optim.Adam)},
    "low-moments": {"adam": low_parameters(torch.optim.Adam)},
    "low-average": {"lerp": low_average, "decay": low_average_by_decay},
    "positions-in-product": {"fp16": positions_in_fp16},
    "weights-cast-each-step": {"no_grad": inference_casts_weights},
}


# ---- right


def plain_bf16() -> None:
    model = net()
    optimizer = sgd(model)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(model).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def two_optimizers() -> None:
    first, second = net(), net()
    optimizers, scaler = (sgd(first), sgd(second)), GradScaler("cpu", init_scale=64.0)
    for _ in range(3):
        scaler.scale(loss_of(first, FP16) + loss_of(second, FP16)).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()


def two_phases() -> None:
    first, second = net(), net()
    optimizers, scaler = (sgd(first), sgd(second)), GradScaler("cpu", init_scale=64.0)
    for _ in range(3):
        for model, optimizer in zip((first, second), optimizers, strict=True):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, FP16)).backward()
            scaler.step(optimizer)
            scaler.update()


class Accumulates(Loop):
    def run(self, steps: int = 3) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            for _ in range(2):
                self.scaler.scale(self.loss() / 2).backward()
            self.before_step()
            self.step()


def default_scale() -> None:
    """The first scale is too high for one step or two, as PyTorch means it to be."""
    Loop(scale=2.0**16).run(8)


def masked_attention() -> None:
    w = torch.randn(16, 48, requires_grad=True)
    optimizer = torch.optim.AdamW([w], 1e-3)
    hidden = torch.triu(torch.ones(6, 6, dtype=torch.bool), 1)
    for _ in range(3):
        with region():
            q, k, v = (torch.randn(2, 6, 16) @ w).split(16, -1)
            scores = (q @ k.transpose(-2, -1) / 4).masked_fill(hidden, float("-inf"))
            loss = (scores.float().softmax(-1) @ v).square().mean()
        loss.float().backward()
        optimizer.step()
        optimizer.zero_grad()


def function_with_custom_fwd() -> None:
    applies(_InFp32)()


def rotary_in_float32() -> None:
    w = torch.randn(8, 8, requires_grad=True)
    with region():
        with torch.autocast("cpu", enabled=False):
            angles = torch.arange(1000).float()[:, None] * torch.rand(1, 8)
        loss = (angles.sin() @ w).float().mean()
    loss.backward()


def inference_cast_once() -> None:
    model = net().eval().to(BF16)
    for _ in range(5):
        with torch.inference_mode():
            model(batch()[0].to(BF16))


def evaluates_between() -> None:
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            loss_of(model)


def for_ever() -> None:
    model = net()
    optimizer = sgd(model)
    while True:
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def float32_alone() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


RIGHT: dict[str, Program] = {
    "plain_bf16": plain_bf16,
    "loop": run_of(Loop),
    "accumulates": run_of(Accumulates),
    "two_optimizers": two_optimizers,
    "two_phases": two_phases,
    "default_scale": default_scale,
    "masked_attention": masked_attention,
    "custom_fwd": function_with_custom_fwd,
    "rotary": rotary_in_float32,
    "cast_once": inference_cast_once,
    "evaluates": evaluates_between,
    "float32": float32_alone,
}
