"""Rule variants: a module of many ops keeps its dtype whatever its optional arguments, its mode and its gradients.

The promise, its sources, and what is compared: docs/coverage/variants.md.
"""

import math
import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ampcheck.checks.relations import assert_whole
from ampcheck.observe.recorder import tensors
from ampcheck.runner.suite import Amp, Product, other_than, scenario, where

pytestmark = pytest.mark.rule("variants")

MODES = ("train", "eval", "eval_off", "eval_inference")
"""Training or evaluation; gradients recorded, `no_grad`, and `inference_mode`."""
HARDWARE = ("cpu", "cuda", "xpu", "mps", "mtia")
"""Device types whose kernels are compiled; what compiles a program for each call runs a few of the cells."""
SIZE, HEADS, LENGTH = 8, 2, 4
Tensors = dict[str, torch.Tensor]
Formula = Callable[[Tensors, list[torch.Tensor]], list[torch.Tensor]]
Call = Callable[[list[torch.Tensor]], object]


# ---- the reference
def _op(amp: Amp, name: str, function: Callable[..., torch.Tensor], *inputs: object) -> torch.Tensor:
    """Call a function on what autocast makes of its tensors. float64 is not eligible, so it stays."""
    policy = amp.policies.get(name, "")
    if not policy and len({x.dtype for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point()}) > 1:
        amp.unsupported(f"{amp.name} does not promise policies that the case needs: {name}")
    wanted = {"downcast": amp.dtype, "upcast": torch.float32, "optdtype": torch.float32}.get(policy)
    return function(*(_cast(each, wanted) for each in inputs))


def _cast(value: object, dtype: torch.dtype | None) -> object:
    if dtype is None or not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value if value.dtype == torch.float64 else value.to(dtype)


def _linear(amp: Amp, held: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    return _op(amp, "linear", functional.linear, x, held[f"{name}weight"], held.get(f"{name}bias"))


def _assert_as_formula(
    amp: Amp,
    module: nn.Module,
    call: Call,
    formula: Formula,
    inputs: list[torch.Tensor],
    mode: str,
    bound: float = 16.0,
) -> None:
    """Compare a call in a region with a formula: dtypes, values and, where they are recorded, gradients.

    `bound`: how far values may be from those of the formula, in roundings of the lower precision.
    """
    recorded = mode in ("train", "eval")
    module.train(mode.startswith("train")).requires_grad_(recorded)
    for dtype in (amp.dtype, amp.other) if amp.type in HARDWARE else ():
        assert_whole(amp, module, lambda low: call([low(x) for x in inputs]), dtype, bound)
    held = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    held_here, host = {name: amp.host(tensor) for name, tensor in held.items()}, amp.host
    wanted = [each.dtype for each in formula(held_here, [host(tensor) for tensor in inputs])]
    made = {"eval_off": torch.no_grad, "eval_inference": torch.inference_mode}.get(mode, torch.enable_grad)
    outputs, fast = {}, torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast or amp.type in HARDWARE)  # torchax switches it off for all
    with warnings.catch_warnings(), made():
        warnings.simplefilter("ignore")  # a module's advice on how to run faster
        try:
            with amp.region():
                outputs["a plain call"] = list(tensors(call(inputs)))
                watched = amp.observe(lambda: call(inputs))
        except Exception as error:  # the formula raises nothing
            amp.note_error("a call in the region", error)
            return
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
    if watched.error is not None:
        amp.note_error("a watched call", watched.error)
    else:
        outputs["a watched call"] = watched.outputs
    for which, got in outputs.items():
        amp.assert_equal(f"dtypes of {which}", [each.dtype for each in got], wanted)
    if amp.differences:
        return
    exact = {name: _exact(amp, tensor) for name, tensor in held.items()}
    for tensor in exact.values():
        tensor.requires_grad_(recorded and tensor.is_floating_point())
    right = formula(exact, [_exact(amp, tensor) for tensor in inputs])
    bound *= torch.finfo(amp.dtype).eps
    for which, got in outputs.items():
        for place, (one, want) in enumerate(zip(got, right, strict=True)):
            amp.assert_close(f"output {place} of {which}", one.double(), want.detach(), bound)
    if not right[0].requires_grad:
        return
    outputs["a plain call"][0].float().square().sum().backward()
    right[0].square().sum().backward()
    for name, parameter in module.named_parameters():
        want = exact[name].grad
        amp.assert_equal(f"whether {name} has a gradient", parameter.grad is not None, want is not None)
        if parameter.grad is not None and want is not None:
            amp.assert_equal(f"dtype of the gradient of {name}", parameter.grad.dtype, parameter.dtype)
            top = 1 + want.abs().max()
            amp.assert_close(f"gradient of {name}", parameter.grad.double() / top.item(), want / top, 2 * bound)


