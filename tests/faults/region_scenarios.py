"""Regions and what is around them done wrongly, each seen by scenarios that name it in words."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from tests.faults import caches, decorators, regions
from tests.faults.fault import Fault, Inject, seen_in
from tests.faults.regions import autocast, replaced

INIT, ENTER, EXIT, CALL = autocast.__init__, autocast.__enter__, autocast.__exit__, autocast.__call__


def set_two_types(enabled: Callable[[Any], bool]) -> Callable[[Any], None]:
    def action(region: Any) -> None:
        for name in ("cpu", "xpu"):
            torch.set_autocast_enabled(name, enabled(region))

    return action


exit_disables_two_types = regions.then(EXIT, set_two_types(lambda region: False))
enter_sets_two_types = regions.then(ENTER, set_two_types(lambda region: region._enabled))
enter_turns_the_cache_on = regions.then(ENTER, lambda region: torch.set_autocast_cache_enabled(True))


def exit_keeps_enabled_on_exception(self: Any, *error: Any) -> Any:
    return EXIT(self, *error) if error[:1] in ((), (None,)) else regions.exit_keeps_enabled(self, *error)


def deciding_late(self: Any, device_type: Any, dtype: Any = None, *rest: Any, **options: Any) -> None:
    INIT(self, device_type, dtype, *rest, **options)
    self.late = dtype is None
    self.late_cache = options.get("cache_enabled") is None and len(rest) < 2


def entering_late(self: Any) -> Any:
    if self.late:
        self.fast_dtype = torch.get_autocast_dtype(self.device)
    if self.late_cache:
        self._cache_enabled = torch.is_autocast_cache_enabled()
    return ENTER(self)


def changing_at_construction(self: Any, *arguments: Any, **options: Any) -> None:
    INIT(self, *arguments, **options)
    torch.set_autocast_dtype(self.device, self.fast_dtype)
    torch.set_autocast_enabled(self.device, self._enabled)


def swapped(self: Any, device_type: Any, dtype: Any = None, cache_enabled: Any = None, enabled: Any = True) -> None:
    INIT(self, device_type, dtype, enabled, cache_enabled if cache_enabled is not None else True)
    if isinstance(device_type, str):
        self._cache_enabled = not self._cache_enabled


def taking_anything(self: Any, device_type: Any, *rest: Any, **options: Any) -> None:
    INIT(self, device_type if isinstance(device_type, str) else "cpu", *rest, **options)


def not_a_wrapper(self: Any, function: Any) -> Any:
    return lambda *arguments, **options: (CALL(self, function)(*arguments, **options), None)[1]


def open_ended(self: Any, function: Any) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        self.__enter__()
        return function(*arguments, **options)

    return call


def ending_late(self: Any, function: Any) -> Any:
    """Leaves the region twice."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with self:
            out = function(*arguments, **options)
        torch.set_autocast_dtype(self.device, torch.float64)
        torch.autocast_increment_nesting()
        return out

    return call


def casting(self: Any, function: Any) -> Any:
    """A decorator that casts what goes in and comes out, as custom_fwd does."""

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self.fast_dtype)
        return type(value)(map(cast, value)) if type(value) is tuple else value

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with self:
            return cast(function(*map(cast, arguments), **options))

    return call


RUN = threading.Thread.run


def inheriting(self: threading.Thread) -> None:
    """A thread that starts enabled, in another dtype, without the cache and one level deep."""
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float64)
    torch.set_autocast_cache_enabled(False)
    torch.autocast_increment_nesting()
    RUN(self)


def is_enabled_reversed(*arguments: Any) -> bool:
    return not torch._C._is_any_autocast_enabled()


MM, BACKWARD = torch.mm, torch.Tensor.backward


def backward_outside_only(self: torch.Tensor) -> None:
    if torch.is_autocast_enabled(self.device.type):
        raise RuntimeError("backward in a region")
    BACKWARD(self)


def never_cast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch._C._DisableAutocast():
        return MM(a.float(), b.float())


def methods(**wrong: Any) -> Inject:
    return lambda: replaced(autocast, **wrong)


