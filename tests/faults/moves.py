"""Conversions, copies and loading of modules that leave parameters behind or untie them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import nn

from tests.faults.fault import Fault, Inject, seen_in
from tests.faults.regions import replaced

_LOAD, _SAVE = nn.Module.load_state_dict, nn.Module._save_to_state_dict
UNTIED, STILL = "names without the", "is what it was before"
OTHERS = "parameters that are other objects"
LEFT = {
    "keeps_parameters": OTHERS,
    "optimizer_made_before": STILL,
    "hooks_stay": "what the hook after accumulation saw: got []",
    "parameters_that_others_hold": "names without the shared weight",
    "recurrent_module": "got [False, False, False, False]",
    "parametrized_module": "whether the originals are the object it was: got [False, False]",
}
"""What scenarios say where a module makes new parameters when it moves."""


def new_parameters() -> AbstractContextManager[object]:
    """What `set_overwrite_module_params_on_conversion(True)` does."""
    stack = ExitStack()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
    return stack


def as_pytorch_moves() -> AbstractContextManager[object]:
    """The jax device without its own `Module._apply`: PyTorch makes new parameters for a PrivateUse1 device."""
    return replaced(nn.Module, _apply=vars(nn.Module._apply)["__wrapped__"])


def without_gradients() -> AbstractContextManager[object]:
    """The jax device without the part that keeps gradients the objects they are."""
    from ampcheck.jax_device.storage.moving import _Mover

    whole = _Mover.__call__

    def wrong(self: Any, tensor: torch.Tensor) -> torch.Tensor:
        self._grad = None
        return whole(self, tensor)

    return replaced(_Mover, __call__=wrong)


def after_each(change: Callable[[nn.Parameter], None]) -> Callable[[], AbstractContextManager[object]]:
    """A conversion that then changes each parameter."""

    def plant() -> AbstractContextManager[object]:
        own = nn.Module._apply

        def wrong(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
            out = own(self, *args, **kwargs)
            for parameter in self._parameters.values():
                if parameter is not None:
                    change(parameter)
            return out

        return replaced(nn.Module, _apply=wrong)

    return plant


def _renew_gradient(parameter: nn.Parameter) -> None:
    if parameter.grad is not None:
        parameter.grad = parameter.grad.clone()


def _drop_gradient(parameter: nn.Parameter) -> None:
    parameter.grad = None


def _round(parameter: nn.Parameter) -> None:
    if not nn.parameter.is_lazy(parameter):
        parameter.data = parameter.data.bfloat16().to(parameter.dtype)


def _forget_attributes(parameter: nn.Parameter) -> None:
    vars(parameter).clear()


def _each_its_own(self: nn.Module, state: dict[str, Any]) -> None:
    """`Module.__setstate__`, with parameters that nothing else has."""
    vars(self).update(state)
    for name, parameter in self._parameters.items():
        self._parameters[name] = copy.deepcopy(parameter)


def copying_apart() -> AbstractContextManager[object]:
    """Modules that are copied or loaded without what their parts share."""
    return replaced(nn.Module, __setstate__=_each_its_own)


def _loads(change: Callable[[Any, bool], tuple[Any, bool]]) -> Callable[..., Any]:
    """`load_state_dict` of a changed state, or another way."""

    def wrong(self: nn.Module, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        state, assign = change(state_dict, assign)
        return _LOAD(self, state, strict, assign)

    return wrong


def _saves_copies(self: nn.Module, destination: dict[str, Any], *args: Any) -> None:
    _SAVE(self, destination, *args)
    destination.update({name: copy.deepcopy(value.detach()) for name, value in destination.items()})


def swapping_nothing() -> AbstractContextManager[object]:
    """A swap of two tensors that leaves them as they are."""
    return replaced(torch.utils, swap_tensors=lambda *_: None)


def fault(name: str, scenario: str, says: str, plant: Inject, device: str = "cpu") -> Fault:
    """A fault that a scenario must notice."""
    return Fault(name, "moves", plant, (says,), device=device, op=scenario)


def method(name: str, scenario: str, says: str, **wrong: Any) -> Fault:
    """A fault that replaces a method of modules."""
    return fault(name, scenario, says, lambda: replaced(nn.Module, **wrong))


_CLONED = _loads(lambda state, assign: ({k: v.detach().clone() for k, v in state.items()} if assign else state, assign))
FAULTS = (
    fault("new-lazy-parameters", "lazy_module", "Attempted to use an uninitialized parameter", new_parameters),
    *seen_in("new-parameters", new_parameters, {f"eager/moves/{name}": says for name, says in LEFT.items()}),
    fault(
        "gradient-renewed",
        "gradients_move",
        "the gradient is the object it was: got False",
        after_each(_renew_gradient),
    ),
    fault("gradient-dropped", "keeps_values", "whether there is a gradient: got False", after_each(_drop_gradient)),
    fault("values-rounded", "keeps_values", "head.weight: differs by", after_each(_round)),
    fault(
        "attributes-forgotten", "keeps_parameters", "attribute of the weight: got None", after_each(_forget_attributes)
    ),
    *seen_in(
        "copy-unties", copying_apart, {f"eager/moves/copies-{how}": UNTIED for how in ("deep_copy", "pickled", "saved")}
    ),
    method("assign-copies", "assigned", "after a step: differs by", load_state_dict=_CLONED),
    method("load-assigns", "loaded", UNTIED, load_state_dict=_loads(lambda state, assign: (state, True))),
    method("state-copied", "buffers", "batches in what was saved before", _save_to_state_dict=_saves_copies),
)

JAX = (
    *seen_in("as-pytorch-moves", as_pytorch_moves, {f"eager/moves/{name} on jax": says for name, says in LEFT.items()}),
    fault("lazy-as-pytorch-moves", "lazy_module", "whether it is still lazy: got False", as_pytorch_moves, "jax"),
    fault("bias-as-pytorch-moves", "scaler_and_accumulation", "the bias: differs by", as_pytorch_moves, "jax"),
    fault("gradients-anew", "gradients_move", "the gradient is the object it was: got False", without_gradients, "jax"),
    fault("swaps-nothing", "swapped", "device type: got 'cpu'", swapping_nothing, "jax"),
    *(each.on_jax() for each in FAULTS[len(LEFT) + 1 :]),
)
"""Those that the jax device must notice."""