def _like(module: nn.Module, mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return a mask of numbers in the dtype of a module."""
    return mask if mask is None or mask.dtype == torch.bool else mask.to(next(module.parameters()).dtype)


def _exact(amp: Amp, tensor: torch.Tensor) -> torch.Tensor:
    host = amp.host(tensor)
    return host.double() if host.is_floating_point() else host


def _given(amp: Amp, given: str, *shape: int) -> torch.Tensor:
    """Return a tensor of values around zero, in float32 or the lower precision."""
    return (amp.rand(*shape) * 4 - 2).to(amp.dtype if given == "low" else torch.float32)


# ---- attention
ATTENTION = Product(
    {
        "made": ("plain", "unbiased", "sized", "extended"),
        "mask": ("none", "boolean", "additive", "causal", "per_head", "padded", "padded_add", "both"),
        "weights": ("skipped", "mean", "each"),
        "layout": ("batch", "length", "single"),
        "mode": MODES,
        "given": ("wide", "low"),
    }
)
BLOCKED = ("boolean", "causal", "per_head", "both")


def _masks(mask: str, batch: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return an attention mask and a padding mask, on the CPU."""
    blocked = torch.ones(LENGTH, LENGTH).tril() == 0
    last = torch.arange(batch * LENGTH).reshape(batch, LENGTH) == batch * LENGTH - 1
    attention = blocked if mask in BLOCKED else torch.where(blocked, -math.inf, 0.5) if mask == "additive" else None
    padding = (
        last if mask in ("padded", "both") else torch.where(last, -math.inf, 0.25) if mask == "padded_add" else None
    )
    if attention is not None and mask == "per_head":
        attention = attention.expand(batch * HEADS, -1, -1)
    return attention, padding


def _added(scores: torch.Tensor, mask: torch.Tensor | None, shape: tuple[int, ...]) -> torch.Tensor:
    """Scores (batch, heads, length, keys) with a mask; keys that attention adds itself are not masked."""
    if mask is None:
        return scores
    mask = torch.where(mask, -math.inf, 0.0) if mask.dtype == torch.bool else mask
    mask = functional.pad(mask.reshape(shape), (0, scores.shape[-1] - LENGTH))
    return scores + mask.to(device=scores.device, dtype=scores.dtype)


def _attend(
    amp: Amp, held: Tensors, name: str, inputs: tuple[torch.Tensor, ...], masks: tuple[torch.Tensor | None, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multi-head attention of (batch, length, size), and the weights of each head (nn.MultiheadAttention)."""
    whole, bias = held.get(f"{name}in_proj_weight"), held.get(f"{name}in_proj_bias")
    weights = [held[f"{name}{one}_proj_weight"] for one in "qkv"] if whole is None else whole.chunk(3)
    biases = [None] * 3 if bias is None else bias.chunk(3)
    parts = zip(inputs, weights, biases, strict=True)
    q, k, v = (_op(amp, "linear", functional.linear, *part) for part in parts)
    if f"{name}bias_k" in held:  # a learned key and value, and zeros
        k, v = (
            torch.cat(
                [each, each.new_ones(1) * held[f"{name}bias_{one}"].expand(len(each), 1, -1).to(each), each[:, :1] * 0],
                1,
            )
            for one, each in (("k", k), ("v", v))
        )
    q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v))
    scores = _op(amp, "matmul", torch.matmul, q / math.sqrt(q.shape[-1]), k.transpose(-2, -1))
    per_head = masks[0] is not None and masks[0].dim() == 3
    scores = _added(scores, masks[0], (-1, HEADS if per_head else 1, LENGTH, LENGTH))
    scores = _added(scores, masks[1], (-1, 1, 1, LENGTH))
    shares = _op(amp, "softmax.int", torch.softmax, scores, -1)
    out = _op(amp, "matmul", torch.matmul, shares, v).transpose(1, 2).flatten(-2)
    return _linear(amp, held, f"{name}out_proj.", out), shares


@scenario(ATTENTION, values=True, dtypes="default", types=HARDWARE)
def test_attention(amp: Amp, made: str, mask: str, weights: str, layout: str, mode: str, given: str) -> None:
    """Attention follows its formula with any mask, layout and mode (nn.MultiheadAttention)."""
    extended = {"add_bias_kv": True, "add_zero_attn": True}
    chosen = {"unbiased": {"bias": False}, "sized": {"vdim": 6}, "extended": extended}
    options = {"batch_first": layout == "batch", **chosen.get(made, {})}
    module = amp.module(lambda: nn.MultiheadAttention(SIZE, HEADS, **options))
    batch = 1 if layout == "single" else 2
    masks = _masks(mask, batch)
    there = [None if each is None else each.to(amp.type) for each in masks]
    if layout == "single" and there[1] is not None:
        there[1] = there[1][0]

    def call(inputs: list[torch.Tensor]) -> object:
        x = inputs[0][0] if layout == "single" else inputs[0] if layout == "batch" else inputs[0].transpose(0, 1)
        out, shares = module(
            x,
            x,
            x[..., :6] if made == "sized" else x,
            attn_mask=_like(module, there[0]),
            key_padding_mask=_like(module, there[1]),
            need_weights=weights != "skipped",
            average_attn_weights=weights == "mean",
            is_causal=mask == "causal",
        )
        out = out[None] if layout == "single" else out if layout == "batch" else out.transpose(0, 1)
        return out, (shares[None] if layout == "single" and shares is not None else shares)

    def formula(held: Tensors, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        x = inputs[0]
        out, shares = _attend(amp, held, "", (x, x, x[..., :6] if made == "sized" else x), masks)
        return [out, *([] if weights == "skipped" else [shares.mean(1) if weights == "mean" else shares])]

    _assert_as_formula(amp, module, call, formula, [_given(amp, given, batch, LENGTH, SIZE)], mode)


# ---- transformer layers and stacks
TRANSFORMER = Product(
    {
        "made": ("encoder_layer", "encoder", "decoder_layer", "decoder"),
        "norm": ("before", "after"),
        "activation": ("relu", "gelu"),
        "mask": ("none", "boolean", "additive", "causal", "padded", "both"),
        "layout": ("batch", "length"),
        "mode": MODES,
        "given": ("wide", "low"),
    }
)


def _norm(amp: Amp, held: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    """nn.LayerNorm of the parameters under a name; its result has the dtype of what the op is given."""
    return _op(amp, "layer_norm", _layer_norm, x, held[f"{name}weight"], held[f"{name}bias"])


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, (SIZE,), weight.to(x), bias.to(x))


def _layer(
    amp: Amp,
    held: Tensors,
    name: str,
    x: torch.Tensor,
    memory: torch.Tensor | None,
    how: tuple[str, str],
    masks: object,
) -> torch.Tensor:
    """Return a layer of a transformer, of a decoder where there is a memory ("Attention Is All You Need", 3.1)."""

    attend = partial(_attend, amp, held)
    linear, activation = partial(_linear, amp, held), getattr(functional, how[1])
    parts = [
        lambda x: attend(f"{name}self_attn.", (x, x, x), masks)[0],
        lambda x: attend(f"{name}multihead_attn.", (x, memory, memory), (None, None))[0],
        lambda x: linear(f"{name}linear2.", activation(linear(f"{name}linear1.", x))),
    ]
    for place, part in enumerate(parts if memory is not None else parts[::2]):
        norm = f"{name}norm{place + 1}."
        x = x + part(_norm(amp, held, norm, x)) if how[0] == "before" else _norm(amp, held, norm, x + part(x))
    return x


@scenario(TRANSFORMER, values=True, dtypes="default", types=HARDWARE)
def test_transformer(
    amp: Amp, made: str, norm: str, activation: str, mask: str, layout: str, mode: str, given: str
) -> None:
    """Layers and stacks follow their formula, fast paths too (nn.TransformerEncoderLayer, nn.TransformerEncoder).

    A stack may leave out padding, so what it gives there is not looked at.
    """
    decodes, stacked = made.startswith("decoder"), not made.endswith("layer")
    kind = nn.TransformerDecoderLayer if decodes else nn.TransformerEncoderLayer
    options = {"activation": activation, "norm_first": norm == "before", "batch_first": layout == "batch"}

    def make() -> nn.Module:
        layer = kind(SIZE, HEADS, 16, 0.0, **options)
        stack = nn.TransformerDecoder if decodes else nn.TransformerEncoder
        return stack(layer, 2) if stacked else layer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a stack says when it has no fast path
        module = amp.module(make)
    masks = _masks(mask, 2)
    there = [None if each is None else each.to(amp.type) for each in masks]
    of = "tgt" if decodes else "src"
    named = {f"{of}_key_padding_mask": there[1], f"{of}_is_causal" if decodes else "is_causal": mask == "causal"}
    named["mask" if stacked and not decodes else f"{of}_mask"] = there[0]
    kept = LENGTH - 1 if there[1] is not None else LENGTH

    def call(inputs: list[torch.Tensor]) -> object:
        turned = [each if layout == "batch" else each.transpose(0, 1) for each in inputs]
        out = module(
            *turned, **{name: each if isinstance(each, bool) else _like(module, each) for name, each in named.items()}
        )
        return (out if layout == "batch" else out.transpose(0, 1))[:, :kept]

    def formula(held: Tensors, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        x, memory = inputs[0], inputs[1] if decodes else None
        for name in ("layers.0.", "layers.1.") if stacked else ("",):
            x = _layer(amp, held, name, x, memory, (norm, activation), masks)
        return [x[:, :kept]]

    inputs = [_given(amp, given, 2, LENGTH, SIZE) for _ in range(1 + decodes)]
    _assert_as_formula(amp, module, call, formula, inputs, mode, 64.0)


# ---- recurrent networks
RECURRENT = Product(
    {
        "kind": ("RNN_tanh", "RNN_relu", "LSTM", "GRU"),
        "made": ("plain", "unbiased", "two_layers", "both_ways", "projected"),
        "layout": ("length", "batch", "single", "packed", "packed_unsorted"),
        "start": ("none", "wide", "low"),
        "mode": MODES,
        "given": ("wide", "low"),
    },
    {"only an LSTM has proj_size": where(made="projected", kind=other_than("LSTM"))},
)


def _step(
    amp: Amp, held: Tensors, kind: str, end: str, x: torch.Tensor, state: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """One step of a layer (the formulas of nn.RNN, nn.LSTM and nn.GRU)."""
    a, b = (
        _op(amp, "linear", functional.linear, each, held[f"weight_{of}h_{end}"], held.get(f"bias_{of}h_{end}"))
        for of, each in (("i", x), ("h", state[0]))
    )
    if kind == "LSTM":
        i, f, g, o = (a + b).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        weight = held.get(f"weight_hr_{end}")
        return (h if weight is None else _op(amp, "linear", functional.linear, h, weight)), c
    if kind == "GRU":
        (r, z, n), (s, u, m) = a.chunk(3, -1), b.chunk(3, -1)
        z = (z + u).sigmoid()
        return ((1 - z) * (n + (r + s).sigmoid() * m).tanh() + z * state[0],)
    return (getattr(a + b, kind.removeprefix("RNN_"))(),)


def _run(
    amp: Amp, held: Tensors, kind: str, x: torch.Tensor, start: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return outputs (length, size) of one sequence, and the last state of each part, (layers, size)."""
    ends = [name.removeprefix("weight_ih_") for name in held if name.startswith("weight_ih_")]
    last, layers = [], sorted({end.removesuffix("_reverse") for end in ends})
    for layer in layers:
        sides = []
        for end in [end for end in ends if end.removesuffix("_reverse") == layer]:
            state, outs = tuple(part[len(last)] for part in start), []
            for one in x.flip(0) if end.endswith("_reverse") else x:
                state = _step(amp, held, kind, end, one, state)
                outs.append(state[0])
            last.append(state)
            sides.append(torch.stack(outs[::-1] if end.endswith("_reverse") else outs))
        x = torch.cat(sides, -1)
    return x, [torch.stack(part) for part in zip(*last, strict=True)]


@scenario(RECURRENT, values=True, dtypes="default", types=HARDWARE)
def test_recurrent(amp: Amp, kind: str, made: str, layout: str, start: str, mode: str, given: str) -> None:
    """Recurrent networks follow their formula, padded, packed, or of one sequence (nn.RNN, nn.LSTM, nn.GRU).

    What runs as one op has the dtype of that op's policy: a cell, where the device has a policy for it, and on the CPU
    an LSTM that is neither packed nor projected (mkldnn_rnn_layer), of a bf16 input where oneDNN computes in bf16.
    """
    chosen = {"unbiased": {"bias": False}, "two_layers": {"num_layers": 2}, "both_ways": {"bidirectional": True}}
    options = {**chosen.get(made, {}), "batch_first": layout == "batch"}
    options |= {"proj_size": 2} if made == "projected" else {}
    options |= {"nonlinearity": kind.removeprefix("RNN_")} if "RNN" in kind else {}
    module = amp.module(lambda: getattr(nn, kind.partition("_")[0])(SIZE, 3, **options))
    packed, layers = layout.startswith("packed"), 2 if made in ("two_layers", "both_ways") else 1
    lengths = {"packed": (4, 2), "packed_unsorted": (2, 4), "single": (4,)}.get(layout, (4, 4))
    x = _given(amp, given, LENGTH, len(lengths), SIZE)
    sizes = (2 if made == "projected" else 3, 3) if kind == "LSTM" else (3,)
    states = [] if start == "none" else [_given(amp, start, layers, len(lengths), size) for size in sizes]
    whole = {"GRU": "_thnn_fused_gru_cell", "LSTM": "_thnn_fused_lstm_cell"}.get(kind, "")
    # PyTorch looks at the input before autocast casts it (use_mkldnn in ATen/native/RNN.cpp).
    fits = not packed and made != "projected" and (given == "wide" or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if kind == "LSTM" and fits and "mkldnn_rnn_layer" in amp.policies:
        whole = "mkldnn_rnn_layer"

    def call(inputs: list[torch.Tensor]) -> object:
        x, given_states = inputs[0], [each[:, 0] if layout == "single" else each for each in inputs[1:]]
        begin = tuple(given_states) if kind == "LSTM" else given_states[0] if given_states else None
        x = x[:, 0] if layout == "single" else x.transpose(0, 1) if layout == "batch" else x
        if packed:
            x = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=layout == "packed")
        out, state = module(x, begin or None) if isinstance(begin, tuple) else module(x, begin)
        if packed:
            out = pad_packed_sequence(out)[0]
        out = out[:, None] if layout == "single" else out.transpose(0, 1) if layout == "batch" else out
        return out, [each[:, None] if layout == "single" else each for each in tensors(state)]

    def formula(held: Tensors, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        outs, lasts = [], []
        for place, length in enumerate(lengths):
            one = inputs[0][:length, place]
            begin = tuple(each[:, place] for each in inputs[1:]) or tuple(one.new_zeros(layers, size) for size in sizes)
            out, last = _run(amp, held, kind, one, begin)
            outs.append(functional.pad(out, (0, 0, 0, LENGTH - length)))
            lasts.append(last)
        given_back = [torch.stack(outs, 1), *(torch.stack(part, 1) for part in zip(*lasts, strict=True))]
        return [_op(amp, whole, torch.clone, each) for each in given_back]

    _assert_as_formula(amp, module, call, formula, [x, *states], mode)


# ---- normalisations, embedding bags and losses
NORMS = Product(
    {
        "kind": ("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm2d", "InstanceNorm2d"),
        "affine": ("learned", "fixed"),
        "stats": ("batch", "running"),
        "mode": MODES,
        "given": ("wide", "low"),
    },
    {
        "LayerNorm, RMSNorm and GroupNorm keep no statistics": where(
            stats="running", kind=("LayerNorm", "RMSNorm", "GroupNorm")
        )
    },
)
OVER = {
    "LayerNorm": (-1,),
    "RMSNorm": (-1,),
    "GroupNorm": (2, 3, 4),
    "BatchNorm2d": (0, 2, 3),
    "InstanceNorm2d": (2, 3),
}
"""The dimensions that a normalisation goes over, where GroupNorm has split the channels of (2, 4, 3, 8) in two."""


@scenario(NORMS, values=True, dtypes="default", types=HARDWARE)
def test_normalisation(amp: Amp, kind: str, affine: str, stats: str, mode: str, given: str) -> None:
    """A normalisation follows its formula, in the dtype of what its op is given (nn.LayerNorm and others)."""
    running, over, learned = stats == "running", OVER[kind], affine == "learned"
    first = {"LayerNorm": (8,), "RMSNorm": (8,), "GroupNorm": (2, 4)}.get(kind, (4,))
    options = {} if len(OVER[kind]) == 1 or kind == "GroupNorm" else {"track_running_stats": running}
    options["elementwise_affine" if len(OVER[kind]) == 1 else "affine"] = learned
    module = amp.module(lambda: getattr(nn, kind)(*first, eps=1e-3, **options))
    if learned:
        module.weight.copy_(amp.rand(*module.weight.shape) + 0.5)
    kept = running and mode != "train"
    if running:
        module.running_mean.fill_(0.25)
        module.running_var.fill_(0.5)
    name = kind.removesuffix("2d").replace("Norm", "_norm").lower()

    def formula(held: Tensors, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        x = _op(amp, name, torch.clone, inputs[0])
        y = x.unflatten(1, (2, 2)) if kind == "GroupNorm" else x
        shape = (8,) if over == (-1,) else (4, 1, 1)
        mean = 0.25 if kept else 0.0 if kind == "RMSNorm" else y.mean(over, keepdim=True)
        spread = 0.5 if kept else (y - mean).square().mean(over, keepdim=True)
        y = ((y - mean) / (spread + 1e-3) ** 0.5).reshape(x.shape)
        weight, bias = held.get("weight"), held.get("bias")
        y = y if weight is None else y * weight.reshape(shape)
        return [(y if bias is None else y + bias.reshape(shape)).to(x.dtype)]

    _assert_as_formula(amp, module, lambda inputs: module(*inputs), formula, [_given(amp, given, 2, 4, 3, 8)], mode)


BAGS = Product(
    {
        "reduced": ("sum", "mean", "max"),
        "weighed": ("evenly", "per_sample"),
        "padding": ("none", "index"),
        "layout": ("rows", "offsets", "last_offset"),
        "mode": MODES,
        "table": ("wide", "low"),
    },
    {"weights per sample are for sums": where(weighed="per_sample", reduced=other_than("sum"))},
)


@scenario(BAGS, values=True, dtypes="default", types=HARDWARE)
def test_embedding_bag(amp: Amp, reduced: str, weighed: str, padding: str, layout: str, mode: str, table: str) -> None:
    """An embedding bag has the dtype of its table, whatever the region (nn.EmbeddingBag; no policy)."""
    dtype = amp.dtype if table == "low" else torch.float32
    options = {"mode": reduced, "padding_idx": 1 if padding == "index" else None}
    options["include_last_offset"] = layout == "last_offset"
    module = amp.module(lambda: nn.EmbeddingBag(5, SIZE, **options)).to(dtype)
    rows = torch.tensor([[0, 1, 2], [4, 3, 1]], device=amp.type)
    weights = [_given(amp, table, 2, 3)] if weighed == "per_sample" else []
    offsets = torch.tensor([0, 3, 6] if layout == "last_offset" else [0, 3], device=amp.type)

    def call(inputs: list[torch.Tensor]) -> object:
        more = {"per_sample_weights": inputs[0] if layout == "rows" else inputs[0].flatten()} if inputs else {}
        return module(rows, **more) if layout == "rows" else module(rows.flatten(), offsets, **more)

    def formula(held: Tensors, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        picked = held["weight"][torch.tensor([[0, 1, 2], [4, 3, 1]])]
        if padding == "index":
            picked = torch.stack([picked[0, [0, 2]], picked[1, :2]])
        if inputs:
            shares = torch.stack([inputs[0][0, [0, 2]], inputs[0][1, :2]]) if padding == "index" else inputs[0]
            picked = picked * shares[..., None]
        return [picked.amax(1) if reduced == "max" else getattr(picked, reduced)(1)]

    _assert_as_formula(amp, module, call, formula, weights, mode)


OF_LOSS: dict[str, tuple[str, dict[str, object]]] = {
    "L1Loss": ("l1_loss", {}),
    "MSELoss": ("mse_loss", {}),
    "SmoothL1Loss": ("smooth_l1_loss", {"beta": 0.5}),
    "HuberLoss": ("huber_loss", {"delta": 0.5}),
    "BCEWithLogitsLoss": ("binary_cross_entropy_with_logits", {"pos_weight": 2.0}),
    "KLDivLoss": ("kl_div", {"log_target": True}),
    "PoissonNLLLoss": ("poisson_nll_loss", {"log_input": False, "full": True}),
    "SoftMarginLoss": ("soft_margin_loss", {}),
    "HingeEmbeddingLoss": ("hinge_embedding_loss", {"margin": 0.5}),
    "CrossEntropyLoss": ("cross_entropy", {"label_smoothing": 0.25}),
    "NLLLoss": ("nll_loss", {"ignore_index": 1}),
    "MultiMarginLoss": ("multi_margin_loss", {"p": 2}),
}
"""The function of each loss, and the option that is not at its default; `pos_weight` is a tensor of it."""
LOSSES = Product(
    {
        "loss": tuple(OF_LOSS),
        "option": ("default", "other"),
        "reduction": ("none", "mean", "sum"),
        "mode": MODES,
        "given": ("wide", "low"),
        "target": ("wide", "low", "class"),
    },
    {
        "the target of a loss is a class or a tensor of values": lambda cell: (
            (cell["loss"] in ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss")) is not (cell["target"] == "class")
        ),
        "L1Loss, MSELoss and SoftMarginLoss have no other option": where(
            option="other", loss=("L1Loss", "MSELoss", "SoftMarginLoss")
        ),
    },
)


@scenario(LOSSES, values=True, dtypes="default", types=HARDWARE)
def test_loss(amp: Amp, loss: str, option: str, reduction: str, mode: str, given: str, target: str) -> None:
    """A loss has the dtype that its op's policy says, with any reduction and option (amp.html, autocast to float32)."""
    called, other = OF_LOSS[loss]
    options = other if option == "other" else {}
    there = {name: torch.tensor(each).to(amp.type) if name == "pos_weight" else each for name, each in options.items()}
    exact = {name: torch.tensor(each).double() if name == "pos_weight" else each for name, each in options.items()}
    module = amp.module(lambda: getattr(nn, loss)(reduction=reduction, **there))
    name = {"CrossEntropyLoss": "nll_loss"}.get(loss, called)
    positive = loss in ("PoissonNLLLoss", "KLDivLoss")
    inputs = [_given(amp, given, 3, 4).abs() + 0.5 if positive else _given(amp, given, 3, 4)]
    classes = torch.tensor([0, 1, 3], device=amp.type)
    inputs.append(classes if target == "class" else _given(amp, target, 3, 4).abs() + 0.5)

    def formula(held: Tensors, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        wide = _op(amp, name, lambda x, y: x * 1.0 if target == "class" else x * y, *inputs)
        function = getattr(functional, called)
        values = [each.double() if each.is_floating_point() else each for each in inputs]
        return [function(*values, reduction=reduction, **exact).to(wide.dtype)]

    _assert_as_formula(amp, module, lambda inputs: module(*inputs), formula, inputs, mode)


# ---- any device with values
ANYWHERE = Product({"module": ("attention", "encoder_layer", "GRU")})


@scenario(ANYWHERE, values=True, dtypes="default")
def test_anywhere(amp: Amp, module: str) -> None:
    """Attention, a layer and a recurrent network in evaluation, on every device (nn.MultiheadAttention, nn.GRU)."""
    if module == "attention":
        test_attention(amp, "plain", "padded", "mean", "batch", "eval_off", "wide")
    elif module == "GRU":
        test_recurrent(amp, "GRU", "plain", "length", "wide", "eval_off", "wide")
    else:
        test_transformer(amp, "encoder_layer", "after", "relu", "none", "batch", "eval_off", "wide")
