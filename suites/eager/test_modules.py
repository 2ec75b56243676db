"""Rule modules: a module in a region does what the functions it calls do there.

A module of torch.nn runs once in a region and once outside with explicit casts, as the policies of its ops prescribe;
kernel dtypes, output dtypes and values must agree. Source: https://docs.pytorch.org/docs/2.13/amp.html ("Ops that go
through autocast do so whether they are called as a function, a module or a method") and
https://docs.pytorch.org/docs/2.13/notes/amp_examples.html.
"""

import re
import tomllib
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

from ampcheck.checks.comparisons import bitwise, output_dtypes
from ampcheck.checks.relations import assert_whole_module
from ampcheck.runner.suite import Amp, Product, scenario, where
from ampcheck.spec.torch_dtypes import name_of

pytestmark = pytest.mark.rule("modules")

Shape = tuple[int, ...]


class Layer(NamedTuple):
    """A module to make, and the shapes of its inputs.

    `op`: the op that makes the output, so that its policy decides the dtype; none where several do. `whole`: how many
    of the inputs, from the last, are indices below 3.
    """

    make: Callable[[], nn.Module]
    shapes: tuple[Shape, ...]
    op: str = ""
    whole: int = 0


IMAGE, LINE, SEQUENCE, PAIR = (2, 4, 5, 5), (2, 4, 5), (2, 3, 4), (3, 4)
LAYERS = {
    "Linear": Layer(lambda: nn.Linear(4, 3), (PAIR,), "linear"),
    "Linear_nobias": Layer(lambda: nn.Linear(4, 3, bias=False), (PAIR,), "linear"),
    "Bilinear": Layer(lambda: nn.Bilinear(4, 4, 2), (PAIR, PAIR), "bilinear"),
    "Conv1d": Layer(lambda: nn.Conv1d(4, 2, 3), (LINE,), "conv1d"),
    "Conv1d_same": Layer(lambda: nn.Conv1d(4, 2, 3, padding="same"), (LINE,), "conv1d.padding"),
    "Conv2d": Layer(lambda: nn.Conv2d(4, 2, 3), (IMAGE,), "conv2d"),
    "Conv2d_groups": Layer(lambda: nn.Conv2d(4, 4, 3, groups=4, stride=2, padding=1), (IMAGE,), "conv2d"),
    "Conv2d_reflect": Layer(lambda: nn.Conv2d(4, 2, 3, padding=1, padding_mode="reflect"), (IMAGE,), "conv2d"),
    "Conv3d": Layer(lambda: nn.Conv3d(2, 2, 2), ((1, 2, 3, 3, 3),), "conv3d"),
    "ConvTranspose1d": Layer(lambda: nn.ConvTranspose1d(4, 2, 3), (LINE,), "conv_transpose1d"),
    "ConvTranspose2d": Layer(lambda: nn.ConvTranspose2d(4, 2, 3), (IMAGE,), "conv_transpose2d.input"),
    "ConvTranspose3d": Layer(lambda: nn.ConvTranspose3d(2, 2, 2), ((1, 2, 3, 3, 3),), "conv_transpose3d.input"),
    "LayerNorm": Layer(lambda: nn.LayerNorm(4), (PAIR,), "layer_norm"),
    "LayerNorm_plain": Layer(lambda: nn.LayerNorm(4, elementwise_affine=False), (PAIR,), "layer_norm"),
    "RMSNorm": Layer(lambda: nn.RMSNorm(4), (PAIR,), "rms_norm"),
    "GroupNorm": Layer(lambda: nn.GroupNorm(2, 4), (IMAGE,), "group_norm"),
    "PReLU": Layer(lambda: nn.PReLU(), (PAIR,), "prelu"),
    "Softmax": Layer(lambda: nn.Softmax(-1), (PAIR,), "softmax.int"),
    "LogSoftmax": Layer(lambda: nn.LogSoftmax(-1), (PAIR,), "log_softmax.int"),
    "Softplus": Layer(lambda: nn.Softplus(), (PAIR,), "softplus"),
    "ReLU": Layer(lambda: nn.ReLU(), (PAIR,), "relu"),
    "GELU": Layer(lambda: nn.GELU(), (PAIR,), "gelu"),
    "Sigmoid": Layer(lambda: nn.Sigmoid(), (PAIR,), "sigmoid"),
    "Tanh": Layer(lambda: nn.Tanh(), (PAIR,), "tanh"),
    "Dropout": Layer(lambda: nn.Dropout(0.5).eval(), (PAIR,), "dropout"),
    "Upsample_nearest": Layer(lambda: nn.Upsample(scale_factor=2), (IMAGE,)),
    "MaxPool2d": Layer(lambda: nn.MaxPool2d(2), (IMAGE,), "max_pool2d"),
    "AvgPool2d": Layer(lambda: nn.AvgPool2d(2), (IMAGE,), "avg_pool2d"),
    "AvgPool3d": Layer(lambda: nn.AvgPool3d(2), ((1, 2, 4, 4, 4),), "avg_pool3d"),
    "AdaptiveAvgPool2d": Layer(lambda: nn.AdaptiveAvgPool2d(2), (IMAGE,), "adaptive_avg_pool2d"),
    "ReflectionPad2d": Layer(lambda: nn.ReflectionPad2d(1), (IMAGE,), "reflection_pad2d"),
    "CosineSimilarity": Layer(lambda: nn.CosineSimilarity(), (PAIR, PAIR), "cosine_similarity"),
    "PairwiseDistance": Layer(lambda: nn.PairwiseDistance(), (PAIR, PAIR)),
    "L1Loss": Layer(lambda: nn.L1Loss(), (PAIR, PAIR), "l1_loss"),
    "MSELoss": Layer(lambda: nn.MSELoss(), (PAIR, PAIR), "mse_loss"),
    "SmoothL1Loss": Layer(lambda: nn.SmoothL1Loss(), (PAIR, PAIR), "smooth_l1_loss"),
    "HuberLoss": Layer(lambda: nn.HuberLoss(), (PAIR, PAIR), "huber_loss"),
    "KLDivLoss": Layer(lambda: nn.KLDivLoss(reduction="batchmean"), (PAIR, PAIR)),
    "BCEWithLogitsLoss": Layer(lambda: nn.BCEWithLogitsLoss(), (PAIR, PAIR), "binary_cross_entropy_with_logits"),
    "PoissonNLLLoss": Layer(lambda: nn.PoissonNLLLoss(), (PAIR, PAIR), "poisson_nll_loss"),
    "SoftMarginLoss": Layer(lambda: nn.SoftMarginLoss(), (PAIR, PAIR), "soft_margin_loss"),
    "HingeEmbeddingLoss": Layer(lambda: nn.HingeEmbeddingLoss(), (PAIR, PAIR), "hinge_embedding_loss"),
    "MarginRankingLoss": Layer(lambda: nn.MarginRankingLoss(), ((3,), (3,), (3,)), "margin_ranking_loss"),
    "CosineEmbeddingLoss": Layer(lambda: nn.CosineEmbeddingLoss(), (PAIR, PAIR, (3,)), "cosine_embedding_loss"),
    "TripletMarginLoss": Layer(lambda: nn.TripletMarginLoss(), (PAIR,) * 3, "triplet_margin_loss"),
    "BCELoss": Layer(lambda: nn.BCELoss(), (PAIR, PAIR), "binary_cross_entropy"),
    "CrossEntropyLoss": Layer(lambda: nn.CrossEntropyLoss(), (PAIR, (3,)), whole=1),
    "NLLLoss": Layer(lambda: nn.NLLLoss(), (PAIR, (3,)), "nll_loss_nd", whole=1),
    "MultiMarginLoss": Layer(lambda: nn.MultiMarginLoss(), (PAIR, (3,)), "multi_margin_loss", whole=1),
    "MultiLabelMarginLoss": Layer(lambda: nn.MultiLabelMarginLoss(), (PAIR, PAIR), "multilabel_margin_loss", whole=1),
    "Embedding": Layer(lambda: nn.Embedding(3, 4), ((2, 5),), "embedding", whole=1),
    "RNNCell_tanh": Layer(lambda: nn.RNNCell(4, 3), (PAIR,)),
    "RNNCell_relu": Layer(lambda: nn.RNNCell(4, 3, nonlinearity="relu"), (PAIR,)),
    "LSTMCell": Layer(lambda: nn.LSTMCell(4, 3), (PAIR,)),
    "RNN_one": Layer(lambda: nn.RNN(4, 3), (SEQUENCE,)),
    "LSTM_one": Layer(lambda: nn.LSTM(4, 3), (SEQUENCE,)),
    "MultiheadAttention": Layer(lambda: nn.MultiheadAttention(4, 2), (SEQUENCE,) * 3),
    "Sequential": Layer(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 2)), (PAIR,)),
}
"""Modules that every device can run."""

