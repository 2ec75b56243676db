"""Rule misuse, of what a scaler is made with and set to: `ampcheck.spec.rules` says what it promises.

Sources are PyTorch 2.13's `torch/amp/grad_scaler.py`.
"""

from functools import partial
from typing import Any

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("misuse")


def _trained(scaler: torch.amp.GradScaler, amp: Amp, by: float = 1.0) -> float:
    """The scale after an iteration whose gradients are `by`."""
    weight = torch.nn.Parameter(torch.ones(2, device=amp.type))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler.scale((weight * by).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale()


@pytest.mark.parametrize("value", [1.0, 0.5, -2.0, float("nan")], ids=["one", "below", "negative", "not_a_number"])
@scenario(values=True, dtypes="default")
def test_growth_factor(amp: Amp, value: float) -> None:
    """A growth factor that is not above 1 is refused (__init__: "The growth factor must be > 1.0.")."""
    text = "The growth factor must be > 1.0."
    amp.raises(f"{value}", AssertionError, text, lambda: torch.amp.GradScaler(amp.type, growth_factor=value))


@pytest.mark.parametrize("value", [1.0, 2.0, float("nan")], ids=["one", "above", "not_a_number"])
@scenario(values=True, dtypes="default")
def test_backoff_factor(amp: Amp, value: float) -> None:
    """A backoff factor that is not below 1 is refused (__init__: "The backoff factor must be < 1.0.")."""
    text = "The backoff factor must be < 1.0."
    amp.raises(f"{value}", AssertionError, text, lambda: torch.amp.GradScaler(amp.type, backoff_factor=value))


@scenario(values=True, dtypes="default")
def test_scale_beyond_float32(amp: Amp) -> None:
    """A scale that float32 does not hold is refused where it is needed first, and by update (torch.full, fill_)."""
    text = "value cannot be converted to type float without overflow"
    one = torch.ones((), device=amp.type)
    scaler = torch.amp.GradScaler(amp.type, init_scale=1e39)
    amp.raises("scale", RuntimeError, text, lambda: scaler.scale(one))
    scaler = torch.amp.GradScaler(amp.type, init_scale=4.0)
    scaler.scale(one)
    amp.raises("update", RuntimeError, text, lambda: scaler.update(1e39))
    amp.expect("scale after it", scaler.get_scale(), 4.0)


@scenario(values=True, dtypes="default")
def test_set_and_used(amp: Amp) -> None:
    """Factors and interval that are set are what the getters give and the next update uses (set_growth_factor…)."""
    scaler = torch.amp.GradScaler(amp.type, init_scale=8.0)
    scaler.set_growth_factor(4.0)
    scaler.set_backoff_factor(0.125)
    scaler.set_growth_interval(1)
    got = (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval())
    amp.expect("factors and interval", got, (4.0, 0.125, 1))
    amp.expect("scale after an iteration", _trained(scaler, amp), 32.0)
    amp.expect("scale after an overflow", _trained(scaler, amp, float("inf")), 4.0)


NEW_SCALES = {
    "float": 2.5,
    "no_dimension": torch.tensor(2.5),
    "one_element": torch.tensor([2.5]),
    "float64": torch.tensor(2.5, dtype=torch.float64),
    "int": 2,
    "two_elements": torch.tensor([2.5, 3.5]),
    "requires_grad": torch.tensor(2.5, requires_grad=True),
    "elsewhere": torch.tensor(2.5, device="meta"),
}


@pytest.mark.parametrize("form", ["float", "no_dimension", "one_element", "float64", "int"])
@scenario(values=True, dtypes="default")
def test_new_scale(amp: Amp, form: str) -> None:
    """A new scale is a number, or a tensor of one element on the scaler's device (update: "float or 1-element")."""
    scaler = torch.amp.GradScaler(amp.type, init_scale=4.0)
    scaler.scale(torch.ones((), device=amp.type))
    given: Any = NEW_SCALES[form]
    given = given.to(amp.type) if isinstance(given, torch.Tensor) else given
    try:
        scaler.update(given)
    except (AttributeError, RuntimeError) as error:
        amp.expect(f"what update by {form} raised", f"{type(error).__name__}: {error}", "")
        return
    amp.expect(f"scale updated by {form}", scaler.get_scale(), 2.0 if form == "int" else 2.5)


@pytest.mark.parametrize("form", ["two_elements", "requires_grad", "elsewhere"])
@scenario(values=True, dtypes="default")
def test_no_new_scale(amp: Amp, form: str) -> None:
    """Other tensors are refused, in words that say what is wanted, and the scale is kept (update)."""
    scaler = torch.amp.GradScaler(amp.type, init_scale=4.0)
    scaler.scale(torch.ones((), device=amp.type))
    given: Any = NEW_SCALES[form]
    if form != "elsewhere":
        given = given.detach().to(amp.type).requires_grad_(form == "requires_grad")
    text = "new_scale should be a float or a 1-element"
    amp.raises(f"update by {form}", AssertionError, text, lambda: scaler.update(given))
    amp.expect("scale after it", scaler.get_scale(), 4.0)


@scenario(values=True, dtypes="default")
def test_absent_device(amp: Amp) -> None:
    """A scaler for CUDA where there is none warns that it is disabled, however the device is written (__init__)."""
    if torch.cuda.is_available():
        amp.expect("whether a scaler for CUDA is enabled", torch.amp.GradScaler("cuda").is_enabled(), True)
        return
    made: Any
    for given, made in (("cuda", partial(torch.amp.GradScaler, "cuda")), (None, torch.amp.GradScaler)):
        scaler = amp.warns(
            f"GradScaler({given!r})",
            UserWarning,
            "CUDA is not available.  Disabling.",
            made,
        )
        amp.expect("whether it is enabled", scaler.is_enabled(), False)
    amp.quiet("GradScaler('cuda', enabled=False)", lambda: torch.amp.GradScaler("cuda", enabled=False))


@pytest.mark.parametrize("given", ["with_an_index", "as_a_device"])
@scenario(values=True, dtypes="default", types=("cpu",))
def test_absent_device_in_other_words(amp: Amp, given: str) -> None:
    """CUDA that is absent disables the scaler in whatever words it is named (amp.html: `type` of a torch.device)."""
    if torch.cuda.is_available():
        amp.expect("CUDA", torch.amp.GradScaler("cuda:0").is_enabled(), True)
        return
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scaler = torch.amp.GradScaler("cuda:0" if given == "with_an_index" else torch.device("cuda"))  # type: ignore[arg-type]
    amp.expect("whether it is enabled", scaler.is_enabled(), False)


@scenario(values=True, dtypes="default", types=("cpu",))
def test_unknown_device(amp: Amp) -> None:
    """A device type that there is not is refused, as torch.autocast refuses it (amp.html: `type` of a torch.device)."""
    amp.raises("GradScaler('cpux')", RuntimeError, "cpux", lambda: torch.amp.GradScaler("cpux"))


@scenario(values=True, dtypes="default")
def test_does_nothing(amp: Amp) -> None:
    """With enabled=False step is the optimizer's own and all other calls do nothing (amp.html: enabled)."""
    weight = torch.nn.Parameter(torch.ones(2, device=amp.type))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler: Any = torch.amp.GradScaler(amp.type, growth_factor=0.5, backoff_factor=2.0, enabled=False)
    loss, outputs = weight.sum(), [weight]
    amp.expect("whether scale returned what it was given", scaler.scale(loss) is loss, True)
    amp.expect("whether scale returned the list it was given", scaler.scale(outputs) is outputs, True)
    amp.expect("what scale makes of no output", scaler.scale("loss"), "loss")
    loss.backward()
    for turn in (1, 2):
        amp.expect(f"unscale_, time {turn}", scaler.unscale_(optimizer), None)
    amp.expect("gradient after it", amp.values(weight.grad), [1.0, 1.0])  # type: ignore[arg-type]
    amp.expect("step with a closure", scaler.step(optimizer, closure=lambda: 3.5), 3.5)
    weight.grad = torch.full_like(weight, float("inf"))
    amp.expect("step with a gradient that is infinite", scaler.step(optimizer), None)
    amp.expect("weight after both", amp.values(weight), [-float("inf")] * 2)
    for given in (None, 2.0, "no scale"):
        amp.expect(f"update({given!r})", scaler.update(given), None)
    amp.expect("scale", (scaler.get_scale(), scaler.is_enabled(), scaler.state_dict()), (1.0, False, {}))


@pytest.mark.parametrize("what", ["growth_factor", "backoff_factor", "growth_interval"])
@scenario(values=True, dtypes="default")
def test_getters_where_disabled(amp: Amp, what: str) -> None:
    """A scaler that is not enabled still says what it was made with (amp.html: other methods become no-ops)."""
    given: dict[str, Any] = {"growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 7}
    scaler = torch.amp.GradScaler(amp.type, enabled=False, **given)
    try:
        amp.expect(f"get_{what}()", getattr(scaler, f"get_{what}")(), given[what])
    except AttributeError as error:
        amp.expect(f"what get_{what}() raised", str(error), "")


class _Counting(torch.amp.GradScaler):
    """Counts the calls of what a subclass may override."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.calls: list[str] = []

    def scale(self, outputs: Any) -> Any:
        self.calls.append("scale")
        return super().scale(outputs)

    def unscale_(self, optimizer: Any) -> None:
        self.calls.append("unscale_")
        super().unscale_(optimizer)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls.append("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        self.calls.append("update")
        super().update(new_scale)


@scenario(values=True, dtypes="default")
def test_subclass(amp: Amp) -> None:
    """A subclass is the scaler it is made of, and step asks its own unscale_ (step: "internally invokes unscale_")."""
    scaler = _Counting(amp.type, init_scale=4.0, growth_interval=1)
    amp.expect("scale after an iteration", _trained(scaler, amp), 8.0)
    amp.expect("scale after an overflow", _trained(scaler, amp, float("nan")), 4.0)
    amp.expect("what was called", scaler.calls, ["scale", "step", "unscale_", "update"] * 2)
