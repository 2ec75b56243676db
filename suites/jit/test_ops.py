"""Op rules, compiled: a compiled call casts the arguments of an op as the policy of the op says.

The policies are those of eager mode: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference and, per key
and torch version, `ampcheck/spec/tables/`.

There is one function per policy. It runs once for each overload of that policy, each assignment of dtypes to the
inputs, each device and each compiler, which is a way to compile (`ampcheck/spec/case.py`): the case
`promote/cat-bf16_fp32at0-dynamo-bf16-cpu` compiles a call of torch.cat in a region of bf16, with bf16 inputs, of which
number 0 is fp32, with torch.compile(backend="eager"). `check` compares the dtypes that kernels receive, what comes out,
gradients and the autocast state afterwards with eager mode.
"""

from ampcheck.devices import Device
from ampcheck.runner.suite import check, op_cases
from ampcheck.spec.case import Case


@op_cases("downcast", compiled=True)
def test_downcast(case: Case, device: Device) -> None:
    """Eligible arguments are cast to the region's dtype.

    Scripted, traced, compiled or exported, torch.mm(fp32, fp32) in a region of bf16 receives bf16, bf16.

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)


@op_cases("upcast", compiled=True)
def test_upcast(case: Case, device: Device) -> None:
    """Eligible arguments are cast to float32.

    Scripted, traced, compiled or exported, torch.nn.functional.mse_loss(bf16, bf16) in a region receives fp32, fp32.

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)


@op_cases("optdtype", compiled=True)
def test_optdtype(case: Case, device: Device) -> None:
    """dtype=float32 is filled in if the caller gave none and the first argument is eligible.

    A compiled torch.softmax(fp16, 0) in a region of CUDA returns fp32.

    Source: aten/src/ATen/autocast_mode.h
    """
    check(case, device)


@op_cases("append", compiled=True)
def test_append(case: Case, device: Device) -> None:
    """The overload with a dtype runs, in float32 if the first argument is eligible.

    A compiled torch.norm(fp16, 2) in a region of CUDA returns fp32.

    Source: aten/src/ATen/autocast_mode.h
    """
    check(case, device)


@op_cases("promote", compiled=True)
def test_promote(case: Case, device: Device) -> None:
    """Eligible arguments are cast to the widest dtype among them.

    A compiled torch.cat([fp32, bf16]) in a region of the CPU receives fp32, fp32, in whichever order they come.

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)


@op_cases("banned", compiled=True)
def test_banned(case: Case, device: Device) -> None:
    """The call is refused by an error that names the op to use instead.

    A compiled torch.nn.functional.binary_cross_entropy in a region of CUDA raises RuntimeError, which names
    binary_cross_entropy_with_logits, when it is compiled or when it is called.

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)


@op_cases("fallthrough", compiled=True)
def test_fallthrough(case: Case, device: Device) -> None:
    """An op without a policy acts under autocast as without; the parts of a composite op follow their own policies.

    A compiled torch.relu(fp16) in a region returns fp16.

    Source: https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference
    """
    check(case, device)
