"""The samples of an op with a policy vary each of its arguments but tensors, so that one that is lost shows."""

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from ampcheck.checks.cases import floating_count
from ampcheck.devices.registry import known
from ampcheck.observe.closeness import identical
from ampcheck.observe.recorder import exists, overload
from ampcheck.samples import catalogue
from ampcheck.samples.describe import Sample, TensorArg
from ampcheck.samples.tensors import build

LISTED = sorted({name for device in known().values() for name in device.policies()} & set(catalogue()))

_ONE_LSTM = "oneDNN's layer takes one kind of cell and sizes that the weights decide, and has forward kernels alone"
_OF_LSTM = ("batch_first", "batch_sizes", "has_biases", "hidden_size", "mode", "num_layers", "train")
_BENCHMARK = "a benchmark picks an algorithm anew, so the bits of two calls would differ"
FIXED = {
    ("_convolution", "benchmark"): _BENCHMARK,
    ("_convolution.deprecated", "benchmark"): _BENCHMARK,
    ("_lu_with_info", "pivot"): "PyTorch has no factorization without pivots on the CPU",
    ("_native_multi_head_attention", "embed_dim"): "the shapes of the weights decide it",
    ("_scaled_dot_product_flash_attention", "dropout_p"): "it draws random numbers, which no float64 result has",
    ("_scaled_dot_product_flash_attention", "return_debug_mask"): "CUDA takes it with dropout alone",
    ("cudnn_convolution", "benchmark"): _BENCHMARK,
    ("cudnn_convolution", "deterministic"): "the bits of two calls would differ",
    ("cudnn_convolution_transpose", "benchmark"): _BENCHMARK,
    ("cudnn_convolution_transpose", "deterministic"): "the bits of two calls would differ",
    ("linalg_svd", "driver"): "PyTorch takes it on CUDA alone",
    ("linalg_svdvals", "driver"): "PyTorch takes it on CUDA alone",
    **dict.fromkeys([("mkldnn_rnn_layer", name) for name in _OF_LSTM], _ONE_LSTM),
}
"""Arguments that have one value in all samples, and why."""


def _given(sample: Sample, place: int, argument: Any) -> Any:
    """Return the value that a sample gives an argument, by default the argument's own."""
    if sample.call == "aten" and place < len(sample.args) and not argument.kwarg_only:
        return sample.args[place]
    return sample.kwargs.get(argument.name, argument.default_value)


@pytest.mark.parametrize("name", LISTED)
def test_no_argument_has_one_value_alone(name: str) -> None:
    if not exists(name):
        pytest.skip(f"this torch has no aten::{name}")
    schema = overload(name)._schema
    fixed = set()
    for place, argument in enumerate(schema.arguments):
        optional = argument.has_default_value()
        if not optional and "Tensor" in str(argument.type):
            continue
        samples = [sample for sample in catalogue()[name].samples if optional or sample.call == "aten"]
        values: list[Any] = [argument.default_value] if optional else []
        for sample in samples:
            value = _given(sample, place, argument)
            values += [value] * (isinstance(value, TensorArg) or value not in values)
        fixed |= {argument.name} if len(values) < 2 else set()
    assert fixed == {argument for op, argument in FIXED if op == name}, "name the exception and its reason in FIXED"


_ERRORS = "eligibility/checks_on_request asks for them"
SAME = {
    ("_lu_with_info", "check_errors"): "torch.lu looks at it in Python",
    ("group_norm", "cudnn_enabled"): "it chooses a kernel on CUDA",
    ("layer_norm", "cudnn_enable"): "it chooses a kernel on CUDA",
    ("linalg_cholesky_ex", "check_errors"): _ERRORS,
    ("linalg_inv_ex", "check_errors"): _ERRORS,
}
"""Arguments without which each sample gives the same on the CPU, and why."""


def _result(name: str, sample: Sample, without: Any = None) -> list[object]:
    """Return what a sample gives on the CPU, or its exception; `without`: an argument that has its default instead."""
    args, kwargs = build(sample, ["fp32"] * floating_count(sample), known()["cpu"])
    given = dict(zip((argument.name for argument in overload(name)._schema.arguments), args, strict=False)) | kwargs
    if without is not None:
        given[without.name] = without.default_value
    torch.manual_seed(0)
    try:
        return tree_leaves(overload(name)(**given))
    except Exception as error:  # it may raise anything
        return [repr(error)]


def _same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and identical(one, other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.filterwarnings("ignore")
def test_each_option_changes_a_result(name: str) -> None:
    if not exists(name):
        pytest.skip(f"this torch has no aten::{name}")
    samples = [sample for sample in catalogue()[name].samples if sample.call == "aten"]
    whole = [_result(name, sample) for sample in samples]
    if all(isinstance(parts[0], str) for parts in whole):
        pytest.skip("the CPU has no kernel of it")
    lost = set()
    for argument in overload(name)._schema.arguments:
        if argument.has_default_value() and (name, argument.name) not in FIXED:
            without = [_result(name, sample, argument) for sample in samples]
            pairs = zip(whole, without, strict=True)
            same = all(len(a) == len(b) and all(map(_same, a, b)) for a, b in pairs)
            lost |= {argument.name} if same else set()
    assert lost == {argument for op, argument in SAME if op == name}, "vary it in a sample so that a result shows it"
