"""Decompositions, solvers and inverses."""

from ampcheck.samples.describe import Op, Sample, at, f, function, i, op, regular, spd, unit, via

_VECTORS = "eigenvectors and singular vectors are defined up to sign"
_EIGENVALUES = "the order of eigenvalues is not defined"
_ORTHOGONAL = "the factors are defined up to signs"


def _function(overload: str, *samples: Sample, gauge: str = "") -> Op:
    """Return an overload of a function of torch.linalg, or of one of torch that is a method too.

    `gauge`: why its result is not defined by its inputs alone.
    """
    name = overload.partition(".")[0]
    old = (f"torch.{name}", f"torch.Tensor.{name}")
    also = (f"torch.linalg.{name.removeprefix('linalg_')}",) if name.startswith("linalg_") else old
    return op(overload, *samples, also=also, values="gauge" if gauge else "exact", reason=gauge)


OPS = (
    function(
        "_lu_with_info",
        at("2d", regular(3, 3)),
        at("batched", regular(2, 4, 3), True, False),
        via("torch.lu", regular(3, 3)),
        via("torch.Tensor.lu", regular(3, 3)),
    ),
    _function("cholesky", at("2d", spd(3, 3)), at("batched", spd(2, 3, 3), True), at("empty", f(0, 0, fill="zero"))),
    _function("cholesky_inverse", at("2d", f(3, 3, fill="lower")), at("batched", f(2, 3, 3, fill="upper"), True)),
    _function(
        "cholesky_solve",
        at("2d", f(3, 2), f(3, 3, fill="lower")),
        at("broadcast", f(2, 3, 2), f(3, 3, fill="upper"), True),
    ),
    _function("geqrf", at("2d", f(4, 3)), at("batched", f(2, 3, 4)), gauge=_ORTHOGONAL),
    _function("inverse", at("2d", regular(3, 3)), at("batched", regular(2, 3, 3)), at("empty", regular(0, 3, 3))),
    _function(
        "linalg_cholesky", at("2d", spd(3, 3)), at("batched", spd(2, 3, 3), upper=True), at("empty", spd(0, 3, 3))
    ),
    _function("linalg_cholesky_ex", at("2d", spd(3, 3)), at("batched", spd(2, 3, 3), upper=True, check_errors=True)),
    _function("linalg_cond", at("2d", regular(4, 3)), at("one", regular(3, 3), 1), at("batched", regular(2, 4, 3), -2)),
    _function("linalg_cond.p_str", at("frobenius", regular(3, 3), "fro"), at("nuclear", regular(2, 3, 3), "nuc")),
    _function("linalg_eig", at("2d", regular(3, 3)), at("batched", f(2, 3, 3)), gauge=_VECTORS),
    _function("linalg_eigh", at("2d", spd(3, 3)), at("batched", spd(2, 3, 3), "U"), gauge=_VECTORS),
    _function("linalg_eigvals", at("2d", regular(3, 3)), at("batched", f(2, 3, 3)), gauge=_EIGENVALUES),
    _function("linalg_eigvalsh", at("2d", spd(3, 3)), at("batched", spd(2, 3, 3), "U")),
    _function("linalg_householder_product", at("2d", f(4, 3), unit(3)), at("batched", f(2, 4, 3), unit(2, 2))),
    _function("linalg_inv", at("2d", regular(3, 3)), at("batched", regular(2, 3, 3))),
    _function("linalg_inv_ex", at("2d", regular(3, 3)), at("batched", regular(2, 3, 3), check_errors=True)),
    # The default driver on the CPU reads pivots it never set (pytorch/pytorch#187411), so its bits vary from call to
    # call; it is only asked to solve nothing.
    _function(
        "linalg_lstsq",
        at("2d", regular(4, 3), f(4, 2), driver="gels"),
        at("batched", regular(2, 4, 3), f(2, 4, 2), driver="gels"),
        at("svd", regular(4, 3), f(4, 2), 0.7, driver="gelsd"),
        at("empty", regular(0, 4, 3), f(0, 4, 2)),
    ),
    _function("linalg_matrix_rank", at("2d", regular(4, 3), 0.25), at("hermitian", f(2, 3, 3), 0.5, True)),
    _function(
        "linalg_matrix_rank.atol_rtol_float",
        at("2d", regular(4, 3), atol=1.9, rtol=0.5),
        at("hermitian", f(2, 3, 3), rtol=0.3, hermitian=True),
    ),
    _function(
        "linalg_matrix_rank.atol_rtol_tensor",
        at("2d", regular(4, 3), atol=unit(), rtol=unit(seed=1)),
        at("batched", f(2, 3, 3), atol=unit(2), hermitian=True),
    ),
    _function(
        "linalg_matrix_rank.tol_tensor", at("2d", regular(4, 3), unit()), at("hermitian", f(2, 3, 3), unit(2), True)
    ),
    _function("linalg_matrix_sqrth", at("2d", spd(3, 3)), at("batched", spd(2, 3, 3))),
    _function(
        "linalg_qr",
        at("2d", f(4, 3)),
        at("batched", f(2, 4, 3), "complete"),
        at("ronly", f(4, 3), "r"),
        gauge=_ORTHOGONAL,
    ),
    _function(
        "linalg_solve",
        at("2d", regular(3, 3), f(3, 2)),
        at("vector", regular(3, 3), f(3)),
        at("right", regular(2, 3, 3), f(2, 4, 3), left=False),
    ),
    _function("linalg_svd", at("2d", f(4, 3)), at("batched", f(2, 3, 4), False), gauge=_VECTORS),
    _function("linalg_svdvals", at("2d", f(4, 3)), at("batched", f(2, 3, 4))),
    _function("linalg_tensorinv", at("3d", f(2, 2, 4)), at("first", f(4, 2, 2), 1)),
    _function("linalg_tensorsolve", at("3d", f(2, 2, 4), f(2, 2)), at("moved", f(2, 4, 2), f(2, 2), (1,))),
    _function(
        "lu_solve",
        at("2d", f(3, 2), regular(3, 3), i(3, fill="pivots", dtype="int32")),
        at("batched", f(2, 3, 1), regular(2, 3, 3), i(2, 3, fill="pivots", dtype="int32")),
    ),
    _function("orgqr", at("2d", f(4, 3), unit(3)), at("batched", f(2, 4, 3), unit(2, 2))),
    _function(
        "ormqr", at("2d", f(4, 3), unit(3), f(4, 2)), at("right", f(2, 4, 3), unit(2, 3), f(2, 5, 4), False, True)
    ),
    _function("pinverse", at("2d", regular(4, 3)), at("batched", regular(2, 4, 3), 0.7)),
    _function("qr", at("2d", f(4, 3)), at("complete", f(2, 4, 3), False), gauge=_ORTHOGONAL),
    _function(
        "svd",
        at("2d", f(4, 3)),
        at("complete", f(2, 3, 4), False),
        at("valuesonly", f(4, 3), True, False),
        gauge=_VECTORS,
    ),
    _function(
        "triangular_solve",
        at("2d", f(3, 2), f(3, 3, fill="upper")),
        at("transposed", f(2, 3, 2), f(2, 3, 3, fill="lower"), False, True, True),
    ),
)