def on_torch(**wrong: Any) -> Inject:
    return lambda: replaced(torch, **wrong)


_SAVED = ("prev", "prev_cache_enabled", "prev_fastdtype")


def with_a_stack() -> AbstractContextManager[object]:
    """A region that keeps a stack of states for each thread, as the model does, has none of the known deviations."""
    saved: dict[tuple[int, int], list[dict[str, Any]]] = {}

    def enter(self: Any) -> Any:
        out = ENTER(self)
        saved.setdefault((id(self), threading.get_ident()), []).append({name: getattr(self, name) for name in _SAVED})
        return out

    def leave(self: Any, *error: Any) -> Any:
        vars(self).update(saved[id(self), threading.get_ident()].pop())
        return EXIT(self, *error)

    return replaced(autocast, __enter__=enter, __exit__=leave)


MENDED = tuple(
    Fault(f"mended-{rule}-{scenario}", rule, with_a_stack, (), op=scenario, amp="fp16", statuses=("fixed",))
    for rule, scenario in (
        ("nesting", "one_object_inside_itself"),
        ("nesting", "one_object_around_another"),
        ("decorator", "recursion"),
        ("decorator", "one_region_for_two_functions"),
        ("decorator", "called_twice_at_once"),
        ("threads", "one_region_object_in_two_threads"),
    )
)
"""What PyTorch deviates in, put right: the run must say that the deviation is gone."""

