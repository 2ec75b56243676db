"""Functions that TorchScript's autocast treats otherwise than a device type's own in the newest policy table."""

from __future__ import annotations

from functools import cache

from ampcheck.spec.policies import table, versions

# From torch/csrc/jit/passes/autocast.cpp of torch 2.13.
_SCRIPTED = {
    "downcast": "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d convolution cudnn_convolution "
    "cudnn_convolution_transpose prelu addmm addmv addr matmul mm mv linear addbmm baddbmm bmm chain_matmul lstm_cell "
    "gru_cell rnn_tanh_cell rnn_relu_cell",
    "upcast": "native_layer_norm acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow "
    "softplus gelu layer_norm group_norm frobenius_norm nuclear_norm cosine_similarity cosine_embedding_loss nll_loss "
    "nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss mse_loss margin_ranking_loss multilabel_margin_loss "
    "soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm "
    "logsumexp prod log_softmax cumprod cumsum sum",
    "promote": "addcdiv addcmul atan2 bilinear cat cross dot equal index_put stack tensordot add sub mul div",
    "banned": "binary_cross_entropy",
}
_BY_OP = {op: policy for policy, ops in _SCRIPTED.items() for op in ops.split()}
_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
# A sum in float32 is asked for in another way, with the same result.
_SAME = {"optdtype": "upcast", "append": "upcast"}
_WORDS = {"downcast": "the region's dtype", "upcast": "float32", "promote": "the widest dtype", "banned": "an error"}


@cache
def _own(device: str) -> dict[str, str]:
    policies = table(_KEYS[device], versions()[-1])
    found = {overload.partition(".")[0]: policy for overload, policy in policies.items()}
    return {op: _SAME.get(policy, policy) for op, policy in found.items()}


def difference(called: str, device: str) -> str:
    """Return in words how TorchScript's policy for a function differs from a device type's; "" where it does not.

    `called`: its full name, e.g. "torch.nn.functional.layer_norm". Methods are not looked at.
    """
    home, _, name = called.rpartition(".")
    if device not in _KEYS or home not in ("torch", "torch.nn.functional", "torch.linalg", "torch.fft"):
        return ""
    op = f"{home.rpartition('.')[2]}_{name}" if home in ("torch.linalg", "torch.fft") else name
    # TorchScript alone promotes what every kernel promotes by itself.
    own, scripted = _own(device).get(op, ""), _BY_OP.get(op, "")
    if (
        op == "softmax"
        or own == scripted
        or (scripted == "promote" and not own and op not in ("add", "sub", "mul", "div"))
    ):
        return ""
    return f"`{called}` runs in {_words(own)} by the {device} list, in {_words(scripted)} by TorchScript's"


def _words(policy: str) -> str:
    return _WORDS.get(policy, "the dtype of its arguments")
