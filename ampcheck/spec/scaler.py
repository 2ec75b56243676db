"""The state machine of `torch.amp.GradScaler`: scale, growth tracker and the stage of each optimizer, in plain Python.

Sources, all of PyTorch 2.13: https://docs.pytorch.org/docs/2.13/amp.html#torch.amp.GradScaler; for stages and errors
`torch/amp/grad_scaler.py`; for how the scale grows `aten/src/ATen/native/cuda/AmpKernels.cu`: the product is made in
double and rounded to float32 once, and the scale stays where growing would make it infinite.

The model knows gradients only by whether they are finite, per device. An optimizer may be any hashable value.
Where an implementation breaks a promise (a tracker that has passed an interval set later never meets it), the model
keeps the promise and the difference is a deviation.
"""

import struct
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite

READY, UNSCALED, STEPPED = "READY", "UNSCALED", "STEPPED"
"""The stages of an optimizer between two calls of `update`."""

UNSCALED_TWICE = "unscale_() has already been called on this optimizer since the last update()."
UNSCALED_LATE = "unscale_() is being called after step()."
STEPPED_TWICE = "step() has already been called since the last update()."
NOTHING_CHECKED = "No inf checks were recorded for this optimizer."
NOTHING_RECORDED = "No inf checks were recorded prior to update."
NO_SCALE = "Attempted {} but _scale is None.  This may indicate your script did not use scaler.scale(loss or outputs)"
WITH_CLOSURE = "Closure use is not currently supported if GradScaler is enabled."
HALF = "Attempting to unscale FP16 gradients."
EMPTY_STATE = "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
PICKLED_EARLY = "A GradScaler instance may only be pickled at the beginning of an iteration"
GROWTH = "The growth factor must be > 1.0."
BACKOFF = "The backoff factor must be < 1.0."


class Refused(Exception):
    """A call that GradScaler refuses: `kind` is the class of its error, `text` a part of its message."""

    def __init__(self, kind: type[Exception], text: str) -> None:
        super().__init__(f"{kind.__name__}: {text}")
        self.kind, self.text = kind, text