NETWORKS = {
    "BatchNorm1d": Layer(lambda: nn.BatchNorm1d(4), (PAIR,)),
    "BatchNorm1d_eval": Layer(lambda: nn.BatchNorm1d(4).eval(), (PAIR,)),
    "BatchNorm2d": Layer(lambda: nn.BatchNorm2d(4), (IMAGE,)),
    "BatchNorm2d_eval": Layer(lambda: nn.BatchNorm2d(4).eval(), (IMAGE,)),
    "BatchNorm3d": Layer(lambda: nn.BatchNorm3d(2), ((1, 2, 3, 3, 3),)),
    "InstanceNorm2d": Layer(lambda: nn.InstanceNorm2d(4, affine=True), (IMAGE,)),
    "RNN": Layer(lambda: nn.RNN(4, 3, 2), (SEQUENCE,)),
    "RNN_relu": Layer(lambda: nn.RNN(4, 3, nonlinearity="relu", bidirectional=True), (SEQUENCE,)),
    "GRU": Layer(lambda: nn.GRU(4, 3), (SEQUENCE,)),
    "GRU_layers": Layer(lambda: nn.GRU(4, 3, 2, bidirectional=True, batch_first=True), (SEQUENCE,)),
    "GRU_nobias": Layer(lambda: nn.GRU(4, 3, bias=False), (SEQUENCE,)),
    "LSTM_layers": Layer(lambda: nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True), (SEQUENCE,)),
    "LSTM_nobias": Layer(lambda: nn.LSTM(4, 3, bias=False), (SEQUENCE,)),
    "LSTM_projection": Layer(lambda: nn.LSTM(4, 3, proj_size=2), (SEQUENCE,)),
    "GRUCell": Layer(lambda: nn.GRUCell(4, 3), (PAIR,)),
    "EmbeddingBag": Layer(lambda: nn.EmbeddingBag(3, 4), ((2, 5),), whole=1),
    "MultiheadAttention_eval": Layer(lambda: nn.MultiheadAttention(4, 2, batch_first=True).eval(), (SEQUENCE,) * 3),
    "MultiheadAttention_bias": Layer(lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True), (SEQUENCE,) * 3),
    "EncoderLayer": Layer(lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0), (SEQUENCE,)),
    "EncoderLayer_first": Layer(lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, norm_first=True), (SEQUENCE,)),
    "EncoderLayer_fast": Layer(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(), (SEQUENCE,)),
    "DecoderLayer": Layer(lambda: nn.TransformerDecoderLayer(4, 2, 8, 0.0), (SEQUENCE,) * 2),
    "DecoderLayer_eval": Layer(lambda: nn.TransformerDecoderLayer(4, 2, 8).eval(), (SEQUENCE,) * 2),
    "Transformer": Layer(lambda: nn.Transformer(4, 2, 1, 1, 8, 0.0, batch_first=True), (SEQUENCE,) * 2),
    "Transformer_eval": Layer(lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True).eval(), (SEQUENCE,) * 2),
    "AdaptiveSoftmax": Layer(lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 6, [2, 4]), ((3, 16), (3,)), whole=1),
    "CTCLoss": Layer(lambda: _Ctc(), ((6, 2, 4),)),
    "MultiLabelSoftMarginLoss": Layer(lambda: nn.MultiLabelSoftMarginLoss(), (PAIR, PAIR)),
    "GaussianNLLLoss": Layer(lambda: nn.GaussianNLLLoss(), (PAIR,) * 3),
    "Dropout_train": Layer(lambda: nn.Dropout(0.5), (PAIR,)),
    "Upsample_linear": Layer(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (IMAGE,)),
    "MaxPool3d": Layer(lambda: nn.MaxPool3d(2), ((1, 2, 4, 4, 4),)),
    "FractionalMaxPool2d": Layer(lambda: nn.FractionalMaxPool2d(2, output_size=2), (IMAGE,)),
}
"""Modules whose kernels a device without values lacks, or that call many ops."""


