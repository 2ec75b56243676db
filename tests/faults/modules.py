"""Ops, functions and modules of torch that go past autocast, change what they are given, or lose it when they move."""

from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from tests.faults.kernels import kernel, promote, to, widest
from tests.faults.mutant import Change, Inject, giving, mutants, put, within, wrap
from tests.faults.state import IS


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


# ---- modules


def forward(module: type[nn.Module], change: Change) -> Inject:
    return wrap(module, forward=change)


def narrowed(own: Any, self: nn.Module, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return own(self, low(x) if x.is_floating_point() else x, *args, **kwargs)


def lowered_in_inference(own: Any, *args: Any, **options: Any) -> torch.Tensor:
    return low(own(*args, **options)) if torch.is_inference_mode_enabled() else own(*args)


MUTANTS = mutants(
    {
        "eager/eligibility": {
            "mm-in-low": function("mm", in_bfloat16),
            "mm-without-autocast": function("mm", outside),
            "method-addmm-in-low": function("Tensor.addmm_", in_bfloat16),
            "method-mm-without-autocast": function("Tensor.mm", outside),
            "add-in-low": function("add", in_bfloat16),
            "cat-otherwise": function("cat", lambda own, x: own([t.bfloat16() for t in x])),
            "cat-of-nothing-runs": function("cat", lambda own, x, *rest: own(x, *rest) if x else torch.empty(0)),
        },
        "eager/reports": {
            "grouped-products-cast": function("_grouped_mm", in_bfloat16),
            "dot-promotes": kernel("dot", promote(widest)),
        },
        "eager/context": {"mm-never-cast": function("mm", never_cast)},
        "autograd/cache": {
            "mm-detached": function("mm", giving(torch.Tensor.detach)),
            "mm-doubled-in-regions": function("mm", doubled_in_regions),
            "mm-twice": function(
                "mm", lambda own, *args, **kwargs: (own(*args, **kwargs), own(*args, **kwargs) * 2)[1]
            ),
        },
        "eager/modules": {
            "lstm-without-autocast": function("_VF.lstm", outside),
            "attention-without-autocast": function("nn.functional.scaled_dot_product_attention", outside),
            "attention-leaves-the-mask": kernel(
                "scaled_dot_product_attention", to(lambda call: call.low, lambda call, place, t: place == 3)
            ),
            "linear-doubled": function("nn.functional.linear", doubled_in_regions),
            "linear-in-float32": kernel("linear", linear_in_float32),
            "linear-outside": forward(nn.Linear, outside),
            "layer-norm-narrowed": forward(nn.LayerNorm, narrowed),
            "lstm-outside": forward(nn.LSTM, outside),
            "gru-outside": forward(nn.GRU, outside),
            "fast-encoder-layer-outside": function("_transformer_encoder_layer_fwd", outside),
            "batch-norm-narrowed": forward(nn.BatchNorm2d, narrowed),
            "loss-narrowed": forward(nn.MSELoss, narrowed),
        },
        "eager/modules virtual:cuda": {
            "logits-widened": function("nn.functional.cross_entropy", lambda own, x, *rest: own(x.float(), *rest)),
        },
        "eager/variants": {
            "bag-lowered-in-inference": forward(nn.EmbeddingBag, lowered_in_inference),
            "cross-entropy-outside": function("nn.functional.cross_entropy", outside),
        },
        "eager/moves jax": {"swaps-nothing": put(torch.utils, swap_tensors=lambda *_: None)},
    }
)
