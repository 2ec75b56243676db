"""Op rules, with gradients: autocast casts as the policy of an op says, and gradients flow through the casts.

PyTorch: "Backward ops run in the same type that autocast used for corresponding forward ops"
(https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast). The policies are those of
https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference and, per dispatch key and torch version,
`ampcheck/spec/tables/`.

There is one function per policy. It runs once for each overload of that policy that has a gradient: the case
`downcast/mm-fp32-grad-bf16-cpu` calls torch.mm in a region of bf16 on fp32 leaves, and backward outside of it. `check`
compares each leaf's gradient, its dtype and bits, and the dtypes of the backward kernels with those of the same op with
explicit casts, and its values with the float64 gradient (`ampcheck/checks/backward.py`).
"""

from ampcheck.devices import Device
from ampcheck.runner.suite import check, op_cases
from ampcheck.spec.case import Case


@op_cases("downcast")
def test_downcast(case: Case, device: Device) -> None:
    """Eligible arguments are cast to the region's dtype.

    torch.mm of fp32 leaves runs in bf16 in a region of bf16, its backward does so too, and the leaves get fp32
    gradients.

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)


@op_cases("upcast")
def test_upcast(case: Case, device: Device) -> None:
    """Eligible arguments are cast to float32.

    torch.nn.functional.mse_loss of bf16 leaves runs in fp32, its backward does so too, and the leaves get bf16
    gradients.

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)


@op_cases("optdtype")
def test_optdtype(case: Case, device: Device) -> None:
    """dtype=float32 is filled in if the caller gave none and the first argument is eligible.

    On CUDA, torch.softmax of a fp16 leaf runs with dtype=torch.float32, and the leaf gets a fp16 gradient.

    Source: aten/src/ATen/autocast_mode.h
    """
    check(case, device)


@op_cases("append")
def test_append(case: Case, device: Device) -> None:
    """The overload with a dtype runs, in float32 if the first argument is eligible.

    On CUDA, torch.norm of a fp16 leaf runs with dtype=torch.float32, and the leaf gets a fp16 gradient.

    Source: aten/src/ATen/autocast_mode.h
    """
    check(case, device)


@op_cases("promote")
def test_promote(case: Case, device: Device) -> None:
    """Eligible arguments are cast to the widest dtype among them.

    On CUDA, torch.addcmul of fp16, fp32 and fp16 leaves runs in fp32, and the leaves get fp16, fp32 and fp16 gradients.

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)
