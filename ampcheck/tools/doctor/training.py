"""The order of a training loop: regions, scaled losses, backward passes, clipping, steps, updates and schedulers."""

import inspect
import math
import weakref
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.amp.grad_scaler import GradScaler

from ampcheck.observe.recorder import tensors
from ampcheck.observe.torch_private import no_dispatch
from ampcheck.spec.torch_dtypes import name_of
from ampcheck.tools.doctor.findings import Findings
from ampcheck.tools.doctor.kernels import LOW, KernelWatch, NonFinite, Place, Seen, is_on
from ampcheck.tools.watch import HasGroups, parameters_of

MANY_SKIPS = 8
"""How many steps in a row are skipped before a scale is said to fall for ever: it is a 256th then. The default first
scale, 65536, is meant to be too high for some models (torch.amp.GradScaler, init_scale)."""
_LOW_SCALE = 65536.0 / 2**MANY_SKIPS
"""A scale that begins higher is given more steps to fall to it."""
_LEAST_SCALE = 64
"""From which factor on a loss is scaled, not weighted."""
DEVICES = ("cpu", "cuda", "xpu", "mps", "mtia", "hpu", "privateuseone")


@dataclass(slots=True)
class _Scaling:
    """What happened to a scaler since its last update, and how many steps in a row it skipped.

    `scaled`: where a loss was scaled. `unscaled`: the ids of parameters whose gradients were unscaled.
    """

    scaled: Place | None = None
    unscaled: set[int] = field(default_factory=set)
    updates: int = 0
    skipped: int = 0


