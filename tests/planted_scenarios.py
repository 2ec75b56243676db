"""Which scenario must name which fault, and in what words."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tests import torch_faults as faults


class Case(NamedTuple):
    """A scenario, the fault, and what the scenario says of it."""

    file: str
    name: str
    plant: faults.Plant
    says: str
    device: str = "cpu"
    parameters: dict[str, object] = {}  # noqa: RUF012  # never changed


_REFUSES = "raised nothing; expected"
CASES = [
    Case(
        "cache",
        "one_cast_for_many_uses",
        faults.never_kept,
        "casts of a leaf used by three products: got 3; expected 1",
    ),
    Case("cache", "off", faults.always_kept, "casts without the cache: got 1; expected 3"),
    Case("cache", "off_inside_on", faults.always_kept, "casts inside: got 0; expected 2"),
    Case("cache", "switched_inside", faults.always_kept, "casts after switching the cache off: got 1; expected 2"),
    Case(
        "cache",
        "dropped_at_outermost_exit",
        faults.no_clearing,
        "casts in the next outermost region: got 0; expected 1",
    ),
    Case(
        "cache", "dropped_at_outermost_exit", faults.always_outermost, "casts after an inner region: got 1; expected 0"
    ),
    Case("cache", "dropped_at_outermost_exit", faults.no_clearing, "got 0; expected 1", "virtual:xpu"),
    Case("cache", "dropped_by_an_exception", faults.no_clearing, "casts in the next region: got 0; expected 1"),
    Case("cache", "cleared_on_request", faults.no_clearing, "casts after clearing: got 0; expected 1"),
    Case("cache", "cleared_by_another_thread", faults.no_clearing, "casts after clearing: got 0; expected 1"),
    Case("cache", "freed_after_the_region", faults.no_clearing, "casts alive after the region: got 1; expected 0"),
    Case("cache", "no_growth_without_grad", faults.never_kept, "casts kept after four forwards: got 0; expected 1"),
    Case(
        "cache",
        "registered_as_reused",
        faults.returns("_C._add_cached_tensor", None),
        "registered tensor: got 1; expected 3",
    ),
    Case("cache", "survives_another_thread", faults.wrapped("mm", faults.detached), "does not require grad"),
    Case("gradients", "one_cast_with_gradients", faults.never_kept, "nodes behind two uses, cache_enabled=True: got 2"),
    Case(
        "gradients",
        "three_forwards_three_backwards",
        faults.wrapped("mm", faults.doubled_in_regions),
        "gradient in turn 0",
    ),
    Case(
        "gradients",
        "no_grad_before_grad",
        faults.wrapped("mm", faults.detached),
        "whether a later result requires grad: got False",
    ),
    Case(
        "gradients",
        "grad_before_no_grad",
        faults.wrapped("mm", faults.detached),
        "before no_grad requires grad: got False",
    ),
    Case(
        "gradients",
        "alternating_grad_modes",
        faults.wrapped("mm", faults.detached),
        "whether result 1 requires grad: got False",
    ),
    Case("gradients", "shared_with_the_backward_pass", faults.never_kept, "casts of the weight: got 2; expected 1"),
    Case("gradients", "new_values_after_a_step", faults.wrapped("mm", faults.twice), "product after the step"),
    Case(
        "state",
        "enabled_round_trip",
        faults.returns("set_autocast_enabled", None),
        "enabled after setting True: got False",
    ),
    Case(
        "state",
        "dtype_round_trip",
        faults.returns("get_autocast_dtype", torch.bfloat16),
        "got torch.bfloat16; expected",
    ),
    Case("state", "reuse_round_trip", faults.always_kept, "cache_enabled after setting False: got True"),
    Case(
        "state",
        "device_types_are_independent",
        faults.wrapped("is_autocast_enabled", faults.all_types),
        "after enabling this one",
    ),
    Case("state", "depth", faults.always_outermost, "depth in a region: got 0; expected 1"),
    Case("state", "without_a_device_type", faults.returns("is_autocast_enabled", False), "got False", "virtual:cuda"),
    Case(
        "state",
        "wrong_argument",
        faults.returns("is_autocast_enabled", True),
        _REFUSES,
        parameters={"wrong": "read_number"},
    ),
    Case(
        "state",
        "wrong_argument",
        faults.returns("set_autocast_enabled", None),
        _REFUSES,
        parameters={"wrong": "set_swapped"},
    ),
    Case(
        "deprecated", "class", faults.quiet_spelling, "the deprecated class: warned of nothing; expected FutureWarning"
    ),
    Case("deprecated", "class_default", faults.inverted, "state in the region: got (False"),
    Case(
        "deprecated",
        "functions",
        faults.returns("is_autocast_cpu_enabled", False),
        "what is_autocast_cpu_enabled reads: got False",
    ),
    Case(
        "deprecated",
        "functions_of",
        faults.returns("get_autocast_xla_dtype", torch.bfloat16),
        "warned of nothing",
        parameters={"name": "xla"},
    ),
    Case("deprecated", "custom_functions", faults.quiet_custom, "custom_fwd: warned of nothing", "virtual:cuda"),
    Case(
        "defaults",
        "dtype",
        faults.returns("get_autocast_dtype", torch.float16),
        "get_autocast_dtype: got torch.float16",
        "cpu",
    ),
    Case(
        "defaults", "dtype", faults.returns("get_autocast_dtype", torch.bfloat16), "got torch.bfloat16", "virtual:mtia"
    ),
    Case(
        "defaults",
        "dtype_of_every_device_type",
        faults.returns("get_autocast_dtype", torch.float16),
        "default dtype of xla: got",
    ),
    Case(
        "defaults",
        "available_device_types",
        faults.returns("amp.is_autocast_available", True),
        "is_autocast_available('meta')",
    ),
    Case("defaults", "enabled", faults.off_by_default, "enabled in a region without options: got False"),
    Case("defaults", "reuse_setting", faults.off_by_default, "cache_enabled, not given, where it was False: got True"),
    Case("defaults", "dtype_at_construction", faults.dtype_on_entry, "dtype of a product: got torch.float16"),
    Case(
        "errors",
        "unsupported_dtype",
        faults.silent,
        "warned of nothing; expected UserWarning",
        parameters={"kind": "single"},
    ),
    Case("errors", "warning_names_the_caller", faults.silent, "files that the warning points at: got []"),
    Case("errors", "refused", faults.wrapped("autocast", faults.of_text), _REFUSES, parameters={"wrong": "device"}),
    Case(
        "errors",
        "refused",
        faults.returns("amp.autocast_mode.is_autocast_available", True),
        _REFUSES,
        parameters={"wrong": "meta"},
    ),
    Case(
        "errors",
        "refused_loss",
        faults.wrapped("nn.functional.binary_cross_entropy", lambda real, x, y: x),
        _REFUSES,
        "virtual:cuda",
    ),
    Case("errors", "absent_hardware", faults.silent, "a region without CUDA: warned of nothing", "virtual:cuda"),
    Case(
        "eligibility",
        "never_cast",
        faults.wrapped("mm", faults.in_low),
        "dtypes mm receives: got ('bf16', 'bf16')",
        parameters={"kind": "double"},
    ),
    Case(
        "eligibility",
        "cast_beside",
        faults.wrapped("mm", faults.without_autocast),
        "got ('fp64', 'fp32')",
        parameters={"kind": "double"},
    ),
    Case("eligibility", "other_device", faults.wrapped("mm", faults.in_low), "dtypes mm receives of meta tensors: got"),
    Case(
        "eligibility",
        "two_device_types",
        faults.wrapped("mm", faults.in_low),
        "product in a CPU region: got",
        "virtual:cuda",
    ),
    Case(
        "eligibility",
        "in_place",
        faults.wrapped("Tensor.addmm_", faults.in_low),
        "expected",
        parameters={"op": "addmm_"},
    ),
    Case(
        "eligibility", "out", faults.wrapped("mm", faults.in_low), "dtypes the kernel receives", parameters={"op": "mm"}
    ),
    Case(
        "eligibility",
        "explicit_dtype",
        faults.wrapped("sum", lambda real, x, dim, dtype: real(x, dim)),
        "dtype of sum(",
        parameters={"op": "sum"},
    ),
    Case(
        "eligibility",
        "every_spelling",
        faults.wrapped("Tensor.mm", faults.without_autocast),
        "dtype of Tensor.mm: got torch.float32",
    ),
    Case(
        "eligibility",
        "builtin_promotion",
        faults.wrapped("add", faults.in_low),
        "dtype of torch.add of",
        parameters={"op": "add"},
    ),
    Case(
        "eligibility",
        "lists",
        faults.wrapped("cat", lambda real, x: real([t.bfloat16() for t in x])),
        "dtypes cat receives",
    ),
    Case(
        "eligibility",
        "nothing_to_copy",
        faults.wrapped("view_as_complex", lambda real, x: real(x.clone())),
        "address of the view",
    ),
    Case(
        "eligibility",
        "unlisted_ops",
        faults.wrapped("relu", faults.in_low),
        "dtype of relu of float32: got torch.bfloat16",
    ),
    Case(
        "modules",
        "layer",
        faults.wrapped("nn.functional.linear", faults.without_autocast),
        "dtype of Linear: got torch.float32; expected torch.bfloat16",
        parameters={"layer": "Linear", "given": "wide"},
    ),
    Case(
        "modules",
        "layer",
        faults.wrapped("nn.functional.mse_loss", faults.without_autocast),
        "output 0 of MSELoss is bf16; expected fp32",
        parameters={"layer": "MSELoss", "given": "low"},
    ),
    Case(
        "modules",
        "network",
        faults.wrapped("_VF.lstm", faults.without_autocast),
        "output 0 of LSTM_projection is fp32; expected bf16",
        parameters={"network": "LSTM_projection", "given": "wide"},
    ),
    Case(
        "modules",
        "attention_mask",
        faults.wrapped("nn.functional.scaled_dot_product_attention", faults.without_autocast),
        "dtypes of attention of float32: got [torch.float32]",
        parameters={"mask": "none"},
    ),
]
