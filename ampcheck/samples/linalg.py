"""Decompositions, solvers and inverses."""

from ampcheck.samples.describe import at, f, function, i, linalg, method, regular, spd, unit, via

_VECTORS = {"values": "gauge", "reason": "eigenvectors and singular vectors are defined up to sign"}
_EIGENVALUES = {"values": "gauge", "reason": "the order of eigenvalues is not defined"}
_ORTHOGONAL = {"values": "gauge", "reason": "the factors are defined up to signs"}

OPS = {
    "_lu_with_info": function(
        at("2d", regular(3, 3)),
        at("batched", regular(2, 4, 3), True, False),
        via("torch.lu", regular(3, 3)),
        via("torch.Tensor.lu", regular(3, 3)),
    ),
    "cholesky": method(at("2d", spd(3, 3)), at("batched", spd(2, 3, 3), True), at("empty", f(0, 0, fill="zero"))),
    "cholesky_inverse": method(at("2d", f(3, 3, fill="lower")), at("batched", f(2, 3, 3, fill="upper"), True)),
    "cholesky_solve": method(
        at("2d", f(3, 2), f(3, 3, fill="lower")), at("broadcast", f(2, 3, 2), f(3, 3, fill="upper"), True)
    ),
    "geqrf": method(at("2d", f(4, 3)), at("batched", f(2, 3, 4)), **_ORTHOGONAL),
    "inverse": method(at("2d", regular(3, 3)), at("batched", regular(2, 3, 3)), at("empty", regular(0, 3, 3))),
    "linalg_cholesky": linalg(at("2d", spd(3, 3)), at("batched", spd(2, 3, 3), upper=True), at("empty", spd(0, 3, 3))),
    "linalg_cholesky_ex": linalg(at("2d", spd(3, 3)), at("batched", spd(2, 3, 3), upper=True, check_errors=True)),
    "linalg_cond": linalg(at("2d", regular(4, 3)), at("one", regular(3, 3), 1), at("batched", regular(2, 4, 3), -2)),
    "linalg_cond.p_str": linalg(at("frobenius", regular(3, 3), "fro"), at("nuclear", regular(2, 3, 3), "nuc")),
    "linalg_eig": linalg(at("2d", regular(3, 3)), at("batched", f(2, 3, 3)), **_VECTORS),
    "linalg_eigh": linalg(at("2d", spd(3, 3)), at("batched", spd(2, 3, 3), "U"), **_VECTORS),
    "linalg_eigvals": linalg(at("2d", regular(3, 3)), at("batched", f(2, 3, 3)), **_EIGENVALUES),
    "linalg_eigvalsh": linalg(at("2d", spd(3, 3)), at("batched", spd(2, 3, 3), "U")),
    "linalg_householder_product": linalg(at("2d", f(4, 3), unit(3)), at("batched", f(2, 4, 3), unit(2, 2))),
    "linalg_inv": linalg(at("2d", regular(3, 3)), at("batched", regular(2, 3, 3))),
    "linalg_inv_ex": linalg(at("2d", regular(3, 3)), at("batched", regular(2, 3, 3), check_errors=True)),
    # The default driver on the CPU reads pivots it never set (pytorch/pytorch#187411), so its bits vary from call to
    # call; it is only asked to solve nothing.
    "linalg_lstsq": linalg(
        at("2d", regular(4, 3), f(4, 2), driver="gels"),
        at("batched", regular(2, 4, 3), f(2, 4, 2), driver="gels"),
        at("svd", regular(4, 3), f(4, 2), 0.7, driver="gelsd"),
        at("empty", regular(0, 4, 3), f(0, 4, 2)),
    ),
    "linalg_matrix_rank": linalg(at("2d", regular(4, 3), 0.25), at("hermitian", f(2, 3, 3), 0.5, True)),
    "linalg_matrix_rank.atol_rtol_float": linalg(
        at("2d", regular(4, 3), atol=1.9, rtol=0.5), at("hermitian", f(2, 3, 3), rtol=0.3, hermitian=True)
    ),
    "linalg_matrix_rank.atol_rtol_tensor": linalg(
        at("2d", regular(4, 3), atol=unit(), rtol=unit(seed=1)), at("batched", f(2, 3, 3), atol=unit(2), hermitian=True)
    ),
    "linalg_matrix_rank.tol_tensor": linalg(
        at("2d", regular(4, 3), unit()), at("hermitian", f(2, 3, 3), unit(2), True)
    ),
    "linalg_matrix_sqrth": linalg(at("2d", spd(3, 3)), at("batched", spd(2, 3, 3))),
    "linalg_qr": linalg(
        at("2d", f(4, 3)), at("batched", f(2, 4, 3), "complete"), at("ronly", f(4, 3), "r"), **_ORTHOGONAL
    ),
    "linalg_solve": linalg(
        at("2d", regular(3, 3), f(3, 2)),
        at("vector", regular(3, 3), f(3)),
        at("right", regular(2, 3, 3), f(2, 4, 3), left=False),
    ),
    "linalg_svd": linalg(at("2d", f(4, 3)), at("batched", f(2, 3, 4), False), **_VECTORS),
    "linalg_svdvals": linalg(at("2d", f(4, 3)), at("batched", f(2, 3, 4))),
    "linalg_tensorinv": linalg(at("3d", f(2, 2, 4)), at("first", f(4, 2, 2), 1)),
    "linalg_tensorsolve": linalg(at("3d", f(2, 2, 4), f(2, 2)), at("moved", f(2, 4, 2), f(2, 2), (1,))),
    "lu_solve": method(
        at("2d", f(3, 2), regular(3, 3), i(3, fill="pivots", dtype="int32")),
        at("batched", f(2, 3, 1), regular(2, 3, 3), i(2, 3, fill="pivots", dtype="int32")),
    ),
    "orgqr": method(at("2d", f(4, 3), unit(3)), at("batched", f(2, 4, 3), unit(2, 2))),
    "ormqr": method(at("2d", f(4, 3), unit(3), f(4, 2)), at("right", f(2, 4, 3), unit(2, 3), f(2, 5, 4), False, True)),
    "pinverse": method(at("2d", regular(4, 3)), at("batched", regular(2, 4, 3), 0.7)),
    "qr": method(at("2d", f(4, 3)), at("complete", f(2, 4, 3), False), **_ORTHOGONAL),
    "svd": method(
        at("2d", f(4, 3)), at("complete", f(2, 3, 4), False), at("valuesonly", f(4, 3), True, False), **_VECTORS
    ),
    "triangular_solve": method(
        at("2d", f(3, 2), f(3, 3, fill="upper")),
        at("transposed", f(2, 3, 2), f(2, 3, 3, fill="lower"), False, True, True),
    ),
}
