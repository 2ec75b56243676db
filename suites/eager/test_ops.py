"""Op rules: autocast casts the arguments of an op as the policy of the op says.

PyTorch registers a policy for some overloads under the autocast key of each device type. The lists are in
https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference and, per key and torch version, in
`ampcheck/spec/tables/`.

There is one function per policy. It runs once for each overload of that policy, each assignment of dtypes to the inputs
in `ampcheck/samples/`, each lower precision and each device: the case `promote/addcmul-fp16_fp32at1-fp16-vcu` calls
torch.addcmul on virtual:cuda, in a region of fp16, with fp16 inputs, of which number 1 is fp32. `check` compares the
dtypes that the kernel receives, the casts, and the dtypes and values of what comes out with what the rule promises.
"""

from ampcheck.devices import Device
from ampcheck.runner.suite import check, op_cases
from ampcheck.spec.case import Case


@op_cases("downcast")
def test_downcast(case: Case, device: Device) -> None:
    """Eligible arguments are cast to the region's dtype.

    torch.mm(fp32, fp32) receives bf16, bf16 in a region of bf16, and returns bf16.

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)


@op_cases("upcast")
def test_upcast(case: Case, device: Device) -> None:
    """Eligible arguments are cast to float32.

    torch.nn.functional.mse_loss(bf16, bf16) receives fp32, fp32 and returns fp32.

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)


@op_cases("optdtype")
def test_optdtype(case: Case, device: Device) -> None:
    """dtype=float32 is filled in if the caller gave none and the first argument is eligible.

    On CUDA, torch.softmax(fp16, 0) runs as torch.softmax(fp16, 0, dtype=torch.float32) and returns fp32; with
    dtype=torch.float16 it runs as it was called.

    Source: aten/src/ATen/autocast_mode.h
    """
    check(case, device)


@op_cases("append")
def test_append(case: Case, device: Device) -> None:
    """The overload with a dtype runs, in float32 if the first argument is eligible.

    On CUDA, torch.norm(fp16, 2) runs as torch.norm(fp16, 2, dtype=torch.float32) and returns fp32.

    Source: aten/src/ATen/autocast_mode.h
    """
    check(case, device)


@op_cases("promote")
def test_promote(case: Case, device: Device) -> None:
    """Eligible arguments are cast to the widest dtype among them.

    Their order does not matter: on CUDA, torch.addcmul(fp16, fp32, fp16) receives fp32, fp32, fp32 and returns fp32.

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)


@op_cases("banned")
def test_banned(case: Case, device: Device) -> None:
    """The call is refused by an error that names the op to use instead.

    On CUDA, torch.nn.functional.binary_cross_entropy raises RuntimeError, which names binary_cross_entropy_with_logits.

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)


@op_cases("drift")
def test_drift(case: Case, device: Device) -> None:
    """An overload that is registered and is in no table follows one of the known policies.

    There are cases only on a torch that no table covers. If a nightly build lists a new op, its arguments must be cast
    to the region's dtype in every call, or to fp32 in every call, and so on.

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)


@op_cases("fallthrough", database=True)
def test_fallthrough(case: Case, device: Device) -> None:
    """An op without a policy acts under autocast as without; the parts of a composite op follow their own policies.

    torch.relu(fp16) returns fp16. On the CPU torch.einsum is composite: of fp32 tensors in a region of bf16 it returns
    bf16, because it calls torch.bmm. Cases named `database` are the calls of PyTorch's own op database
    (torch.testing._internal.opinfo).

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)
