"""Faults of the other modules, each seen by scenarios that its own slice leaves out."""

from __future__ import annotations

from tests.faults import autodiff, checkpoint, customfn, functorch, optimizers, persistence, scaler, unscale

_SEEN = {
    "product-gradient-doubled": {
        "from_region_to_region": "gradient of v: differs",
        "two_losses_of_one_region": "gradient of the weight: differs",
        "several_roots": "gradient of three roots: differs",
        "node_hooks": "dtypes at the nodes: got",
        "micro_batches": "gradient of six micro-batches: differs",
        "result_changed_in_place": "gradient: differs",
        "view_of_a_leaf": "gradient: differs",
        "complex_in_between": "gradient of w: differs",
        "constructed_in_a_region": "gradient: differs",
        "leaf_of_inference_mode": "gradient: differs",
        "penalty_in_a_region": "gradient: differs",
    },
    "backward-in-default-dtype": {
        "from_another_thread": "state a hook sees in the thread: got [(False, torch.float64",
        "region_in_a_hook": "state in the next hook: got (False, torch.float64",
        "saved_and_computed": "state and dtype of a product in unpack: got ((True, torch.float64",
        "backward_in_the_calling_thread": "state and depth a hook sees: got [((True, torch.float64",
    },
    "hook-told-float32": {
        "hook_of_another_dtype": "a low gradient made float32: raised nothing",
        "several_tensors": "dtypes of all: got [[torch.float32, torch.float32, torch.float32]]",
    },
    "backward-in-a-region": {"hooks_of_a_layer": "before backward: got ((True, torch.bfloat16)"},
    "post-accumulate-hook-too-early": {"optimizer_in_backward": "0.weight after three steps: differs"},
    "no-grad-ends-autocast": {"mode_around_a_decorated_forward": "dtypes: got (torch.float32, torch.float32)"},
    "product-casts-again": {"second_derivative_of_a_leaf": "second derivative: differs"},
    "product-gradient-lost": {"parametrized": "whether there is a gradient of parametrizations.weight.original0: got"},
    "replay-in-other-dtype": {
        "backward_where_weight_was_used": "when the function ran again: got ((True, torch.float16",
        "tensors_elsewhere": "when the function ran again: got ((True, torch.float16",
        "weights_used_before": "must have the same dtype, but got Half and",
    },
    "checkpoint-leaves-off": {
        "region_inside": "dtype outside: got torch.float32",
        "inside_each_other": "states of the inner function: got {((False, ",
        "sequence": "states and dtypes: got {((False, ",
        "sequence_bits": "dtype of the result in 2 segments: got torch.float32",
        "double_backward": "derivative 0: differs",
        "a_failure": "states it ran in: got {(False, ",
        "saved_tensors": "dtype of _saved_self: got torch.float32",
        "what_a_policy_sees": "products: got [(torch.float32, torch.float32)]",
        "used_before": "whether gradient 0 has the bits it has without: got False",
    },
    "replay-cached": {"keyword_tensors": "when the function ran again: got ((True, "},
    "checkpoint-leaves-uncached": {
        "without_gradients": "what ran: got [((True, torch.bfloat16, False)",
        "where_it_stops": "steps: got ['first', (True, torch.float16, False)",
    },
    "replay-off": {
        "same_bits": "whether gradient 0 checkpointed has the bits it has without: got False",
        "no_grad_inside": "whether gradient 0 checkpointed has the bits it has without: got False",
        "memory": "tensors have different metadata",
        "functions_of_their_own": "what ran: got [('forward', (False, ",
        "two_inputs": "to have the same dtype, but got: c10::BFloat16 != float",
    },
    "kept-op-changed": {"backward_inside": "whether gradient 2 has the bits it has without: got False"},
    "bwd-as-the-caller": {
        "backward_of_no_region": "in backward: got (True, torch.bfloat16)",
        "documented_product": "to have the same dtype, but got: c10::BFloat16 != float",
        "backward_in_backward": "dtype inside, state after it, state before it: got",
    },
    "op-casts-no-list": {"dictionary": "dtypes in the dictionary: got [[torch.float32], [torch.float32]]"},
    "op-casts-detached": {"second_derivative_of_an_op": "does not require grad"},
    "op-registered-for-low": {"op_inside_an_op": "dtype of the outer op's result: got torch.bfloat16"},
    "op-not-registered": {
        "op_under_vmap": "mapped over three rows: got [3, 2] torch.float32",
        "refused": "a number: raised nothing",
    },
    "fwd-casts-nothing": {"gradient": "result: got [4] torch.bfloat16"},
    "fwd-casts-the-result": {"in_place": "marked as dirty during the forward method"},
    "bwd-given-float32": {"several_results": "dtypes of gradients in backward: got [torch.float32, torch.float32"},
    "jacobian-in-low-dtype": {"dtype_follows_the_input": "dtypes of jacrev: got [torch.bfloat16]"},
    "dual-without-tangent": {
        "dual_numbers": "'NoneType' object has no attribute 'dtype'",
        "autograd/customfn/forward_mode": "tangent: got None",
    },
    "vmap-swaps-slices": {
        "mapped_backward": "gradients: differs",
        "ensemble": "outputs: differs",
        "weight_mapped_over": "products: differs",
        "model_mapped_over_samples": "results: differs",
    },
    "vmap-outside-of-regions": {
        "attention_of_two_dtypes": "same dtype",
        "autograd/customfn/under_vmap": "mapped over four",
    },
    "call-with-own-parameters": {"gradient_of_a_functional_call": "gradient of scale: differs"},
    "disabled-scales": {"averaged": "averaged parameter 0: differs"},
    "fused-ignores-found-inf": {
        "overflow_in_the_first_step": "the parameter after a skipped step and two others: differs",
        "moved": "the parameter of the loaded optimizer: differs",
    },
    "fused-ignores-grad-scale": {
        "preset_grad_scale": "the gradient, unscale_ called: False: differs",
        "dtypes_in_one": "parameter 2: differs",
    },
    "result-swallowed": {"optimizer_of_ones_own": "what step returned: got None"},
    "step-in-spite-of-nan": {"sparse": "the table: differs", "scheduler": "the parameter: differs"},
    "grows-one-late": {
        "sequence": "scale and tracker after step 2: got (4.0, 3)",
        "bottom_of_normal_numbers": "the smallest grown: got (1.17",
        "subnormal": "the last one grown: got (1.40",
        "in_place": "scale: differs",
        "two_found": "scale: got 8.0",
    },
    "two-found-are-none": {"wrong_argument": "found_inf of [] torch.float64: raised nothing"},
    "unscale-forgets-found": {"no_gradients": "found_inf that was 1.0: got 0.0"},
    "unscale-skips-last": {"views_of_one_buffer": "the buffer: differs"},
    "unscale-blind-to-nan": {
        "mixed_list": "found_inf: got 0.0",
        "perfect_storm": "what was found: got 0.0",
        "own_gradients_alone": "what was found in the second: got 0.0",
    },
    "unscale-blind-to-last-element": {"inverse": "found_inf: got 0.0"},
    "unscale-twice": {
        "subnormal": "subnormal gradients times 4: got [1.14",
        "keeps_dtype": "the gradient: differs",
        "gradients_with_a_graph": "the gradient: differs",
        "one_gradient_tensor_for_two": "the gradient: differs",
    },
    "unscale-inverse-is-off": {
        "scaler/optimizers/differentiable": "the parameter: differs",
        "scaler/optimizers/dtype": "the parameter: differs",
    },
    "scaler-never-backs-off": {
        "scaler/loops/long_overflow": "steps after which the scale was not halved: got [0, ",
        "scaler/loops/infinite_loss_then_finite": "the scale, with a bad batch: True: got 64.0",
    },
    "scaler-grows-late": {"scaler/loops/long_growth": "the scale after step 1: got 1.0"},
    "scaler-grows-into-infinity": {"scaler/loops/top_of_the_scale": "the scale after step 1: got inf"},
    "scaler-counts-over-overflow": {"scaler/loops/swings": "scale and tracker after step 5: got"},
    "scaler-new-scale-ignored": {
        "scaler/loops/subclass": "the scales: got [256.0, 512.0, 1024.0",
        "scaler/misuse/new_scale": "scale updated by float: got 4.0",
    },
    "scaler-stepped-twice": {"out_of_turn_when_fused": "step after backward, step: raised nothing"},
    "scaler-no-gradients-taken": {"scaler/optimizers/no_gradient_at_all": "step: raised nothing"},
    "replay-in-no-state": {"scaler/loops/recomputed_segment": "tensors have different metadata"},
}
"""By fault and scenario, what the scenario must say; one of another rule has suite and rule before its name."""

_FAULTS = {
    fault.name: fault
    for module in (autodiff, checkpoint, customfn, functorch, scaler, persistence, unscale, optimizers)
    for fault in module.FAULTS
}


FAULTS = tuple(_FAULTS[name].seen_by(*by) for name, seen in _SEEN.items() for by in seen.items())
"""Every fault, once for each scenario."""
