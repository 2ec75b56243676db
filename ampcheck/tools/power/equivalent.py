"""Mutants that no case can notice: they compute the same, or differ only on hardware that no test machine has.

A mutant that a user could notice on the CPU, or on a virtual device, is never among them.
"""

import re
from collections.abc import Sequence

from ampcheck.tools.power.source import SourceMutant

_SCALERS = r"grad_scaler:"
_SHARDED = r"sharded_grad_scaler:ShardedGradScaler\."
_NOT_BLOCKING = "a copy on the CPU is never asynchronous; a GPU shows the difference in time alone"
_SET_TOGETHER = "the scale and its tracker are set together, and before: the assertion never fails"
_WITH_GPU = "it runs only for a scaler of a GPU that has gradients on the CPU, and a group that reduces on that GPU"
_EVERY_CALLER = "every caller passes the argument, or None in its place"
_NO_HARDWARE = "no virtual device has this type, and the hardware is absent"

EQUIVALENT: Sequence[tuple[str, str, str]] = (
    # scalers
    (_SCALERS + r".*\.(get|scale|step|update): .*non_blocking=True", "^`False` for `True`$", _NOT_BLOCKING),
    (_SCALERS + r".*non_blocking=True", r"^`\S*\.to\((device=)?\w+(\.\w+)*(, copy=True)?\)` for", _NOT_BLOCKING),
    (
        _SCALERS + r"_MultiDeviceReplicator\.get: ",
        r"^`self\.master\.to\(device=device, non_blocking=True\)` for",
        "nothing else reads the original, and a step is skipped where any copy says so",
    ),
    (_SCALERS + r"_MultiDeviceReplicator\.get: ", r"`self\._per_device_tensors\.get\(device\)` for", _EVERY_CALLER),
    (
        _SCALERS,
        r"^without `raise AssertionError\(('_scale |'_growth_tracker |'Expected _scale |'_get_scale_async |"
        r".*but _growth_tracker is None)",
        _SET_TOGETHER,
    ),
    (_SHARDED + "_amp_update_scale_cpu_: if self._scale is None or", r"^`self\._scale is None and", _SET_TOGETHER),
    (
        _SCALERS + r"GradScaler\.unscale_: inv_scale = .*mps",
        r"^`(self\._scale\.reciprocal\(\)|(not )?self\._scale\.device (!=|==) .*)` for `self\._scale\.d",
        "1 / x rounded to float64 and then to float32 is 1 / x rounded to float32",
    ),
    (_SCALERS + r".*if len\(found_infs\) > 1", r"^`len\(found_infs\) >= 1` for", "a loop from 1 to 1 has no turn"),
    (_SHARDED + "_unscale_grads_: def ", "^`False` for `True`$", _EVERY_CALLER),
    (
        _SHARDED + r"_unscale_grads_: if not allow_fp16",
        r"^`(not param\.grad\.dtype == torch\.float16|param\.grad\.dtype != torch\.float16)` for",
        "`allow_fp16` is true in every call, so that the condition is false",
    ),
    (
        _SHARDED + "_unscale_grads_: raise ",
        r"^without `raise ValueError\('Attempting to unscale FP16",
        "`allow_fp16` is true in every call, so that it never runs",
    ),
    (r"sharded_grad_scaler:_is_supported_device: ", r"^`'(xla|hpu)_'` for", _NO_HARDWARE),
    (
        r"sharded_grad_scaler:_GeneralMultiDeviceReplicator\.__init__: raise ",
        "^without `raise ",
        "`scale` and `unscale_` are given tensors of supported devices alone: `scale` refuses others before",
    ),
    (
        _SHARDED + r"unscale_: if self\._device != 'cpu' and",
        "",
        "on the CPU both branches reduce the same tensor; " + _WITH_GPU,
    ),
    (_SHARDED + r"unscale_: .*found_inf_on_(cpus|device)", r"found_inf_on_(cpus\.append|device)", _WITH_GPU),
    (_SHARDED + r"unscale_: .*all_reduce\(found_inf_on_device", "^`False` for `True`$", _WITH_GPU),
    (_SHARDED + r"update: torch\._amp_update_scale_", "", "it runs for a scale on a GPU alone"),
    # regions
    (
        r"autocast_mode:autocast\.__exit__: mode\.__torch_function__",
        r"_exit_autocast, \(\)\)` for",
        "the one class of modes that is called has these arguments as its default",
    ),
    # checkpoints
    (r"checkpoint:_get_autocast_kwargs: def ", "^`'cuda_'` for `'cuda'`$", _EVERY_CALLER),
    (
        r"checkpoint:_checkpoint_without_reentrant_generator: with torch\.random\.fork_rng",
        r"^`torch\.random\.fork_rng\(devices=rng_devices, enabled=preserve_rng_state\)` for",
        "there are no devices to keep a random state of, except on a GPU other than CUDA's",
    ),
    # compilers
    (r"utils:_get_autocast_states: ", r"for `torch\.is_autocast_enabled\('cuda'\)`$", "no argument means 'cuda'"),
    (
        r"utils:_get_autocast_states: ",
        r"for `torch\.is_autocast_enabled\('cpu'\)`$",
        "a guard around the pass puts the switch back before it is looked at again",
    ),
    (
        r"graph_compile:_aot_stage2(a_partition|b_compile_forward_or_inference): ",
        r"^`torch\._C\._DisableAutocast` for `torch\._C\._DisableAutocast if ",
        "turning off what is off changes nothing",
    ),
    (
        r"collect_metadata_analysis:run_functionalized_fw_and_collect_metadata: disable_autocast_cache",
        "^without `with ",
        "this pass has wrappers of its own, whose casts nothing looks up again and which hold no values",
    ),
    (r"ctx_manager:AutocastModeVariable\.create: raise ", "^without `raise ", "Dynamo calls it with those three alone"),
    (
        r"ctx_manager:AutocastModeVariable\.(create: var = |__init__: super)",
        r"^`(AutocastModeVariable\(target_values, (\*\*kwargs|initial_values=None)\)|"
        r"super\(\)\.__init__\(target_values=target_values, (\*\*kwargs|initial_values=initial_values)\))` for",
        "`None` is the default, and `kwargs` has been emptied",
    ),
    (
        r"_fsdp_param:FSDPParam\.init_dtype_attrs: reduce_dtype = None",
        "^without ",
        "gradients have that dtype already, and a cast to it returns them as they are",
    ),
    # ampcheck's own comparisons
    (
        r"(comparisons:(output_dtypes|bitwise|layout)|compare_cells|compare_outcomes|_difference): .*strict=True",
        "^`False` for `True`$",
        "the lengths are the same, which is compared before",
    ),
    (r"closeness:rounding_bound: ", "^`1` for `0`$", "`roundings` is at least 1 where the larger of the two counts"),
    (
        r"relations:_difference: finite",
        r"^`x\.isfinite\(\) \| ",
        "the same elements of both are finite, else it has returned",
    ),
    (r"closeness:mover: ", r"^`1 - signs \* ", "each sign is drawn at random"),
    (
        r"closeness:right: ",
        r"^`got\.to\(want\.dtype\) / want\.sign\(\)` for",
        "a sign of what is that large is 1 or -1",
    ),
)
"""Where a mutant is (`module:function: statement`), what it changes, both as searched, and why it is not counted."""


def why_equivalent(mutant: SourceMutant) -> str:
    """Return why no case can notice a mutant; "" where one might."""
    where = f"{mutant.module.rpartition('.')[2]}:{mutant.function}: {mutant.statement}"
    found = (why for place, change, why in EQUIVALENT if re.search(place, where) and re.search(change, mutant.change))
    return next(found, "")