class _Ctc(nn.Module):
    """nn.CTCLoss with fixed targets."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        targets = torch.tensor([[1, 2], [3, 1]], device=x.device)
        lengths = torch.tensor([6, 6], device=x.device), torch.tensor([2, 2], device=x.device)
        return nn.CTCLoss()(x.log_softmax(-1), targets, *lengths)


def _inputs(amp: Amp, layer: Layer, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the inputs of a layer, floating ones in a dtype."""
    made = []
    for place, shape in enumerate(layer.shapes):
        if place < len(layer.shapes) - layer.whole:
            made.append(amp.rand(*shape, dtype=dtype))
        elif amp.has_values:
            made.append((amp.rand(*shape) * 3).long())
        else:
            made.append(torch.empty(shape, dtype=torch.int64, device=amp.type))
    return made


@scenario(layer=LAYERS, given=["wide", "low"], dtypes="default")
def test_layer(amp: Amp, layer: str, given: str) -> None:
    """A layer follows its op's policy for every dtype of its input (amp.html, Module/function/method)."""
    what = LAYERS[layer]
    module = amp.module(what.make)
    inputs = _inputs(amp, what, amp.dtype if given == "low" else torch.float32)
    policy = amp.policies.get(what.op)
    out, decided = amp.assert_cast(layer, lambda: module(*inputs), runs=given == "wide" and policy != "banned")
    if out and what.op and policy in ("downcast", "upcast"):
        amp.assert_equal(f"dtype of {layer}", out[0].dtype, amp.dtype if policy == "downcast" else torch.float32)
    elif not (out and what.op) or decided or what.whole or not inputs[0].is_floating_point():
        return
    elif given == "wide" or not list(module.parameters()):  # where a low input meets a wide weight, nothing is promised
        amp.assert_equal(f"dtype of {layer}, which is not listed", out[0].dtype, inputs[0].dtype)