class Training:
    """Rules on the order of a program's calls. Each method is called before or after one of PyTorch's."""

    def __init__(self, findings: Findings, kernels: KernelWatch, seen: Seen) -> None:
        self._findings, self._kernels, self._seen = findings, kernels, seen
        # A scaler that the program let go of is forgotten.
        self._scalers: weakref.WeakKeyDictionary[GradScaler, _Scaling] = weakref.WeakKeyDictionary()
        self._stepping: GradScaler | None = None
        self._entered: dict[str, Place] = {}
        self._fp16_backward: Place | None = None
        self._scaled_a_loss = False
        self._trains = False
        self._lost = False
        self._skipped_since_schedule = False
        self._scheduled_after_skip = 0
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._applied: list[tuple[type[torch.autograd.Function], Place, int]] = []
        self.observing = False
        self._trained: dict[int, weakref.ref[torch.Tensor]] = {}
        self._measured: Place | None = None
        kernels.limited = self._limited

    def _add(self, rule: str, seen: str, instead: str = "") -> None:
        self._findings.add(rule, self._kernels.place(), seen, instead)

    # ---- regions

    def region(self, made: torch.amp.autocast, device: str, dtype: torch.dtype | None, enabled: bool) -> None:
        """Look at a region that was made."""
        if enabled and dtype is torch.float32:
            what = f'autocast("{device}", dtype=torch.float32) was made'
            self._add("float32-region", f"{what}: it casts nothing and, on most devices, is off")
        elif enabled and not made._enabled:
            self.entered(device)  # it would have been on, on a machine that has the device

    def entered(self, device: str) -> None:
        """Note that a region that is enabled was entered."""
        if device not in self._entered:
            self._entered[device] = self._kernels.place()

    def function(self, kind: type[torch.autograd.Function], args: Iterable[object]) -> None:
        """Look at an autograd function that is applied."""
        given = [x for x in tensors(list(args)) if x.is_floating_point()]
        on = next((x.device.type for x in given if is_on(x.device.type)), "")
        if not on:
            return
        forward = kind.forward
        closure = inspect.getclosurevars(forward).nonlocals if hasattr(forward, "__wrapped__") else {}
        device, region = given[0].device.type, torch.get_autocast_dtype(on)
        if "cast_inputs" not in closure:
            self._applied.append((kind, self._kernels.place(), self._low_products()))
            return
        if closure["device_type"] != device:
            has = f'{kind.__name__} has custom_fwd(device_type="{closure["device_type"]}")'
            self._add("custom-fwd-of-one-device", f"{has} and was given tensors of {device}")
        constant = closure["cast_inputs"]
        if constant in LOW and constant is not region:
            seen = f"{kind.__name__} casts its inputs to {name_of(constant)} in a region of {name_of(region)}"
            self._add("cast-inputs-constant", seen)

    def function_ended(self, kind: type[torch.autograd.Function]) -> None:
        """Look whether a function without custom_fwd ran products that the region cast."""
        if not self._applied or self._applied[-1][0] is not kind:
            return
        _, place, before = self._applied.pop()
        if self._low_products() > before:
            ran = f"{kind.__name__}.forward ran products that the region cast"
            seen = f"{ran}; its backward runs outside of the region, on what forward saved before the casts"
            self._findings.add("function-without-custom-fwd", place, seen)

    def _low_products(self) -> int:
        return sum(count for (_, region, dtype), count in self._seen.products.items() if region and dtype in LOW)

    # ---- backward

    def scaled(self, scaler: GradScaler) -> None:
        """Note that a loss is scaled."""
        self._of(scaler).scaled = self._kernels.place()
        self._scaled_a_loss |= scaler.is_enabled()  # the scaler may be gone before the backward pass

    def backward(self, roots: Collection[torch.Tensor]) -> None:
        """Look at a backward pass that begins: the region around it, and the values that it begins with."""
        self._trains = True
        self._measured = None
        place = self._kernels.place()
        for device in dict.fromkeys(root.device.type for root in roots):
            if is_on(device):
                dtype = name_of(torch.get_autocast_dtype(device))
                self._findings.add("backward-in-region", place, f"backward was called in a region of {dtype}")
        low = self._seen.in_regions
        active = [state for scaler, state in self._scalers.items() if scaler.is_enabled()]
        self._scaled_a_loss |= any(map(_multiplied, roots))
        if torch.float16 in low and not active and not self._scaled_a_loss:
            self._fp16_backward = self._fp16_backward or place
        if torch.bfloat16 in low and torch.float16 not in low and any(state.scaled for state in active):
            where = next(filter(None, (state.scaled for state in active)), place)
            self._findings.add("scaler-with-bf16", where, "the region runs in bf16, whose range is that of float32")
        bad = [x for x in roots if x.is_floating_point() and not _finite(x.detach())]
        for root in bad:
            self._loss_is_not_finite(root, place)
        made = next((one for one in self._kernels.nonfinite if one.hidden), None)
        if made is not None and not bad:
            self._classify(made, "; the loss is finite, for what follows hides it")

    def _loss_is_not_finite(self, root: torch.Tensor, place: Place) -> None:
        self._lost = True
        value = f"{root.item()}" if root.numel() == 1 else "not finite"
        made = next((one for one in self._kernels.nonfinite if not one.backward), None)
        if made is None:
            if self.observing and "non-finite-in-float32" not in self._findings:
                seen = f"the loss is {value}; no kernel of the step made it"
                self._findings.add("non-finite-in-float32", place, seen)
            return
        self._classify(made, f"; the loss is {value}")

    def _classify(self, made: NonFinite, others: str) -> None:
        """Find the rule of the first values that are not finite. `others`: what came of them."""
        rule = "overflow-in-low"
        if made.met or made.dtype not in LOW:
            rule = "non-finite-in-float32"
        elif made.dtype is torch.float16 and "nan" not in made.what and made.op in ("exp", "pow", "_softmax", "exp2"):
            rule = "softmax-or-exp-in-low"
        elif made.low <= -1e4 and "-inf" in made.what:
            rule = "mask-overflow"
        elif made.zero and made.op in ("div", "reciprocal", "rsqrt", "log", "log2", "log10", "pow"):
            rule = "underflow-in-low"
        self._findings.add(rule, made.place, f"{made}{others}")

    # ---- gradients and steps

    def clipped(self, parameters: Iterable[torch.Tensor]) -> None:
        """Look at gradients that are clipped."""
        clipped = {id(x) for x in parameters}
        for scaler, state in self._scalers.items():
            if not scaler.is_enabled() or state.scaled is None or clipped & state.unscaled:
                continue
            scale = scaler.get_scale()
            if scale != 1.0:
                self._add("clip-before-unscale", f"gradients that are multiplied by the scale, {scale:g}, were clipped")

    def _limited(self, how: str, args: tuple[object, ...], x: torch.Tensor) -> None:
        """Look at a tensor that is clamped, or multiplied by a factor after a norm was taken: it may be a gradient."""
        if not any(state.scaled for state in self._scalers.values()) or (how == "factor" and not self._measured):
            return
        if how == "clamp" and not torch.is_grad_enabled() and self._kernels.in_hook():
            self.clipped([x])
            return
        storage = x.untyped_storage().data_ptr()
        held = [one for known in self._trained.values() if (one := known()) is not None and one.grad is not None]
        mine = [one for one in held if one.grad is not None and one.grad.untyped_storage().data_ptr() == storage]
        if mine and how == "norm":
            self._measured = self._kernels.place()
        elif mine and (how == "clamp" or not self._unscales(args[1:2])):
            self.clipped(mine)

    def _unscales(self, factor: Sequence[object]) -> bool:
        """Return whether a factor is the scale of a loss, or its inverse."""
        numbers = (x for x in factor if not isinstance(x, torch.Tensor) or x.numel() == 1)
        value = next((float(x) for x in numbers if isinstance(x, (int, float, torch.Tensor))), 0.0)
        scales = [scaler.get_scale() for scaler in self._scalers]
        return any(math.isclose(value, one, rel_tol=1e-4) for scale in scales for one in (scale, 1 / scale))

    def normalized(self, x: object, _: object, weight: object = None, *__: object, **___: object) -> None:
        """Look at a call of rms_norm, which is fused where input and weight have one dtype."""
        if isinstance(x, torch.Tensor) and isinstance(weight, torch.Tensor) and x.dtype != weight.dtype:
            dtypes = f"an input in {name_of(x.dtype)} and a weight in {name_of(weight.dtype)}"
            self._add("slow-fallback", f"rms_norm was given {dtypes}")

    def recurred(self, x: torch.Tensor, *, fused: bool) -> None:
        """Look at a call of an LSTM that ended, which the CPU runs as one kernel where it can cast what it is given."""
        if x.device.type != "cpu" or x.dtype not in LOW or fused or not torch.is_autocast_enabled("cpu"):
            return
        region = torch.get_autocast_dtype("cpu")
        if self.observing and x.dtype is not region:
            seen = f"LSTM was given {name_of(x.dtype)} in a region of {name_of(region)}"
            self._add("slow-fallback", seen, f"cast its input: x.to({region})")

    def encoded(self, module: torch.nn.Module, *_: object, **__: object) -> None:
        """Look at a call of a transformer's layer: where nothing is trained, a region ends its fused path."""
        # As the layers ask themselves: for cuda.
        if not module.training and not torch.is_grad_enabled() and torch.is_autocast_enabled("cuda"):
            instead = "cast the model once, model.to(torch.bfloat16), and leave the region out"
            self._add("slow-fallback", f"{type(module).__name__} leaves its fused path in a region", instead)

    def unscaled(self, scaler: GradScaler, optimizer: HasGroups) -> None:
        """Note gradients that are unscaled."""
        mine = {id(x) for x in parameters_of(optimizer)}
        self._half_model(parameters_of(optimizer))  # PyTorch refuses gradients in fp16 now
        state = self._of(scaler)
        if mine <= state.unscaled and self._stepping is None and scaler.is_enabled():
            self._add("unscale-twice", "unscale_ was called twice on one optimizer before update")
        state.unscaled |= mine

    def steps(self, scaler: GradScaler, optimizer: HasGroups) -> None:
        """Look at a step that a scaler begins."""
        self._stepping = scaler
        state = self._of(scaler)
        has_gradients = any(x.grad is not None for x in parameters_of(optimizer))
        if scaler.is_enabled() and state.scaled is None and state.updates and has_gradients:
            seen = "update was called between the backward pass and this step: the gradients have an older scale"
            self._add("update-between-steps", seen)

    def stepped(self, scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """Look at a step that a scaler ended: whether it was skipped."""
        self._stepping = None
        if not scaler.is_enabled():
            return
        state = self._of(scaler)
        if not any(found.item() for found in scaler._found_inf_per_device(optimizer).values()):
            state.skipped = 0
            return
        self._skipped_since_schedule = True
        state.skipped += 1
        # Where the loss is not finite, the finding of that says why.
        falls = state.skipped >= MANY_SKIPS and scaler.get_scale() <= _LOW_SCALE
        if falls and not self._lost and "scale-falls-for-ever" not in self._findings:
            made = next(iter(self._kernels.nonfinite), None)
            bad = next((x for x in parameters_of(optimizer) if not _finite(x.grad)), None)
            place = made.place if made else self._kernels.place()
            seen = f"{state.skipped} steps in a row were skipped, and the scale fell to {scaler.get_scale():g}"
            first = str(made) if made else f"in the gradient of {self._name(bad)}"
            self._findings.add("scale-falls-for-ever", place, f"{seen}: first {first}")

    def updated(self, scaler: GradScaler) -> None:
        """Note that a scale was updated."""
        state = self._of(scaler)
        state.updates += 1
        state.scaled = None
        state.unscaled.clear()

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at an optimizer's step that begins."""
        parameters = [x for x in parameters_of(optimizer) if x.grad is not None]
        if not parameters:
            return
        self._kernels.stepping = True
        self._trained |= {id(x): weakref.ref(x) for x in parameters}
        device = parameters[0].device.type
        if is_on(device):
            self._add("optimizer-in-region", "the optimizer's step ran in a region")
        self._half_model(parameters)
        mine = {id(x) for x in parameters}
        if self._stepping is None:
            for scaler, state in self._scalers.items():
                if scaler.is_enabled() and state.scaled and not mine & state.unscaled:
                    seen = f"the optimizer stepped with gradients multiplied by the scale, {scaler.get_scale():g}"
                    self._add("step-outside-scaler", seen)
            if self.observing and (bad := next((x for x in parameters if not _finite(x.grad)), None)) is not None:
                made = next((one for one in self._kernels.nonfinite if one.backward), None)
                seen = f"the optimizer stepped with a gradient of {self._name(bad)} that is not finite"
                place = made.place if made else self._kernels.place()
                self._findings.add("step-with-non-finite", place, f"{seen}: {made}" if made else seen)
        self._before = []
        if self.observing:
            low = [x for x in parameters if x.dtype in LOW and x.numel() <= 1 << 22][:4]
            self._before = [(x, x.detach().clone()) for x in low]

    def _half_model(self, parameters: Iterable[torch.Tensor]) -> None:
        ran = {device for (device, region, _), count in self._seen.products.items() if region and count}
        low = next((x for x in parameters if x.dtype in LOW and x.device.type in ran), None)
        if low is not None:
            seen = f"{self._name(low)} is trained in {name_of(low.dtype)}, and products ran in a region"
            self._add("half-model-in-region", seen)

    def optimizer_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at parameters after a step: whether they moved."""
        self._kernels.stepping = False
        self._skipped_since_schedule = False
        for x, before in self._before:
            dtype, state = name_of(x.dtype), optimizer.state.get(x, {})
            asked = torch.zeros_like(x, dtype=torch.bool) if x.grad is None else x.grad != 0
            still = float((x.detach() == before)[asked].float().mean())  # nan where no gradient asks for a change
            if still > 0.5:
                stayed = f"{still:.0%} of the elements of {self._name(x)} in {dtype} did not move in a step"
                self._add("low-parameters", f"{stayed}: the update is below half a unit of their last place")
            low = [name for name, value in state.items() if isinstance(value, torch.Tensor) and value.dtype in LOW]
            if "exp_avg_sq" in low:
                kept = f"the optimizer keeps {', '.join(low)} in {dtype}"
                self._add("low-moments", f"{kept}, where a decay of 0.999 rounds to none")
        self._before = []

    def scheduled(self) -> None:
        """Look at a scheduler's step."""
        if self._skipped_since_schedule:
            self._scheduled_after_skip += 1
            self._skipped_since_schedule = False
            if self._scheduled_after_skip == 2:  # the first skip only finds the scale
                seen = "the scheduler stepped after steps that the scaler skipped, so the learning rate runs ahead"
                self._add("scheduler-after-skip", seen)

    # ---- the end

    def close(self) -> None:
        """Tell what only the whole run shows, and let go of the scalers."""
        ran = self._seen.products
        if self._fp16_backward and torch.float16 in self._seen.in_regions:
            seen = "products ran in fp16 and no loss was scaled: gradients below 6e-8 become 0"
            self._findings.add("fp16-without-scaler", self._fp16_backward, seen)
        for device, place in self._entered.items():
            others = {other for other, region, _ in ran if other != device and not region}
            if others and not any(other == device for other, _, _ in ran):
                seen = f'autocast("{device}") was entered, and every product ran on {", ".join(sorted(others))}'
                self._findings.add("device-constant", place, seen)
        first = next((one for one in self._kernels.nonfinite if one.dtype is torch.float16 and not one.met), None)
        if first is not None and not self._trains and first.op not in ("exp", "exp_"):  # 1 / (1 + inf) is right
            self._classify(first, "")
        repeated = [number for number in self._seen.weight_casts.values() if number > 2]
        # Between steps that train them, weights cannot be cast once and for all.
        if repeated and self._entered and not self._trains:
            self._findings.add(
                "weights-cast-each-step",
                next(iter(self._entered.values())),
                f"{len(repeated)} parameters were cast {max(repeated)} times, and nothing was trained: "
                f"{self._seen.weight_bytes / 1e6:.1f} MB read and written",
            )
        self._scalers.clear()

    def _of(self, scaler: GradScaler) -> _Scaling:
        return self._scalers.setdefault(scaler, _Scaling())

    def _name(self, parameter: torch.Tensor | None) -> str:
        return self._kernels.parameters.get(id(parameter), "a parameter")


def _multiplied(loss: torch.Tensor) -> bool:
    """Return whether a loss was multiplied by a large number as its last op, which is a scale without a scaler."""
    factor = getattr(loss.grad_fn, "_saved_other", None) if type(loss.grad_fn).__name__ == "MulBackward0" else None
    with no_dispatch():  # a number that is wrapped as a tensor is a number again in a mode
        return isinstance(factor, torch.Tensor) and factor.numel() == 1 and factor.item() >= _LEAST_SCALE


def _finite(x: torch.Tensor | None) -> bool:
    return x is None or x.layout is not torch.strided or bool(x.isfinite().all())
