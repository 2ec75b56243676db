"""PyTorch's own databases of ops and modules on the device beside the CPU: values, errors, gradients, state.

Samples are in several dtypes, broadcast, strided, with numbers, and at edges: nan, infinities, zeros, equal elements.
Each run takes a share of the cases; a nightly one takes all.
"""

import copy
import re
import warnings
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import partial
from typing import Any

import pytest
import torch
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.common_modules import module_db

from ampcheck.observe.torch_private import pytree
from scripts.jax_coverage import measure
from scripts.jax_coverage.judge import INVARIANTS
from scripts.jax_coverage.measure import Way
from tests.cli_support import ROOT
from tests.jax.agreement import close, gradients, moved, some, tensors

PAGE = ROOT / "docs" / "jax_ops.md"
SAMPLES = 3
NIGHTLY = {"plain": 12, "reference": 6, "edges": 3}
"""At most so many samples of a case, in each run and of each kind in a nightly one."""


_SECTION = PAGE.read_text(encoding="utf-8").partition("## Ops that do not fully agree")[2].partition("\n## ")[0]
DISAGREEING = set(re.findall(r"^\| (\S+) \| \d", _SECTION, re.MULTILINE))
"""The ops that docs/jax_ops.md says have samples that do not agree."""
measure.unseed()
FOREACH = {
    op.name: op
    for kind in ("unary", "binary", "pointwise", "reduce", "other")
    for op in getattr(database, f"foreach_{kind}_op_db")
    if op.op is not None
}
OPS = {measure.name_of(op): op for op in database.op_db} | FOREACH
KINDS = {
    torch.float32: measure.KINDS,
    torch.bfloat16: ("reference", "edges"),
    torch.int64: ("reference",),
    **{dtype: ("plain",) for dtype in (torch.uint8, torch.bool, torch.complex64)},
}
REFUSED = {
    *("multinomial", "pca_lowrank", "svd_lowrank", "norm.nuc"),
    *("linalg.cond", "linalg.lstsq", "linalg.lstsq.grad_oriented", "linalg.tensorinv"),
}
"""Ops of which the CPU refuses numbers that are infinite or nan, one way or another."""
CASES = [
    (name, dtype, kind)
    for name, op in OPS.items()
    for dtype, kinds in KINDS.items()
    if dtype in op.supported_dtypes("cpu") and not name.startswith("jiterator")  # which the CPU has not
    for kind in kinds
    if name not in FOREACH and (kind != "edges" or name not in REFUSED)
] + [(name, dtype, "plain") for name in FOREACH for dtype in (torch.float32, torch.bfloat16)]
OTHERWISE = {
    # The CPU rounds between steps, or keeps statistics in lower precision.
    "*bfloat16 *": "addbmm addr *cross histc log_softmax index_reduce.mean *instance_norm *batch_norm* "
    "native_layer_norm _unsafe_masked_index_put_accumulate nn.functional.fractional_max_pool2d",
    "*float* *": "byte char short int long",  # of what the integer does not hold
    "*": "chalf to_sparse sparse.*",  # not on the device
    # Ill-conditioned samples; the CPU's coordinates and weights of pixels are rounded.
    "* reference": "matrix_exp *grid_sample* *interpolate.* *upsample_bilinear*",
    "*complex64 *": "uniform pinverse logaddexp linalg.lstsq* linalg.ldl_factor* linalg.pinv*",
    "*float32 *": "*native_batch_norm*",  # without training there are statistics here
    # Which of several nan or infinities comes out; an element of weight 0 counts for nothing here.
    "* edges": "*.pdist cdist cholesky_inverse fft.* geqrf linalg.cholesky* linalg.ldl_* linalg.slogdet matrix_exp "
    "native_group_norm native_dropout_backward stft unique *embedding_bag *gelu *grid_sample* *interpolate.* "
    "*margin_loss *scaled_dot_product_attention *upsample_* special.zeta",
    "*bfloat16 edges": "*conv*",
}
"""Ops that the device computes otherwise than the CPU, by dtype and kind of samples."""
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
UNSTRIDED = {
    *(name for name in measure.ops() if name.startswith("jiterator")),  # which the CPU has not
    *("as_strided.partial_views", "linalg.pinv.singular", "ormqr", "tensor_split", "to", "view_copy"),  # not taken
    *("chalf", "to_sparse", "sparse.mm.reduce", "sparse.sampled_addmm", "nn.functional.embedding_bag"),  # not here
    *("as_strided_scatter", "native_group_norm", "nn.functional.max_pool3d", "view", "view_as", "view_as_complex"),
    *("linalg.lstsq", "linalg.lstsq.grad_oriented", "nonzero", "argwhere", "masked.log_softmax"),
    "nn.functional.conv_transpose3d",  # which test_ops.py has; the CPU's slow kernel of some has no such layout
}
"""Ops of which the CPU or the device takes no samples arranged otherwise, or whose Meta kernel says nothing."""
DRAWN = ("nn.FractionalMaxPool", "nn.Lazy")
"""What draws random numbers, which are the device's own: windows, and parameters that are made at the first call."""
MODULES = {info.name: info for info in module_db if not info.name.startswith(DRAWN)}
NO_GRADIENT = {
    *("chalf", "to_sparse", "sparse.mm.reduce", "sparse.sampled_addmm"),  # which the device refuses
    "tensor_split",  # wants an argument on the CPU
    *("nn.functional.rrelu", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d"),  # draw
    *("svd_lowrank", "nn.functional.multi_head_attention_forward"),  # draw, too
    "as_strided.partial_views",  # a copy on the device leaves behind the storage that the view does not show
}
LOOSE = {"logcumsumexp": 1000.0, "linalg.householder_product": 1000.0}
"""By how much more than for others a gradient in float32 may be off: both take differences of large numbers."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Deprecated and experimental ops are called too, and warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(("name", "dtype", "kind"), some(CASES, 64), ids=str)
def test_values(name: str, dtype: torch.dtype, kind: str, request: pytest.FixtureRequest) -> None:
    most = NIGHTLY[kind] if request.config.option.nightly else SAMPLES
    outcomes = list(measure.measure(OPS[name], Way(), most, dtype, kind))
    assert {*outcomes} != {None}, "the CPU computes none of the samples"
    reasons = [*filter(None, outcomes)]
    plain = dtype is torch.float32 and kind == "plain"
    patterns = [(which, op) for which, ops in OTHERWISE.items() for op in ops.split()]
    known = any(fnmatch(name, op) and fnmatch(f"{dtype} {kind}", which) for which, op in patterns)
    known = name in DISAGREEING if plain else known
    assert not reasons or known, reasons


NOT_WRITING = {
    *("cauchy", "exponential", "geometric", "log_normal", "normal.in_place", "uniform", "nn.functional.rrelu"),  # draw
    *("resize_", "resize_as_"),  # no other version
    "float_power",  # writes to float64 alone
}
ANSWERED = {
    *("__rmod__", "__rpow__", "__rsub__", "clamp_max", "clamp_min"),  # an error of the samples' maker
    *("amax", "amin", "aminmax"),  # more than 64 dimensions, which JAX has not
    *("gather", "index_select", "cat"),  # `out=` whose elements overlap each other
    "complex",  # `out=` of another dtype
}
"""Of what PyTorch refuses there, the device answers some."""
REFUSING = [name for name, op in OPS.items() if op.error_inputs_func and name not in ANSWERED]


@pytest.mark.parametrize("name", some(REFUSING, 18))
def test_errors(name: str, value_checks: None) -> None:
    """What PyTorch refuses is refused, by an error of the same kind."""
    for wrong in OPS[name].error_inputs("jax"):
        given = wrong.sample_input
        with pytest.raises(wrong.error_type):
            OPS[name](given.input, *given.args, **given.kwargs)


WRITING = [
    name
    for name, op in OPS.items()
    if op.inplace_variant is not None and name not in NOT_WRITING and "dropout" not in name
]


@pytest.mark.parametrize("name", some(WRITING, 72))
def test_in_place(name: str) -> None:
    """The values of what is written, through a view that is not contiguous, and that autograd sees a new version."""
    op = OPS[name]
    dtype = next(d for d in (torch.float32, torch.int64, torch.complex64) if d in op.supported_dtypes("cpu"))
    for sample in measure.samples(op, SAMPLES, dtype):
        if name in FOREACH:
            here = [t.detach().clone() for t in sample.input]
        elif isinstance(sample.input, torch.Tensor) and not sample.broadcasts_input:
            here = [torch.stack([sample.input, sample.input], -1)[..., 0]]
        else:
            continue
        there = moved([t.detach() for t in here])
        if name not in FOREACH:
            there = [torch.stack([t, t], -1)[..., 0] for t in there]
        before = [t._version for t in there]
        for given, args, kwargs in ((here, sample.args, sample.kwargs), (there, *moved((sample.args, sample.kwargs)))):
            op.inplace_variant(given if name in FOREACH else given[0], *args, **kwargs)
        close(there, here, 16)
        assert all(t._version > version for t, version in zip(there, before, strict=True))


NOT_MADE = {
    *("equal", "histogramdd", "nonzero", "_batch_norm_with_update", *FOREACH),  # take no such `out=`
    *("native_batch_norm", "_native_batch_norm_legit", "split_with_sizes_copy", "sparse.sampled_addmm"),  # not here
    *("torch._scaled_mm", "torch._scaled_mm_v2", "linalg.eigvals", "fft.ihfft2", "fft.ihfftn"),  # neither
    *("bernoulli", "empty", "multinomial", "normal", "normal.number_mean", "randn"),  # draw
    *("linalg.pinv.hermitian", *INVARIANTS),  # not unique
}
OTHER_STRIDES = {
    *("div.floor_rounding", "floor_divide", "copysign", "xlogy", "special.xlog1py", "triangular_solve"),
    *("linalg.ldl_solve", "linalg.lstsq", "linalg.solve", "linalg.solve_ex"),  # PyTorch's Meta kernels say others
}
WHOLE = {"view_copy", "as_strided_copy", "unbind_copy", "kron"}  # on the CPU they take no such input, or other elements
MADE = [name for name, op in OPS.items() if op.supports_out and name not in NOT_MADE]


@pytest.mark.parametrize("name", some(MADE, 72))
def test_out(name: str) -> None:
    """Empty `out=` tensors get the shape, the strides and the values, also of an input whose columns lie together."""
    op = OPS[name]
    dtype = torch.float32 if torch.float32 in op.dtypes else torch.int64
    for sample in measure.samples(op, SAMPLES, dtype):
        for turned in (False, name not in WHOLE and isinstance(sample.input, torch.Tensor) and sample.input.dim() > 1):
            given = (sample.input.mT.contiguous().mT if turned else sample.input, sample.args, sample.kwargs)
            made = op(given[0], *given[1], **given[2])
            outs, same = {}, {}
            for device, (first, args, kwargs) in {"cpu": given, "jax": Way().there(given)}.items():
                new = partial(torch.empty, 0, device=device)
                outs[device] = pytree.tree_map_only(torch.Tensor, lambda t, new=new: new(dtype=t.dtype), made)
                found = op(first, *args, **kwargs, out=outs[device])
                same[device] = [a is b for a, b in zip(tensors(found), tensors(outs[device]), strict=False)]
            assert same["jax"] == same["cpu"]
            assert all(same["jax"])
            close(outs["jax"], made, 64)
            strides = [[t.stride() for t in tensors(outs[device])] for device in outs]
            assert strides[0] == strides[1] or name in OTHER_STRIDES


def sample_gradients(op: Any, sample: Any, given: Any) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of the tensors in a sample's arguments, by what of the result is unique."""
    return gradients(sample.output_process_fn_grad(op(given[0], *given[1], **given[2])), given)


DIFFERENTIABLE = [name for name, op in measure.ops().items() if op.supports_autograd and name not in NO_GRADIENT]


@pytest.mark.parametrize("name", some(DIFFERENTIABLE, 72))
def test_gradients(name: str) -> None:
    op = measure.ops()[name]
    every = list(op.sample_inputs("cpu", torch.float32, requires_grad=True))
    for index in measure.spread(len(every), 2):
        given = (every[index].input, every[index].args, every[index].kwargs)
        expected, found = (sample_gradients(op, every[index], g) for g in (given, moved(given)))
        assert [g is None for g in found] == [g is None for g in expected]
        close(found, expected, LOOSE.get(name, 64))


def strides(op: Any, sample: Any, given: Any) -> list[Any]:
    """Return the strides of results and gradients, by sizes other than 1."""
    results = tensors(op(given[0], *given[1], **given[2]))
    grads = sample_gradients(op, sample, given) if measure.name_of(op) in DIFFERENTIABLE else ()
    found = [t for t in (*results, *grads) if t is not None and t.numel()]
    return [[s for n, s in zip(t.shape, t.stride(), strict=True) if n != 1] for t in found]


@pytest.mark.parametrize("name", some([n for n in measure.ops() if n not in UNSTRIDED], 72))
def test_strides(name: str) -> None:
    """Of inputs whose channels, or else columns, lie together: the strides are the CPU's, or the Meta kernel's."""
    op = measure.ops()[name]

    def arranged(t: Any) -> Any:
        if not torch.is_tensor(t) or t.dim() < 2:
            return t
        other = t.contiguous(memory_format=FORMATS[t.dim()]) if t.dim() in FORMATS else t.mT.contiguous().mT
        return other.detach().requires_grad_(t.requires_grad)

    every = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
    for index in measure.spread(len(every), 3):
        sample = every[index]
        given = pytree.tree_map(arranged, (sample.input, sample.args, sample.kwargs))
        found = strides(op, sample, moved(given))
        if found != strides(op, sample, given):
            assert found == strides(op, sample, pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), given))


@pytest.mark.parametrize("name", some(MODULES, 32))
def test_modules(name: str) -> None:
    """In training and in evaluation: outputs, gradients of parameters, and buffers."""
    info = MODULES[name]
    for training in (True, False):
        for given in info.module_inputs_func(info, "cpu", torch.float32, True, training)[:2]:
            torch.manual_seed(0)
            arguments = given.constructor_input
            here = info.module_cls(*arguments.args, **arguments.kwargs).train(training)
            there = copy.deepcopy(here).to("jax")
            seen = []
            for module, (args, kwargs) in (
                (here, (given.forward_input.args, given.forward_input.kwargs)),
                (there, moved((given.forward_input.args, given.forward_input.kwargs))),
            ):
                out = tensors(module(*args, **kwargs))
                sum(t.float().square().sum() for t in out if t.requires_grad).backward()
                grads = [p.grad for p in module.parameters() if p.grad is not None]
                seen.append([*out, *grads, *module.buffers()])
            close(seen[1], seen[0], loose=64)
