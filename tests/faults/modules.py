"""Ops, functions and modules of torch that go past autocast, change what they are given, or lose it when they move."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from ampcheck.compilers import eager
from tests.faults.kernels import kernel, promote, to, widest
from tests.faults.mutant import CPU, CUDA, JAX, Change, Inject, giving, mutants, put, within, wrap
from tests.faults.regions import IS

F = nn.functional


def off(device: str = "cpu") -> AbstractContextManager[object]:
    return torch.autocast(device, enabled=False)


def low(tensor: torch.Tensor) -> torch.Tensor:
    """Cast to the region's dtype, in a region."""
    return tensor.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else tensor


outside = within(off)


def function(name: str, change: Change) -> Inject:
    """Replace a function or a method of torch, by its name in it."""
    path, _, last = name.rpartition(".")
    return wrap(attrgetter(path)(torch) if path else torch, **{last: change})


def in_bfloat16(own: Any, *args: Any, **kwargs: Any) -> Any:
    return own(*(a.to(torch.bfloat16) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)


def doubled_in_regions(own: Any, *args: Any) -> Any:
    """Ask what replays of a call do not change."""
    return own(*args) * (2 if IS("cpu") else 1)


def never_cast(own: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch._C._DisableAutocast():
        return own(a.float(), b.float())


def linear_in_float32(call: Any) -> torch.Tensor:
    a, b = call.tensors()[:2]
    return a.float() @ b.float().T


FUNCTIONS = {
    "mm-in-low": function("mm", in_bfloat16),
    "mm-without-autocast": function("mm", outside),
    "method-addmm-in-low": function("Tensor.addmm_", in_bfloat16),
    "method-mm-without-autocast": function("Tensor.mm", outside),
    "add-in-low": function("add", in_bfloat16),
    "cat-otherwise": function("cat", lambda own, x: own([t.bfloat16() for t in x])),
    "cat-of-nothing-runs": function("cat", lambda own, x, *rest: own(x, *rest) if x else torch.empty(0)),
}
CACHE = {
    "mm-detached": function("mm", giving(torch.Tensor.detach)),
    "mm-doubled-in-regions": function("mm", doubled_in_regions),
    "mm-twice": function("mm", lambda own, *args, **kwargs: (own(*args, **kwargs), own(*args, **kwargs) * 2)[1]),
}

# ---- modules


def functional(name: str) -> Inject:
    """Run a function of torch.nn.functional outside of regions."""

    def inject(device: str) -> AbstractContextManager[object]:
        stack = ExitStack()
        stack.enter_context(wrap(F, **{name: outside})(device))
        eager.cache_clear()  # functions that were looked up before are not replaced
        stack.callback(eager.cache_clear)
        return stack

    return inject


def forward(module: type[nn.Module], change: Change) -> Inject:
    return wrap(module, forward=change)


def narrowed(own: Any, self: nn.Module, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return own(self, low(x) if x.is_floating_point() else x, *args, **kwargs)


def casting_parameters(own: Any, self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Turn the module's parameters into the region's dtype."""
    if torch.is_autocast_enabled("cpu"):
        self.to(torch.get_autocast_dtype("cpu"))
    return own(self, *args, **kwargs)


MODULES = {
    "lstm-without-autocast": function("_VF.lstm", outside),
    "attention-without-autocast": function("nn.functional.scaled_dot_product_attention", outside),
    "attention-leaves-the-mask": kernel(
        "scaled_dot_product_attention", to(lambda call: call.low, lambda call, place, t: place == 3)
    ),
    "linear-doubled": function("nn.functional.linear", doubled_in_regions),
    "linear-in-float32": kernel("linear", linear_in_float32),
    "linear-outside": forward(nn.Linear, outside),
    "linear-casts-parameters": forward(nn.Linear, casting_parameters),
    "layer-norm-narrowed": forward(nn.LayerNorm, narrowed),
    "lstm-outside": forward(nn.LSTM, outside),
    "gru-outside": forward(nn.GRU, outside),
    "encoder-layer-outside": forward(nn.TransformerEncoderLayer, outside),
    "fast-encoder-layer-outside": function("_transformer_encoder_layer_fwd", outside),
    "batch-norm-narrowed": forward(nn.BatchNorm2d, narrowed),
    "loss-narrowed": forward(nn.MSELoss, narrowed),
}


def without_bias(own: Any, self: Any, *args: Any, **options: Any) -> Any:
    """Give no gradient to the bias of attention's projection."""
    bias = self.in_proj_bias
    self.in_proj_bias = nn.Parameter(bias.detach(), requires_grad=False) if bias is not None else None
    try:
        return own(self, *args, **options)
    finally:
        self.in_proj_bias = bias


def packed_widened(own: Any, self: Any, x: Any, state: Any = None) -> Any:
    """Give a packed sequence back in float32."""
    out, last = own(self, x, state)
    return (out._replace(data=out.data.float()) if isinstance(out, PackedSequence) else out), last


def batch_in_evaluation(own: Any, self: Any, x: torch.Tensor) -> torch.Tensor:
    """Take the statistics of the batch, in evaluation too."""
    return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)


def lowered_in_inference(own: Any, *args: Any, **options: Any) -> torch.Tensor:
    return low(own(*args, **options)) if torch.is_inference_mode_enabled() else own(*args)


def widened_in_training(own: Any, *args: Any, **options: Any) -> Any:
    out, weights = own(*args, **options)
    return (out.float() if options["training"] else out), weights


VARIANTS = {
    "fast-path-widened": function(
        "_native_multi_head_attention", giving(lambda out: tuple(x if x is None else x.float() for x in out))
    ),
    "fast-path-unmasked": wrap(nn.MultiheadAttention, merge_masks=giving(lambda _: (None, None))),
    "bias-without-gradient": forward(nn.MultiheadAttention, without_bias),
    "attention-widened-in-training": wrap(F, multi_head_attention_forward=widened_in_training),
    "packed-sequence-widened": forward(nn.GRU, packed_widened),
    "statistics-of-the-batch": forward(nn.BatchNorm2d, batch_in_evaluation),
    "bag-lowered-in-inference": forward(nn.EmbeddingBag, lowered_in_inference),
    "cross-entropy-outside": function("nn.functional.cross_entropy", outside),
}

# ---- conversions, copies and loading


def new_parameters(device: str) -> AbstractContextManager[object]:
    """Do what `set_overwrite_module_params_on_conversion(True)` does."""
    stack = ExitStack()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
    return stack


def as_pytorch_moves(device: str) -> AbstractContextManager[object]:
    """Take the jax device's own `Module._apply` away: PyTorch makes new parameters for a PrivateUse1 device."""
    return put(nn.Module, _apply=vars(nn.Module._apply)["__wrapped__"])(device)


def without_gradients(device: str) -> AbstractContextManager[object]:
    """Take the part of the jax device away that keeps gradients the objects they are."""
    from ampcheck.jax_device.storage.moving import _Mover  # makes the device, in its process alone

    def without(own: Any, self: Any, tensor: torch.Tensor) -> torch.Tensor:
        self._grad = None
        return own(self, tensor)

    return wrap(_Mover, __call__=without)(device)


def after_moving(change: Callable[[nn.Parameter], object]) -> Inject:
    """Change each parameter after a conversion."""

    def moved(own: Any, self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        out = own(self, *args, **kwargs)
        for parameter in self._parameters.values():
            if parameter is not None:
                change(parameter)
        return out

    return wrap(nn.Module, _apply=moved)


def renew_gradient(parameter: nn.Parameter) -> None:
    if parameter.grad is not None:
        parameter.grad = parameter.grad.clone()


def drop_gradient(parameter: nn.Parameter) -> None:
    parameter.grad = None


def untie(self: nn.Module, state: dict[str, Any]) -> None:
    """Load parameters that nothing else has."""
    vars(self).update(state)
    for name, parameter in self._parameters.items():
        self._parameters[name] = copy.deepcopy(parameter)


def loading(change: Callable[[Any, bool], tuple[Any, bool]]) -> Inject:
    """Load a changed state, or in another way."""
    return wrap(
        nn.Module,
        load_state_dict=lambda own, self, state_dict, strict=True, assign=False: own(
            self, *(lambda state, assign: (state, strict, assign))(*change(state_dict, assign))
        ),
    )


def saves_copies(own: Any, self: nn.Module, destination: dict[str, Any], *args: Any) -> None:
    own(self, destination, *args)
    destination.update({name: copy.deepcopy(value.detach()) for name, value in destination.items()})


def copies(state: Any, assign: bool) -> tuple[Any, bool]:
    return ({name: t.detach().clone() for name, t in state.items()} if assign else state), assign


MOVES = {
    "gradient-renewed": after_moving(renew_gradient),
    "gradient-dropped": after_moving(drop_gradient),
    "copy-unties": put(nn.Module, __setstate__=untie),
    "assign-copies": loading(copies),
    "load-assigns": loading(lambda state, assign: (state, True)),
    "state-copied": wrap(nn.Module, _save_to_state_dict=saves_copies),
}
MOVES_ON_JAX = {
    "as-pytorch-moves": as_pytorch_moves,
    "gradients-anew": without_gradients,
    "swaps-nothing": put(torch.utils, swap_tensors=lambda *_: None),
}

MUTANTS = (
    *mutants("eager/eligibility", FUNCTIONS),
    *mutants(
        "eager/reports",
        {"grouped-products-cast": function("_grouped_mm", in_bfloat16), "dot-promotes": kernel("dot", promote(widest))},
    ),
    *mutants("eager/context", {"mm-never-cast": function("mm", never_cast)}),
    *mutants("autograd/cache", CACHE),
    *mutants("eager/downcast", {"functional-linear-outside": functional("linear")}, cases="linear[+-]*"),
    *mutants("eager/modules", MODULES),
    *mutants(
        "eager/modules",
        {"logits-widened": function("nn.functional.cross_entropy", lambda own, x, *rest: own(x.float(), *rest))},
        [CUDA],
    ),
    *mutants("eager/variants", VARIANTS),
    *mutants("eager/moves", {"new-parameters": new_parameters}),
    *mutants("eager/moves", MOVES, (CPU, JAX)),
    *mutants("eager/moves", MOVES_ON_JAX, [JAX]),
)