@scenario(network=NETWORKS, given=["wide", "low"], values=True)
def test_network(amp: Amp, network: str, given: str) -> None:
    """A module of many ops follows the policy of each (amp.html, Module/function/method)."""
    what = NETWORKS[network]
    inputs = _inputs(amp, what, amp.dtype if given == "low" else torch.float32)
    module = amp.module(what.make)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    def call() -> object:
        module.load_state_dict(state)
        return module(*inputs)

    amp.assert_cast(network, call, runs=given == "wide")


OUTSIDE = [name for name in dir(nn) if name[0].isupper() and not re.search("Lazy|Fractional|^Param|Buffer", name)]
"""Classes of torch.nn, without those of modules that draw random numbers."""


@pytest.mark.nightly
@scenario(module=OUTSIDE, types=("cpu", "cuda"), values=True, database=True, dtypes="default")
def test_whole(amp: Amp, module: str) -> None:
    """A module of one lower precision, outside of regions, takes what it takes in float32 (nn.Module.to)."""
    assert_whole_module(amp, module)


@scenario(mask=["none", "boolean", "single", "low", "causal"], dtypes="default")
def test_attention_mask(amp: Amp, mask: str) -> None:
    """Attention takes any mask and any mixture of inputs (pytorch#99012, #141774, #161489, #161936)."""
    wide, low = amp.rand(1, 2, 3, 4), amp.rand(1, 2, 3, 4, dtype=amp.dtype)
    masks = {"boolean": torch.bool, "single": torch.float32, "low": amp.dtype}
    given = amp.rand(3, 3).to(masks[mask]) if mask in masks else None
    attention = nn.functional.scaled_dot_product_attention
    policy = amp.policies.get("scaled_dot_product_attention")
    for what, qkv in (("float32", (wide,) * 3), ("low", (low,) * 3), ("a mixture", (wide, low, wide))):
        name = f"attention of {what}"
        out, _ = amp.assert_cast(name, lambda qkv=qkv: attention(*qkv, attn_mask=given, is_causal=mask == "causal"))
        if out and policy == "downcast":
            amp.assert_equal(f"dtypes of {name}", [t.dtype for t in out], [amp.dtype])


