"""Solving with LDLᵀ factors, in the form in which LAPACK's `sytrf` and `hetrf` (lower) leave them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import lower


def _second(negative: Array) -> Array:
    """Return which rows are the second of a two by two block: pivots of a block are both negative."""

    def step(before: Array, mine: Array) -> tuple[Array, Array]:
        found = mine & before
        return mine & ~found, found

    return jax.lax.scan(step, jnp.zeros((), jnp.bool_), negative)[1]


def _swapped(b: Array, one: Array, other: Array) -> Array:
    return b.at[one].set(b[other]).at[other].set(b[one])


def _solve(factors: Array, pivots: Array, b: Array, hermitian: bool) -> Array:
    """Solve one system: L, then D and its two by two blocks, then Lᵀ (Lᴴ), with the interchanges of rows in between."""
    n = factors.shape[0]
    rows = jnp.arange(n)
    second = _second(pivots < 0)
    first = (pivots < 0) & ~second
    target = jnp.abs(pivots) - 1
    turned = jnp.conj(factors) if hermitian else factors
    diagonal = jnp.diagonal(factors).real.astype(factors.dtype) if hermitian else jnp.diagonal(factors)

    def down(k: Array, b: Array) -> Array:
        after = jnp.minimum(k + 1, n - 1)
        at = jnp.where(first[k], after, k)
        moved = _swapped(b, at, target[k])
        mine, its = moved[k], moved[after]
        left = jnp.where(rows > at, factors[:, k], 0)[:, None] * mine
        right = jnp.where(first[k] & (rows > at), factors[:, after], 0)[:, None] * its
        out = moved - left - right
        low, high = factors[after, k], turned[after, k]
        determinant = diagonal[k] * diagonal[after] - low * high
        pair = (diagonal[after] * mine - high * its) / determinant, (diagonal[k] * its - low * mine) / determinant
        block = out.at[k].set(pair[0]).at[after].set(pair[1])
        return jnp.where(second[k], b, jnp.where(first[k], block, out.at[k].set(mine / diagonal[k])))

    def up(j: Array, b: Array) -> Array:
        k = n - 1 - j
        before = jnp.maximum(k - 1, 0)
        below = jnp.where((rows > k)[:, None], b, 0)
        out = b.at[k].add(-(turned[:, k] @ below))
        out = jnp.where(second[k], out.at[before].add(-(turned[:, before] @ below)), out)
        return jnp.where(first[k], b, _swapped(out, k, target[k]))

    out: Array = jax.lax.fori_loop(0, n, up, jax.lax.fori_loop(0, n, down, b))
    return out


@lower("linalg_ldl_solve")
def ldl_solve(LD: Array, pivots: Array, B: Array, *, hermitian: bool = False) -> Array:
    """Return X of A X = B, where A has the factors `LD` and the pivots that `ldl_factor` gives."""
    n = LD.shape[-1]
    batch = jnp.broadcast_shapes(LD.shape[:-2], pivots.shape[:-1], B.shape[:-2])
    if not B.size or not n:
        return jnp.zeros((*batch, *B.shape[-2:]), B.dtype)
    flat = (
        jnp.broadcast_to(LD, (*batch, n, n)).reshape(-1, n, n),
        jnp.broadcast_to(pivots, (*batch, n)).reshape(-1, n),
        jnp.broadcast_to(B, (*batch, *B.shape[-2:])).reshape(-1, *B.shape[-2:]),
    )
    out = jax.vmap(lambda f, p, b: _solve(f, p, b, hermitian and jnp.iscomplexobj(LD)))(*flat)
    return out.reshape(*batch, *B.shape[-2:])