def float32(value: float) -> float:
    """Return the float32 nearest to a number. Raises Refused for a finite one that is out of range."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]  # native floats overflow quietly
    except OverflowError:
        raise Refused(RuntimeError, "value cannot be converted to type float without overflow") from None
    return rounded


@dataclass(slots=True)
class Optimizer:
    """A scaler's record of an optimizer since the last update.

    `found_inf`: for each device that has gradients of it, whether one of them was not finite when they were checked.
    """

    stage: str = READY
    found_inf: dict[str, bool] = field(default_factory=dict)


@dataclass(slots=True)
class Scaler:
    """A GradScaler. Scale and tracker exist from the first `scale` on (`lazy` until then).

    Raises Refused for a growth factor that does not grow and a backoff factor that does not shrink.
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True
    lazy: bool = True
    tracker: int = 0
    current: float = 0.0
    optimizers: dict[Hashable, Optimizer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.enabled and self.growth_factor <= 1.0:
            raise Refused(AssertionError, GROWTH)
        if self.enabled and self.backoff_factor >= 1.0:
            raise Refused(AssertionError, BACKOFF)

    @property
    def scale_value(self) -> float:
        """Return the result of `get_scale`."""
        if not self.enabled:
            return 1.0
        return self.init_scale if self.lazy else self.current

    def scale(self) -> float:
        """Scale an output: what it is multiplied by. Raises Refused where float32 has no such scale."""
        if self.enabled and self.lazy:
            self.current = float32(self.init_scale)
            self.lazy = False
        return self.scale_value

    def unscale(self, optimizer: Hashable, finite: Mapping[str, bool], half: bool = False) -> None:
        """Unscale an optimizer's gradients.

        `finite`: for each device that has some, whether all are finite. `half`: whether one is float16. Raises Refused
        after another `unscale_` or `step` of it since the last update, before any `scale`, and for float16 gradients.
        """
        if not self.enabled:
            return
        self._needs_scale("unscale_")
        known = self._known(optimizer)
        if known.stage == UNSCALED:
            raise Refused(RuntimeError, UNSCALED_TWICE)
        if known.stage == STEPPED:
            raise Refused(RuntimeError, UNSCALED_LATE)
        if half:
            raise Refused(ValueError, HALF)
        known.stage, known.found_inf = UNSCALED, {device: not all_ for device, all_ in finite.items()}

    def step(
        self,
        optimizer: Hashable,
        finite: Mapping[str, bool],
        half: bool = False,
        closure: bool = False,
        fused: bool = False,
    ) -> bool:
        """Step an optimizer. Returns whether the update is made.

        `finite`, `half`: as for `unscale`, and count where that was not called before. `fused`: whether the optimizer
        unscales by itself; then float16 gradients are allowed, and an optimizer without gradients has nothing to do.
        Raises Refused for a second step since the last update, for an optimizer without gradients, for a closure, and
        before any `scale`.
        """
        if not self.enabled:
            return True
        if closure:
            raise Refused(RuntimeError, WITH_CLOSURE)
        self._needs_scale("step")
        known = self._known(optimizer)
        if known.stage == STEPPED:
            raise Refused(RuntimeError, STEPPED_TWICE)
        if known.stage == READY:
            self.unscale(optimizer, finite, half and not fused)
        if not known.found_inf and not fused:
            raise Refused(AssertionError, NOTHING_CHECKED)
        known.stage = STEPPED
        return not any(known.found_inf.values())

    def update(self, new_scale: float | None = None) -> None:
        """End an iteration: shrink the scale where something was not finite, else count, and grow it when it is time.

        `new_scale`: what the scale becomes instead; the tracker stays. Raises Refused where nothing was checked.
        """
        if not self.enabled:
            return
        self._needs_scale("update")
        if new_scale is not None:
            self.current = float32(new_scale)
        else:
            checked = [found for known in self.optimizers.values() for found in known.found_inf.values()]
            if not checked:
                raise Refused(AssertionError, NOTHING_RECORDED)
            self._grow(any(checked))
        self.optimizers.clear()

    def _grow(self, found_inf: bool) -> None:
        if found_inf:
            self.current = float32(self.current * self.backoff_factor)
            self.tracker = 0
            return
        self.tracker += 1
        if self.tracker >= self.growth_interval:
            grown = self.current * self.growth_factor
            with suppress(Refused):  # the scale stays where float32 ends
                self.current = float32(grown) if isfinite(grown) else self.current
            self.tracker = 0

    def state(self) -> dict[str, float]:
        """Return the result of `state_dict`."""
        if not self.enabled:
            return {}
        return {
            "scale": self.scale_value,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self.tracker,
        }

    def load(self, state: Mapping[str, float]) -> None:
        """Load what `state` gave; stages stay. Raises Refused for the empty state of a scaler that was off."""
        if not self.enabled:
            return
        if not state:
            raise Refused(RuntimeError, EMPTY_STATE)
        self.init_scale = state["scale"]
        if not self.lazy:
            self.current = float32(state["scale"])
        self.growth_factor, self.backoff_factor = state["growth_factor"], state["backoff_factor"]
        self.growth_interval, self.tracker = int(state["growth_interval"]), int(state["_growth_tracker"])

    def pickled(self) -> "Scaler":
        """Return the scaler that pickle or a deep copy gives. Raises Refused in the middle of an iteration."""
        if self.enabled and self.optimizers:
            raise Refused(AssertionError, PICKLED_EARLY)
        copy = Scaler(enabled=self.enabled)
        if self.enabled:
            copy.load(self.state())
        return copy

    def _known(self, optimizer: Hashable) -> Optimizer:
        return self.optimizers.setdefault(optimizer, Optimizer())

    def _needs_scale(self, call: str) -> None:
        if self.lazy:
            raise Refused(AssertionError, NO_SCALE.format(call))
