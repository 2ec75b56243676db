"""A PrivateUse1 backend with storages that promises a part of CUDA's list, and has autocast kernels for that part."""

import torch
from engine import Arrays, Backend, Tested

from ampcheck.register import Registration
from ampcheck.spec.policies import closest, table

NAME = "partial"
PROMISED = (
    *("mm", "bmm", "addmm", "matmul", "linear", "convolution", "conv2d", "linalg_multi_dot"),
    *("scaled_dot_product_attention", "exp", "log", "pow.Tensor_Scalar", "reciprocal", "rsqrt", "layer_norm"),
    *("mse_loss", "cosine_similarity"),
    *("cumsum", "sum", "sum.dim_IntList", "softmax.int", "norm.ScalarOpt_dim"),
    *("addcmul", "dot", "scatter_add", "index_put", "binary_cross_entropy"),
)
"""No `pow.Scalar`, no loss but one, and of attention no parts."""

BACKEND = Backend(NAME, Arrays())
_LISTED = table("AutocastCUDA", closest(torch.__version__))


def register(**overrides: str) -> Registration:
    """Give the backend autocast for what it promises."""
    return BACKEND.register({name: "fallthrough" for name in _LISTED if name not in PROMISED} | overrides)


register()
DEVICES = (Tested(BACKEND, PROMISED),)
