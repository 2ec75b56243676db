"""A planted fault, and the required results of the cases that run under it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from _pytest.mark.expression import Expression

from ampcheck.runner.record import RED
from ampcheck.spec.case import Case

Inject = Callable[[], AbstractContextManager[object]]
"""Breaks a promise while what it returns is entered."""

Result = Mapping[str, str]
"""What became of a case: its `id`, `status` and `message`, as in a run file."""

REFUSED = ("refused",)
SUITES = ("eager", "autograd", "scaler", "jit")


@dataclass(frozen=True)
class Fault:
    """A promise that is broken while `inject()` is entered, and kept afterwards.

    The cases that run under it are those of `suite`, `rule` and `device`. These choose among them: `op`, an overload or
    the name of a scenario; `amp`, the region's dtype; `compiler`; `only`, words of the key `suite/rule/id` in an
    expression such as pytest's `-k` takes; `nightly` for cases that nightly runs alone have.

    `says`: the words that one red case's message must all contain. `statuses`: what red cases may be; ("pass",) for a
    mistake that no case can notice, and `REFUSED` where the run must end before its first case. `reproduction`: what
    the program that reproduces the red case in plain torch must print or raise, "" where it is not run.
    """

    name: str
    rule: str
    inject: Inject
    says: tuple[str, ...]
    suite: str = "eager"
    device: str = "cpu"
    op: str = ""
    only: str = ""
    amp: str = ""
    compiler: str = ""
    nightly: bool = False
    statuses: tuple[str, ...] = ("fail",)
    reproduction: str = ""

    @property
    def id(self) -> str:
        """Its name in the table, which has a fault once for each device that must notice it."""
        return f"{self.device}-{self.name}"

    def picks(self, case: Case) -> bool:
        """Return whether a case runs under it."""
        for want, value in (
            (self.rule, case.rule),
            (self.op, case.op),
            (self.suite, case.suite),
            (self.device, case.device),
            (self.amp, case.amp),
            (self.compiler, case.compiler),
        ):
            if want not in ("", value):
                return False
        return not self.only or Expression.compile(self.only).evaluate(lambda word, **_: word in case.key)

    def seen_by(self, scenario: str, says: str) -> Fault:
        """The same fault, which a scenario must catch in bf16; of another rule it is called `suite/rule/scenario`."""
        suite, rule, name = scenario.split("/") if "/" in scenario else (self.suite, self.rule, scenario)
        return replace(
            self, name=f"{self.name}-by-{name}", rule=rule, says=(says,), suite=suite, op=name, only="", amp="bf16"
        )

    def on_jax(self, only: str = "") -> Fault:
        """The same fault, to be caught on the jax device; `only` narrows the choice of cases."""
        return replace(self, device="jax", only=f"({self.only}) and {only}" if only else self.only)

    def judge(self, unharmed: Sequence[Result], harmed: Sequence[Result]) -> None:
        """Raise AssertionError unless the cases notice the fault, in the right words, and are right without it."""
        assert harmed, "it selects no case"
        assert lines(red(unharmed)) == "", "cases are red without the fault"
        if self.statuses == ("pass",):
            assert {result["status"] for result in harmed} == {"pass"}, lines(harmed)
            return
        # Another kernel than PyTorch's may be right where PyTorch's is known to deviate.
        noticed = [result for result in red(harmed) if result["status"] in self.statuses or result["status"] != "fixed"]
        assert noticed, f"nothing is red\n{lines(harmed)}"
        assert {result["status"] for result in noticed} <= set(self.statuses), lines(noticed)
        assert all(result.get("rule", self.rule) == self.rule for result in noticed), lines(noticed)
        told = [result for result in noticed if all(words in result["message"] for words in self.says)]
        assert told, f"nothing says {self.says}:\n{lines(noticed)}"
        if self.reproduction:
            shown = [result["shown"] for result in noticed]
            assert any(self.reproduction in text for text in shown), f"{self.reproduction!r} is not in {shown}"
        if self.suite in SUITES and self.statuses != REFUSED:
            assert all(result["torch"] and result["pytest"] for result in noticed), "a red case lacks its reproduction"


def in_scenario(suite: str, name: str, where: str, says: str, inject: Inject) -> Fault:
    """Return a fault that the scenario `rule/name` of a suite must catch."""
    rule, _, scenario = where.partition("/")
    return Fault(name, rule, inject, (), suite).seen_by(scenario, says)


def seen_in(name: str, inject: Inject, seen: Mapping[str, str]) -> tuple[Fault, ...]:
    """A fault once for each scenario that must catch it, with the words for it.

    Scenarios are given as `suite/rule/name`, with `-value` for each parameter and ` on device` for one beside the CPU.
    """
    out = []
    for where, says in seen.items():
        case, _, device = where.partition(" on ")
        suite, rule, words = case.split("/")
        op = words.partition("-")[0]
        only = f"/{words}-" if op != words else ""
        made = f"{name}-by-{rule}-{words}"
        out.append(Fault(made, rule, inject, (says,), suite, device or "cpu", op, only))
    return tuple(out)


def red(results: Sequence[Result]) -> list[Result]:
    """The results that fail a run."""
    return [result for result in results if result["status"] in (*RED, *REFUSED, "failed")]


def lines(results: Sequence[Result]) -> str:
    """Results, one a line."""
    return "\n".join(f"{result['status']}: {result.get('id', '')}: {result.get('message', '')}" for result in results)
