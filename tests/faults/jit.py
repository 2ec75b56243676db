"""Compilers that lose regions, freeze what they saw first, leak state, or compute in other dtypes than eager mode."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.faults import compilers as wrong
from tests.faults.compilers import Change, entering, handed_out, inside, results
from tests.faults.fault import Fault, Inject


def _fault(name: str, rule: str, inject: Inject, *says: str, **chosen: str) -> Fault:
    return Fault(f"jit-{name}", rule, inject, says, "jit", **chosen)


def _op(name: str, rule: str, inject: Inject, case: str, *says: str) -> Fault:
    """A fault that the cases of one op in one compiler catch, `case` being `<op> in <compiler>`."""
    op, compiler = case.split(" in ")
    return _fault(name, rule, inject, *says, op=op, compiler=compiler)


def _scenario(name: str, rule: str, inject: Inject, *says: str) -> Fault:
    """A fault that the scenarios of a rule catch under Dynamo."""
    return _fault(name, rule, inject, *says, compiler="dynamo", amp="bf16")


def _out(change: Change, compiler: str = "compile") -> Inject:
    return lambda: handed_out(change, compiler)


def _dropped() -> AbstractContextManager[object]:
    return entering(wrong.not_at_all)


_NEVER_WIDENED = results(wrong.never_widened)
_DOUBLED_GRADIENT = _out(results(wrong.doubled_gradient))

FAULTS = (
    _op("region-dropped", "downcast", _dropped, "mm in dynamo", "output 0 of dynamo", "fp32"),
    _op("region-dropped-by-aot", "downcast", _dropped, "mm in aot", "of aot"),
    _op("region-dropped-by-export", "downcast", _dropped, "mm in export", "of export", "expected bf16"),
    _op("region-dropped-by-script", "downcast", wrong.no_script_pass, "mm in script", "of script"),
    _op("trace-in-float32", "downcast", _out(results(wrong.always_widened), "trace"), "mm in traced", "of traced"),
    _op(
        "cast-of-one-argument-forgotten",
        "downcast",
        _out(inside(wrong.first_argument_as_it_is)),
        "linear in dynamo",
        "aten::linear",
    ),
    _op("second-call-in-float32", "downcast", _out(wrong.right_once), "mm in dynamo", "the first call was right"),
    _op("gradient-twice", "downcast", _DOUBLED_GRADIENT, "mm in dynamo", "gradient 0"),
    _op("gradient-lost", "downcast", _out(results(wrong.detached), "export"), "mm in export", "gave 0 gradients"),
    _op("state-left-on", "downcast", _out(wrong.leaking), "mm in dynamo", "left the state (True"),
    _op("upcast-lost", "upcast", _out(_NEVER_WIDENED), "mse_loss in dynamo", "is bf16"),
    _op("upcast-after-rounding", "upcast", _out(results(wrong.rounded)), "mse_loss in aot", "away from eager mode's"),
    _op("promotes-never", "promote", _out(_NEVER_WIDENED), "cat in aot", "is bf16; expected fp32"),
    _op("promotes-always-narrow", "promote", _out(_NEVER_WIDENED, "export"), "cat in strict", "is bf16; expected fp32"),
    _op("casts-what-has-no-policy", "fallthrough", _out(_NEVER_WIDENED), "add.Tensor in dynamo", "add.Tensor is bf16"),
    _scenario("no-guard-on-surroundings", "context", _out(wrong.frozen), "dtype in a region"),
    _scenario("kept-across-dtypes", "context", _out(wrong.frozen_dtypes), "region of another dtype"),
    _scenario("inner-region-dropped", "nesting", lambda: entering(wrong.unless_inside_another), "got"),
    _scenario("disabled-region-on", "nesting", lambda: entering(wrong.always_on), "dtypes"),
    _scenario("always-half", "defaults", lambda: entering(wrong.in_half), "dtype: got torch.float16"),
    _scenario("decorator-lost", "decorator", _out(wrong.undecorated), "first call", "torch.float32"),
    _scenario("state-left-by-exception", "exceptions", _out(wrong.leaking_on_exception), "state after it: got (True"),
    _scenario("exception-in-other-words", "exceptions", _out(wrong.other_words), "a graph could not be compiled"),
    _scenario("state-frozen", "state", _out(wrong.frozen), "dtype after setting"),
    _scenario("threads-share-state", "threads", _out(wrong.eager_in_threads), "dtype in a thread"),
    _scenario("result-kept", "cache", _out(wrong.frozen_result), "the product doubled"),
    _scenario("dropout-gradient", "programs", _DOUBLED_GRADIENT, "gradient, first call"),
)