FAULTS = (
    *MENDED,
    *seen_in(
        "exit-keeps-enabled",
        methods(__exit__=regions.exit_keeps_enabled),
        {
            "eager/context/inputs_keep_their_dtype": "dtype of a product of them after the region: got torch.bfloat16",
            "eager/threads/tasks_share_the_thread": "state after the tasks: got (True, torch.bfloat16, True)",
            "eager/nesting/documented_example": "dtype of g: got torch.float32; expected torch.float16",
        },
    ),
    *seen_in(
        "exit-keeps-dtype",
        methods(__exit__=regions.exit_keeps_dtype),
        {
            "eager/context/enabled_by_expression": "state after enabled=True: got (False, torch.float16, True)",
            "eager/decorator/region_in_a_coroutine": "state after the coroutine: got (False, torch.float16, True)",
            "eager/decorator/region_in_a_generator": "state after the generator: got (False, torch.float16, True)",
            "eager/exceptions/return": "state after the return: got (False, torch.float16, True)",
            "eager/threads/copied_variables": "state in it after the region: got (False, torch.float16, True)",
            "eager/threads/pool": "state before, and dtype of a product, in a job of None: got ((False, torch.float16,",
            "eager/context/restores_on_exit": "state after the region: got (False, torch.float16, True)",
        },
    ),
    *seen_in(
        "exit-keeps-the-cache-setting",
        methods(__exit__=regions.exit_keeps_cache_setting),
        {
            "eager/context/set_inside_put_back": "state after the region: got (False, torch.bfloat16, False)",
            "eager/exceptions/leaves_several_regions_at_once": "state after the exception: got (False, torch.bfloat16,",
        },
    ),
    *seen_in(
        "exit-keeps-the-depth",
        methods(__exit__=regions.exit_leaves_a_level),
        {
            "eager/context/restores_on_exit": "depth after the region: got 1",
            "eager/exceptions/break_and_continue": "nesting depth in the body: got 2",
            "eager/exceptions/caught_inside": "nesting depth after the region: got 1",
            "eager/exceptions/op_raises": "nesting depth after the region: got 1",
            "eager/exceptions/op_raises_out_of_the_region": "nesting depth after the exception: got 2",
            "eager/exceptions/region_after_an_exception": "nesting depth after time 0: got 1",
            "eager/nesting/deep": "nesting depth after sixty regions: got 120; expected 0",
        },
    ),
    *seen_in(
        "exit-drops-what-is-kept",
        methods(__exit__=caches.exit_clears_always),
        {"eager/nesting/casts_kept_across_device_types": "casts after another type's region: got 1"},
    ),
    *seen_in(
        "exit-turns-other-types-off",
        methods(__exit__=exit_disables_two_types),
        {
            "eager/exceptions/leaves_a_decorated_function": "state in the caller's region: got (False, torch.bfloat16",
            "eager/nesting/order": "state at depth 1 on the way out: got (False, torch.bfloat16, True)",
            "eager/context/restores_all_three_parts": "state after the region: got (False, torch.bfloat16, False)",
            "eager/context/setting_from_outside_is_put_back": "state after the region: got (False, torch.bfloat16, Fal",
            "eager/nesting/documented_example": "dtype of g: got torch.float32",
            "eager/nesting/dtype_order": "dtype a product runs in, back at depth 1: got torch.float32",
            "eager/nesting/other_dtype_through_a_disabled_region": "dtype a product runs in, back outside: got torch.f",
            "eager/nesting/two_device_types on virtual:cuda": "state of cpu after the inner region: got (False, torch.",
            "eager/nesting/two_device_types on virtual:mps": "state of cpu after the inner region: got (False, torch.b",
        },
    ),
    *seen_in(
        "exit-on-an-error-keeps-enabled",
        methods(__exit__=exit_keeps_enabled_on_exception),
        {
            "eager/decorator/exception_passes_through": "state after the exception: got (True, torch.bfloat16, True)",
            "eager/exceptions/caught_between": "state in the outer region: got (False, torch.float16, True)",
            "eager/exceptions/exit_stack": "states while unwinding: got [(True, torch.float16, True), (True, torch.b",
            "eager/exceptions/finally_inside": "state after the exception: got (True, torch.bfloat16, True)",
            "eager/exceptions/generator_closed": "state after close: got (True, torch.bfloat16, True)",
            "eager/exceptions/generator_dropped": "state after the generator is gone: got (True, torch.bfloat16, True)",
            "eager/exceptions/leaves_several_regions": "states on the way out: got [(False, torch.bfloat16, False), (F",
            "eager/exceptions/leaves_the_region": "state after the exception: got (True, torch.bfloat16, True)",
        },
    ),
    *seen_in(
        "exit-swallows",
        methods(__exit__=regions.exit_swallows),
        {
            "eager/exceptions/exit_with_an_exception_by_hand": "whether __exit__ asks for the exception to be swallowe",
            "eager/exceptions/leaves_the_region": "what came out of the region: got 'nothing'; expected 'ValueError'",
            "eager/exceptions/thrown_into_a_generator": "StopIteration: ",
            "eager/threads/exception_in_a_thread": "the thread: raised nothing",
        },
    ),
    *seen_in(
        "exit-of-what-was-not-entered",
        methods(__exit__=lambda self, *e: torch.set_autocast_enabled(self.device, False)),
        {"eager/context/restores_on_exit": "state after the region: got (False, torch.float16, True)"},
    ),
    *seen_in(
        "enter-sets-no-dtype",
        methods(__enter__=regions.enter_without_dtype),
        {
            "eager/threads/tasks_that_do_not_overlap": "dtypes in the tasks' regions, and states after them: got [(to",
            "eager/context/restores_on_exit": "state inside the region: got (True, torch.bfloat16, True)",
        },
    ),
    *seen_in(
        "enter-does-not-enable",
        methods(__enter__=regions.enter_without_enabling),
        {"eager/context/restores_on_exit": "dtype a product runs in: got torch.float32; expected torch.float16"},
    ),
    *seen_in(
        "enter-sets-no-cache-setting",
        methods(__enter__=enter_turns_the_cache_on),
        {
            "eager/exceptions/construction_fails": "state after it: got (True, torch.bfloat16, True)",
            "eager/nesting/reuse_order": "cache_enabled at depth 3: got True",
            "eager/context/entered_and_left_by_hand": "state after __enter__: got (True, torch.float16, True)",
            "eager/context/exit_stack": "state in three regions: got (True, torch.bfloat16, True)",
            "eager/context/options_by_keyword": "state inside the region: got (False, torch.float16, True)",
            "eager/context/options_by_position": "state inside the region: got (False, torch.float16, True)",
            "eager/context/used_again_after_its_end": "state inside, time 0: got (True, torch.float16, True)",
            "eager/nesting/reuse_across_device_types": "cache_enabled in the other type's region: got True",
        },
    ),
    *seen_in(
        "enter-sets-other-types",
        methods(__enter__=enter_sets_two_types),
        {
            "eager/context/other_device_types_untouched": "other device types inside the region: got [('cuda', False,",
            "eager/nesting/disabled_beside_enabled": "state of xpu: got (False, torch.bfloat16)",
            "eager/nesting/two_device_types": "state of this device in the other's region: got (True, torch.bfloat16,",
            "eager/nesting/two_device_types_other_way_round": "state of xpu after its region: got (True, torch.float16",
            "eager/nesting/ops_on_two_devices on virtual:cuda": "dtype of a product on the CPU in this device's region",
            "eager/nesting/ops_on_two_devices on virtual:mps": "dtype of a product on the CPU in this device's region",
        },
    ),
    *seen_in(
        "enter-returns-something-else",
        methods(__enter__=regions.enter_returns_nothing),
        {"eager/context/enter_returns_the_region": "whether __enter__ returned the region: got False"},
    ),
    *seen_in(
        "options-decided-at-entry",
        methods(__init__=deciding_late, __enter__=entering_late),
        {
            "eager/context/used_again_elsewhere": "state inside, the second time: got (True, torch.float16, False)",
            "eager/decorator/decorated_inside_a_region": "state of one that takes dtype and cache_enabled over: got (F",
            "eager/nesting/dtype_left_out": "dtype in force where it is entered later: got torch.float16",
            "eager/nesting/reuse_left_out": "cache_enabled where it is entered later: got False",
            "eager/threads/made_here_entered_there": "state inside and after it, in the thread: got ((False, torch.bfl",
        },
    ),
    *seen_in(
        "construction-changes-the-state",
        methods(__init__=changing_at_construction),
        {"eager/decorator/decoration_changes_nothing": "state after the decoration: got (True, torch.float16, True)"},
    ),
    *seen_in(
        "arguments-in-another-order",
        methods(__init__=swapped),
        {
            "eager/nesting/deep": "state in the innermost region: got (False, torch.bfloat16, False)",
            "eager/context/construction_changes_nothing": "state inside a region after making others: got (True, torch",
            "eager/context/several_on_one_line": "state inside both: got (True, torch.bfloat16, False)",
            "eager/exceptions/op_that_raises_keeps_casts": "casts after an op raised: got 1",
            "eager/threads/backward_in_another_thread": "state here after backward: got (True, torch.float16, False)",
            "eager/threads/region_stays_in_its_thread": "state and dtype in the thread: got ((True, torch.float16, Tru",
            "eager/threads/starts_outside": "state here: got (True, torch.float16, True)",
        },
    ),
    *seen_in(
        "any-device-type-is-taken",
        methods(__init__=taking_anything),
        {
            "eager/decorator/class_itself": "the bare class: raised nothing",
            "eager/errors/refused-device": "raised nothing; expected",
        },
    ),
    *seen_in(
        "decorator-does-nothing",
        methods(__call__=decorators.call_does_nothing),
        {
            "eager/decorator/not_callable": "decorating a Tensor: raised nothing",
            "eager/decorator/with_inside": "dtypes before, in and after the subregion: got [torch.float32, torch.float",
            "eager/decorator/function": "state and dtype of a product inside, call 0: got ((False, torch.bfloat16, Tru",
        },
    ),
    *seen_in(
        "decorator-loses-name-and-result",
        methods(__call__=not_a_wrapper),
        {
            "eager/decorator/arguments_and_result": "arguments as received: got None",
            "eager/decorator/keeps_its_name": "__name__: got '<lambda>'",
            "eager/decorator/function": "state and dtype of a product inside, call 0: got None",
        },
    ),
    *seen_in(
        "decorator-never-leaves",
        methods(__call__=open_ended),
        {
            "eager/decorator/called_in_a_thread": "dtype inside, and state after it: got (torch.float16, (True, torch.",
            "eager/decorator/forward": "state after the calls: got (True, torch.float16, True)",
            "eager/decorator/function": "state after call 0: got (True, torch.float16, True)",
            "eager/decorator/method": "state after the calls: got (True, torch.float16, True)",
            "eager/decorator/one_calls_another": "dtypes in caller, callee, caller: got [torch.float16, torch.float32,",
            "eager/decorator/options": "state of that region after the call: got (True, torch.float16, True)",
        },
    ),
    *seen_in(
        "decorator-leaves-too-late",
        methods(__call__=ending_late),
        {
            "eager/decorator/coroutine_function": "state after them: got (False, torch.float64, True)",
            "eager/decorator/generator_function": "state after the call: got (False, torch.float64, True)",
            "eager/decorator/other_callables": "state after the calls: got (False, torch.float64, True)",
            "eager/decorator/several_decorators": "state after the calls: got (False, torch.float64, True)",
        },
    ),
    *seen_in(
        "decorator-casts",
        methods(__call__=casting),
        {"eager/decorator/tensors_pass_through": "whether the argument came back as the same tensor: got False"},
    ),
    *seen_in(
        "nothing-is-dropped",
        on_torch(clear_autocast_cache=lambda: None),
        {
            "eager/decorator/casts_per_call": "casts in the first and the second call: got [1, 0]",
            "eager/exceptions/outermost_region_drops_casts": "casts after an exception left the outermost region: got",
            "eager/nesting/siblings_share_casts": "casts in the next outermost region: got 0",
        },
    ),
    *seen_in(
        "nothing-is-cast",
        on_torch(mm=never_cast),
        {
            "eager/context/results_outlive_the_region": "dtype of the result after the region: got torch.float32",
            "eager/nesting/low_meets_full_in_a_disabled_region": "dtypes a product received in the disabled region: go",
            "eager/threads/backward_outside": "dtype of the output: got torch.float32",
            "eager/threads/two_dtypes_in_turns": "dtype a product runs in: got torch.float32",
            "eager/threads/weight_after_a_thread": "dtypes here, time 0: got ('fp32', 'fp32')",
            "eager/threads/what_is_set_stays_in_its_thread": "dtype a product runs in here: got torch.float32",
        },
    ),
    *seen_in(
        "backward-raises-in-a-region",
        lambda: replaced(torch.Tensor, backward=backward_outside_only),
        {
            "eager/exceptions/kernel_raises_in_backward": "backward: raised RuntimeError 'backward in a region'; expec",
            "eager/threads/backward_sees_the_callers_region": "RuntimeError: backward in a region",
            "eager/threads/promotion_in_backward": "RuntimeError: backward in a region",
        },
    ),
    *seen_in(
        "the-state-is-misreported",
        on_torch(is_autocast_enabled=is_enabled_reversed),
        {"eager/context/restores_on_exit": "state inside the region: got (False, torch.float16, True)"},
    ),
    *seen_in(
        "threads-inherit",
        lambda: replaced(threading.Thread, run=inheriting),
        {
            "eager/threads/really_at_once": "what thread 0 saw of the others: got [(True, torch.float64, False), (Tru",
            "eager/context/left_without_being_entered": "state after __exit__ alone: got (True, torch.bfloat16, False)",
            "eager/threads/casts_are_shared": "casts in a thread: got 1",
            "eager/threads/default_dtype_of_its_own": "dtype in force in the thread's region: got torch.float64",
            "eager/threads/does_not_take_over_what_was_set": "state in a new thread: got (True, torch.float64, False)",
            "eager/threads/left_in_another_order": "nesting depth inside: got 2",
            "eager/threads/nested_in_turns": "nesting depth at level 1 of 4: got 2",
            "eager/threads/starts_outside": "state, depth and dtype of a product in a thread: got ((True, torch.float6",
        },
    ),
    *seen_in(
        "to-thread-stays",
        lambda: replaced(asyncio, to_thread=lambda call: asyncio.sleep(0, call())),
        {"eager/threads/to_thread": "state and dtype of a product there: got ((True, torch.float16, True), torch.fl"},
    ),
)
"""Every scenario of these rules is seen to notice at least one of them."""
