"""Ops with a policy that have no gradient; all others have one. A test compares each entry with PyTorch."""

from collections.abc import Mapping

WITHOUT: Mapping[str, str] = {
    "_addmm_activation": "PyTorch has no derivative of this fused kernel",
    "_native_multi_head_attention": "PyTorch has no derivative of this fused kernel",
    "geqrf": "its derivative is declared and not written",
    "linalg_matrix_rank": "a rank is an integer",
    "linalg_matrix_rank.atol_rtol_float": "a rank is an integer",
    "linalg_matrix_rank.atol_rtol_tensor": "a rank is an integer",
    "linalg_matrix_rank.tol_tensor": "a rank is an integer",
}
"""Overloads that have a policy and no gradient, each with the reason."""