@scenario(kind=["RNN", "GRU", "LSTM"], values=True)
def test_recurrent_dtypes(amp: Amp, kind: str) -> None:
    """A recurrent network takes weights, inputs and states of any dtypes (test_autocast_rnn of PyTorch)."""
    make = getattr(nn, kind)
    for weights in (torch.float32, amp.dtype):
        module = amp.module(lambda: make(4, 3)).to(weights)
        for given in (torch.float32, amp.dtype):
            x = amp.rand(*SEQUENCE, dtype=given)
            for hidden in (torch.float32, amp.dtype):
                state = amp.rand(1, 3, 3, dtype=hidden)
                start = (state, amp.rand(1, 3, 3, dtype=hidden)) if kind == "LSTM" else state
                what = f"{kind} of weights {weights}, input {given} and state {hidden}"
                amp.assert_cast(what, lambda m=module, x=x, start=start: m(x, start))
        if weights == amp.dtype:
            call = partial(module, amp.rand(*SEQUENCE))
            amp.assert_raises(f"{kind} of low weights outside", ValueError, "dtype", call)


# ---- modules whose weights are rewritten
class _Scaled(nn.Sequential):
    """Layers whose result is scaled and moved by numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self:
            x = layer(x)
        return x * 1.5 + 0.25


TABLE = tomllib.loads(Path(__file__).with_name("networks.toml").read_text(encoding="utf-8"))
NAMES = {"torch": torch, "nn": nn, "import_module": import_module, "Scaled": _Scaled}
SCRIPTED = ("freeze", "freeze_traced", "optimize")
"""Those of TorchScript, which casts by another table than eager mode where it casts at all."""
FOLDS = Product(
    {"network": tuple(TABLE["networks"]), "rewrite": tuple(TABLE["passes"]), "given": ("before", "inside", "low")},
    {
        "it takes two modules": where(rewrite="fuse", network=("conv2d_relu", "linear_twice", "scaled_conv2d")),
        "it takes a norm": where(rewrite=("fuse", "modules"), network=("linear_twice", "scaled_linear")),
        "Inductor compiles at the first call": where(rewrite="inductor", given="inside"),
    },
    nightly=True,
)


@scenario(FOLDS, types=("cpu",), values=True)
def test_rewritten(amp: Amp, network: str, rewrite: str, given: str) -> None:
    """A pass that folds a norm or a number into weights changes neither dtype nor values (pytorch#76578)."""
    make, shape = TABLE["networks"][network]
    module, x = amp.module(lambda: eval(make, NAMES)).eval(), amp.rand(*shape)  # our own expressions
    for each in filter(torch.is_floating_point, module.buffers()):
        each.copy_(amp.rand(*each.shape) + 0.5)
    module, x = (module.to(amp.dtype), x.to(amp.dtype)) if given == "low" else (module, x)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # TorchScript is deprecated as a whole
        with amp.region() if given == "inside" else nullcontext():
            changed = eval(TABLE["passes"][rewrite], {**NAMES, "module": deepcopy(module), "x": x})
        with nullcontext() if given == "low" else amp.region():
            want = module(x)
            right = {want.dtype, (torch.jit.script(module) if rewrite in SCRIPTED else module)(x).dtype}
            for call in ("first", "second", "third"):  # TorchScript compiles at the second one
                got = changed(x)
                amp.check(got.dtype in right, f"dtype of the {call} call", f"got {got.dtype}; expected {want.dtype}")
                step = 16 * torch.finfo(amp.dtype).eps
                amp.assert_close(f"values of the {call} call", got.float(), want.float(), step)
        if given == "inside":
            changed(x)  # it is accepted outside, too, in whatever dtype


# ---- gradients, and modules beside their functions
@scenario(values=True)
def test_gradients_of_a_module(amp: Amp) -> None:
    """Gradients have the dtype of the parameter they belong to, float32 (amp_examples.html, typical training)."""
    module = amp.module(LAYERS["Sequential"].make).requires_grad_()
    with amp.region():
        loss = nn.functional.mse_loss(module(amp.rand(3, 4)), amp.rand(3, 2))
    amp.assert_equal("dtype of the loss", loss.dtype, torch.float32)
    loss.backward()
    for name, parameter in module.named_parameters():
        amp.assert_equal(f"dtype of the gradient of {name}", getattr(parameter.grad, "dtype", None), torch.float32)


@scenario(values=True)
def test_same_as_its_function(amp: Amp) -> None:
    """A module gives the result of its function on explicitly cast tensors (amp.html, Module/function/method).

    What a module does by itself, in a region or outside, cannot hide here: the module runs only once.
    """
    functional, low = nn.functional, amp.dtype
    x, y, line = amp.rand(3, 4), amp.rand(3, 4), amp.rand(2, 4, 5)
    lower, index = amp.rand(3, 4, dtype=amp.other), (amp.rand(2, 5) * 3).long()
    linear, conv = amp.module(lambda: nn.Linear(4, 3)), amp.module(lambda: nn.Conv1d(4, 2, 3))
    table = amp.module(lambda: nn.Embedding(3, 4))
    calls: dict[str, tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]] = {
        "Linear": (lambda: linear(x), lambda: functional.linear(x.to(low), linear.weight.to(low), linear.bias.to(low))),
        "Conv1d": (lambda: conv(line), lambda: functional.conv1d(line.to(low), conv.weight.to(low), conv.bias.to(low))),
        "MSELoss": (lambda: nn.MSELoss()(x, y), lambda: functional.mse_loss(x, y)),
        "MSELoss of low": (lambda: nn.MSELoss()(lower, y), lambda: functional.mse_loss(lower.float(), y)),
        "L1Loss": (lambda: nn.L1Loss()(x, lower), lambda: functional.l1_loss(x, lower.float())),
        "Embedding": (lambda: table(index), lambda: functional.embedding(index, table.weight)),
        "ReLU": (lambda: nn.ReLU()(lower), lambda: functional.relu(lower)),
    }
    for name, (in_region, reference) in calls.items():
        with amp.region():
            got = in_region()
        wanted = reference()
        amp.note(f"dtype of {name}", output_dtypes([got], [name_of(wanted.dtype)], name))
        amp.note(f"values of {name}", bitwise([amp.host(got)], [amp.host(wanted)], name))


@scenario(types=("cuda",), dtypes="default")
def test_cross_entropy_of_low_logits(amp: Amp) -> None:
    """cross_entropy runs in float32, its log probabilities too (amp.html#cuda-ops-that-can-autocast-to-float32)."""
    logits, target = amp.rand(4, 7, dtype=amp.dtype), torch.zeros(4, dtype=torch.long, device=amp.type)
    with amp.region():
        seen = amp.observe(lambda: torch.nn.functional.cross_entropy(logits, target), logits)
    told = [kernel.dtype_kwarg for kernel in seen.kernels if kernel.overload == "log_softmax.int"]
    amp.assert_equal("dtype that log_softmax was told", told, ["fp32"])
