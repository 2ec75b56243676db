"""A case of PyTorch's op database in plain torch."""

from __future__ import annotations

import warnings

from ampcheck.checks.op_database import SAMPLES, UNINITIALISED, Calls, samples_of
from ampcheck.devices.base import Device
from ampcheck.reproduce import expected, snippets
from ampcheck.reproduce.common import assembled
from ampcheck.samples import op_database
from ampcheck.spec.case import Case
from ampcheck.spec.torch_dtypes import DTYPES

_SAMPLES = """\
op = next(info for info in op_db if info.full_name == {op!r})

def samples():
    torch.manual_seed(0)
{made}

def run(sample, region):
    torch.manual_seed(0)
    try:
        with region:
            out = op(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:
        out = error
    return tree_leaves(out)

def fact(x):
    return (x.dtype, x.shape) if isinstance(x, torch.Tensor) else type(x) if isinstance(x, Exception) else repr(x)"""
_MADE = """\
    return list(islice(op.sample_inputs({place!r}, {dtype}), {count}))"""
_MADE_ALIKE = """\
    with unset_fake_temporarily():
        made = list(islice(op.sample_inputs("cpu", {dtype}), {count}))
    return [sample.transform(alike) for sample in made]

def alike(x):  # a fake tensor that looks like a tensor of the CPU
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.is_nested:
        return x
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device={place!r})"""
_COMPARED = """\
for number, (a, b) in enumerate(zip(samples(), samples())):
    got, want = run(a, {region}), run(b, nullcontext())
    check(f"dtypes, shapes and whatever else sample {{number}} gives", list(map(fact, got)), list(map(fact, want)))"""
_BITS = """
    pairs = [(x, y) for x, y in zip(got, want) if isinstance(x, torch.Tensor)]
    bits = all(same(*pair) for pair in pairs)
    check(f"whether sample {number} gives the bits it gives without autocast", bits, True)"""
_LISTED = """\
WANTED = {wanted!r}
for number, (sample, wanted) in enumerate(zip(samples(), WANTED)):
    torch.manual_seed(0)
    with {region}:
        seen = observe(lambda: op(sample.input, *sample.args, **sample.kwargs))
    check(f"listed ops in sample {{number}}, with the dtypes they received", lines(seen), wanted)"""


def of_op_database(case: Case, device: Device, message: str = "") -> str:
    """Return a case in plain torch, which prints and takes what `ampcheck.reproduce.of_op` does.

    `message`: as there, but "" for a case that ended its process: it is run, and compared with nothing.
    """
    made = _MADE if device.has_values else _MADE_ALIKE
    made = made.format(place=device.type, dtype=DTYPES[case.inputs], count=SAMPLES)
    samples = _SAMPLES.format(op=case.op, made=made)
    region = f"{device.region}({device.type!r}, dtype={DTYPES[case.amp]})"
    blocks = [snippets.CHECK, samples]
    if not message:
        blocks.append(f"for sample in samples():\n    print(run(sample, {region}))")
    elif "reached the kernel" in message:
        wanted = _wanted(case, device)
        every = [line for lines in wanted for line in lines]
        blocks += [snippets.recorder(device, casts=False, kernels=True), snippets.lines_of(every)]
        blocks.append(_LISTED.format(wanted=wanted, region=region))
    else:
        bits = device.has_values and case.op not in UNINITIALISED
        blocks += [snippets.SAME] * bits
        blocks.append(_COMPARED.format(region=region) + _BITS * bits)
    imports = [
        "from itertools import islice",
        "from contextlib import nullcontext",
        "from torch.testing._internal.common_methods_invocations import op_db",
    ]
    imports += [] if device.has_values else ["from torch._subclasses.fake_tensor import unset_fake_temporarily"]
    return assembled(device, (), blocks, imports)


def _wanted(case: Case, device: Device) -> list[list[str]]:
    """Return what the listed ops in each sample must receive; see `ampcheck.reproduce.expected`."""
    info = op_database.database()[case.op]
    with device.activate(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warned when the case ran
        made = samples_of(info, case, device)
        calls = [Calls(info, case, device, number, sample) for number, sample in enumerate(made)]
        found = []
        for call in calls:
            call.prepare()
            found.append(expected.of_call(call, device, case.amp)[0])
        return found
