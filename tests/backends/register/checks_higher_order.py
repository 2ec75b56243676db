"""Higher-order operators in a region."""

from typing import Any

import torch
from register_support import BRAIN, HALF, NAME, WIDE, rand
from torch._C import DispatchKey

from ampcheck.register import register_autocast


def check_higher_order_operators() -> None:
    from torch._higher_order_ops.cond import cond_op
    from torch._higher_order_ops.wrap import wrap

    x = rand(2, 2)

    def product(a: Any) -> Any:
        return torch.mm(a, a)

    with register_autocast(NAME):
        with torch.autocast(NAME):
            assert wrap(product, x).dtype is HALF
            assert cond_op(True, lambda a: (product(a),), lambda a: (a,), (x,))[0].dtype is HALF
        assert wrap(product, x).dtype is WIDE


def check_flex_attention_is_cast() -> None:
    from torch._higher_order_ops.flex_attention import flex_attention

    q, k = rand(1, 1, 4, 4), rand(1, 1, 4, 4, dtype=BRAIN)
    blocks = [torch.zeros(shape, dtype=torch.int32, device=NAME) for shape in ((1, 1, 1), (1, 1, 1, 1))]
    whole = (4, 4, *blocks * 4, 128, 128, lambda b, h, m, n: m >= 0)

    inside = []

    def score(value: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        inside.append(torch.is_autocast_enabled(NAME))
        return value

    def call() -> Any:
        return flex_attention(q, k, q, score, whole, 0.5, {}, (), ())[0]

    with register_autocast(NAME):
        with torch.autocast(NAME):
            assert call().dtype is HALF
            assert torch.is_autocast_enabled(NAME)
        # torch may have no kernel to take over; then only what the operator is made of is cast.
        assert inside == [DispatchKey.AutocastCUDA not in flex_attention.py_kernels]
        q = q.to(BRAIN)
        assert call().dtype is BRAIN
