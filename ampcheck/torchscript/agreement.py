"""How far scripted code agrees with eager autocast: each overload with a policy as a program of one region and one op.

PyTorch's pass and ours get the same program and are compared with the specification (`ampcheck.spec.casting`) by the
dtypes the kernel received, and where there are values against eager autocast, bit for bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import torch
from tabulate import tabulate

from ampcheck.checks import comparisons
from ampcheck.checks.cases import CallPlan, because, op_cases, plan
from ampcheck.devices.base import Device
from ampcheck.errors import HarnessError, one_line
from ampcheck.observe.recorder import Observation, attempt, by_policies, exists, overload, replay, tensors
from ampcheck.samples.tensors import build
from ampcheck.spec.case import Case
from ampcheck.spec.casting import POLICIES
from ampcheck.spec.torch_dtypes import DTYPES, name_of
from ampcheck.torchscript.regions import scripted
from ampcheck.torchscript.rewrite import autocast
from ampcheck.torchscript.torch_private import JitCode, function_of_graph

if TYPE_CHECKING:
    from ampcheck.torchscript.torch_private import Graph

Program: TypeAlias = Callable[..., object]
Arguments: TypeAlias = tuple[tuple[object, ...], dict[str, object]]

Make = Callable[[JitCode], Program]
"""Makes what is run of a scripted function."""

PYTORCH, OURS = "PyTorch", "ampcheck"
WAYS: Mapping[str, Make] = {PYTORCH: lambda program: program, OURS: autocast}
"""What is compared, by the heading of its column."""


@dataclass(slots=True)
class Agreement:
    """One overload.

    `cases`: how many pairs of dtype assignment and region dtype were run. `differences`: by way and pair, in sentences.
    """

    overload: str
    policy: str
    cases: int = 0
    differences: dict[str, dict[tuple[str, str], list[str]]] = field(default_factory=dict)

    def agrees(self, way: str, among: str = "all") -> bool:
        """Return whether the cases of a kind do as eager autocast.

        `among`: "fp32" for those whose inputs all are, "used" for inputs of float32 and the region's dtype.
        """
        kinds = {"fp32": {"fp32"}, "used": {"fp32", "given"}}
        return not any(
            among == "all" or set(inputs.split("_")) <= kinds[among] | ({amp} if among == "used" else set())
            for inputs, amp in self.differences.get(way, {})
        )


def measure(device: Device, ways: Mapping[str, Make] = WAYS, only: str | None = None) -> Iterator[Agreement]:
    """Yield every overload with a policy on a device, or one of them, each compared with eager in several ways."""
    for policy in POLICIES:
        found: dict[str, Agreement] = {}
        for case in op_cases(device, policy, only=only):
            if not case.sample and exists(case.op):
                one = found.setdefault(case.op, Agreement(case.op, policy))
                one.cases += 1
                for way, make in ways.items():
                    if differences := compare(case, device, make):
                        one.differences.setdefault(way, {})[case.inputs, case.amp] = differences
        yield from found.values()


def table(found: Sequence[Agreement]) -> str:
    """Count the overloads that agree, by policy, way and kind of inputs, as text."""
    kinds = {"fp32": "fp32", "used": "and region's", "all": "any dtype"}
    headers = ["policy", "overloads", *(f"{way}: {what}" for way in WAYS for what in kinds.values())]
    policies = dict.fromkeys(one.policy for one in found)
    rows = [(policy, [one for one in found if one.policy == policy]) for policy in policies]
    rows.append(("all", list(found)))
    body = [
        [name, len(those), *(sum(one.agrees(way, kind) for one in those) for way in WAYS for kind in kinds)]
        for name, those in rows
    ]
    return tabulate(body, headers=headers)


def details(one: Agreement) -> str:
    """List how an overload differs, a line for each way and pair of dtypes."""
    return (
        "".join(
            f"\n{way}, {one.overload}, inputs {inputs}, region of {amp}: {'; '.join(differences)}"
            for way, cases in one.differences.items()
            for (inputs, amp), differences in cases.items()
        )
        + "\n"
    )


def _region(x: torch.Tensor, device_type: str, dtype: torch.dtype) -> torch.Tensor:
    with torch.autocast(device_type, dtype=dtype):
        return torch.relu(x)


def _in_region(device_type: str, dtype: torch.dtype) -> Graph:
    """Return a graph of a region with nothing but a relu inside."""
    graph = scripted(_region).graph.copy()
    with graph.insert_point_guard(next(iter(graph.nodes()))):
        for given, value in zip(list(graph.inputs())[1:], (device_type, dtype), strict=True):
            given.replaceAllUsesWith(graph.insertConstant(value))
    graph.eraseInput(2)
    graph.eraseInput(1)
    return graph


def program(device_type: str, dtype: torch.dtype, name: str, arguments: Arguments) -> JitCode:
    """Return a scripted function of one region that calls one overload.

    It takes the arguments that hold tensors, in order; the others are constants of the program.
    """
    graph = _in_region(device_type, dtype)
    marker = graph.findNode("aten::relu")
    schema = overload(name)._schema
    args, kwargs = arguments
    values = []
    with graph.insert_point_guard(marker):
        for place, argument in enumerate(schema.arguments):
            given = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            length: int | None = argument.N  # type: ignore[attr-defined]  # torch's annotations lack it
            if isinstance(given, int) and length is not None:  # in Python one number may be given for a list of them
                given = [given] * length
            if isinstance(given, tuple):
                given = list(given)
            if given == []:
                values.append(graph.insertNode(graph.create("prim::ListConstruct", [], 1)).output())
                values[-1].setType(argument.type)
            elif next(tensors([given]), None) is None:
                values.append(graph.insertConstant(given))
            else:
                values.append(graph.addInput(f"a{place}"))
                values[-1].setType(argument.type)
    node = graph.create(schema.name, values, len(schema.returns))
    for output, returned in zip(node.outputs(), schema.returns, strict=True):
        output.setType(returned.type)
    node.insertBefore(marker)
    graph.eraseOutput(0)
    marker.destroy()
    graph.eraseInput(0)
    for output in list(node.outputs()):
        graph.registerOutput(output)
    graph.makeMultiOutputIntoTuple()
    if f"{schema.name}.{schema.overload_name}".rstrip(".") not in node.schema().partition("(")[0]:
        raise HarnessError(f"the program calls {node.schema()} instead of {name}")
    return function_of_graph("program", graph)


def compare(case: Case, device: Device, make: Make) -> list[str]:
    """Return how a case as a scripted program differs from eager autocast, in sentences."""
    with device.activate(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        todo = plan(case, device)
        dtype = DTYPES[case.amp]

        def arguments() -> Arguments:
            made = build(todo.sample, todo.dtypes, device)
            device.seed()
            return made

        run = make(program(device.type, dtype, case.op, arguments()))
        seen = _observed(device, todo, run, arguments())
        if todo.expected.error:
            return comparisons.refused(seen.error, case.op, todo.expected.error, because(case.rule))
        want = todo.expected
        differences = comparisons.kernel(
            seen, want.overload, todo.given_dtypes, want.leaves, want.dtype_kwarg, because(case.rule)
        )
        if differences or not device.has_values:
            return differences
        got = _plain(run, arguments())
        again = _plain(run, arguments())
        return _values(case, device, todo, [got, again], arguments)


def _given(arguments: Arguments) -> list[object]:
    args, kwargs = arguments
    return [value for value in (*args, *kwargs.values()) if next(tensors([value]), None) is not None]


def _observed(device: Device, todo: CallPlan, run: Program, arguments: Arguments) -> Observation:
    recorded = {*device.policies(), todo.op.overload, todo.expected.overload}
    given = _given(arguments)
    return device.observe(lambda: run(*given), recorded, list(tensors(given)))


def _plain(run: Program, arguments: Arguments) -> Observation:
    out, error = attempt(lambda: run(*_given(arguments)))
    return Observation(outputs=list(tensors(out)), error=error)


def _values(
    case: Case, device: Device, todo: CallPlan, ran: list[Observation], arguments: Callable[[], Arguments]
) -> list[str]:
    """Compare two runs, the first as compiled and the second optimized, with eager autocast.

    Where eager refuses what the specification allows (a known deviation), beside explicit casts.
    """
    call, name = overload(case.op), f"aten::{case.op}"
    args, kwargs = arguments()
    with device.autocast(case.amp):
        out, error = attempt(lambda: call(*args, **kwargs))
    eager = Observation(outputs=list(tensors(out)), error=error)
    if error is not None:
        args, kwargs = arguments()
        policies = device.policies()
        casts = by_policies(policies, DTYPES[case.amp])
        reference, _ = replay(lambda: call(*args, **kwargs), device.type, policies, casts)
        eager = reference if reference.error is None else Observation(error=error)
    differences: list[str] = []
    for seen in ran:
        if (seen.error is None) != (eager.error is None):
            differences.append(f"{name} raised {one_line(seen.error)}; eager raised {one_line(eager.error)}")
        elif seen.error is None:
            wrong = comparisons.output_dtypes(seen.outputs, [name_of(t.dtype) for t in eager.outputs], name)
            if not wrong and todo.op.values != "none":
                wrong = comparisons.bitwise(seen.outputs, eager.outputs, name)
            differences += wrong
    return differences
