"""The rules: what PyTorch promises of autocast, one name and one sentence each.

Each case of the suites names its rule, so `pytest suites -k promote` runs the rule everywhere. In a suite, the rules
about ops are functions of `test_ops.py`, held equal to this list by a test; every other rule is a file or a folder.
"""

from dataclasses import dataclass

_AMP = "https://docs.pytorch.org/docs/2.13/amp.html"
_OPS = _AMP + "#autocast-op-reference"
_REGION = _AMP + "#torch.autocast"
_EXAMPLES = "https://docs.pytorch.org/docs/2.13/notes/amp_examples.html"
_SCALER = _AMP + "#torch.amp.GradScaler"
_MODE = "aten/src/ATen/autocast_mode.h"
_PYTHON = "torch/amp/autocast_mode.py"


@dataclass(frozen=True, slots=True)
class Rule:
    """One promise.

    `sentence`: the promise, in the present tense. `source`: where PyTorch makes it. `since`, `until`: torch versions.
    `autograd`: whether it is about PyTorch's gradients, so that a device with another autograd has no part in it.
    """

    name: str
    sentence: str
    source: str
    since: str = "1.10"
    until: str | None = None
    autograd: bool = False


_ALL = (
    Rule("downcast", "eligible arguments are cast to the region's dtype", _OPS),
    Rule("upcast", "eligible arguments are cast to float32", _OPS),
    Rule("optdtype", "dtype=float32 is filled in if the caller gave none and the first argument is eligible", _MODE),
    Rule("append", "the overload with a dtype runs, in float32 if the first argument is eligible", _MODE),
    Rule("promote", "eligible arguments are cast to the widest dtype among them", _OPS),
    Rule("banned", "the call is refused by an error that names the op to use instead", _OPS),
    Rule("drift", "an overload that is registered and is in no table follows one of the known policies", _OPS),
    Rule(
        "fallthrough",
        "an op without a policy acts under autocast as without; the parts of a composite op follow their own policies",
        _OPS,
    ),
    Rule(
        "eligibility",
        "only floating-point tensors other than float64 on the region's device type are cast, and in-place and out= "
        "calls go through as they are",
        _AMP + "#autocast-eligibility",
    ),
    Rule(
        "nesting", "an inner region decides alone until it ends, enabled or not, then the outer one does again", _REGION
    ),
    Rule("context", "a with statement sets enabled, dtype and cache for its body and puts all three back", _REGION),
    # Refusing to decorate what cannot be called is newer than the rule: torch 2.12 (pytorch#172178); 2.11 wrapped it.
    Rule("decorator", "a decorated function runs in the region on every call and keeps its name", _REGION),
    Rule(
        "holders",
        "whatever holds a region of a thread, leaving it puts back what entering it found, and the body of a decorated "
        "callable of any kind runs in the region",
        _PYTHON,
    ),
    Rule(
        "modes",
        "the __torch_function__ of a mode or a subclass sees a call as it is made, and its __torch_dispatch__ what "
        "autocast made of it",
        "https://docs.pytorch.org/docs/2.13/notes/extending.html",
    ),
    Rule(
        "cache",
        "a float32 leaf that requires grad is cast to the region's dtype once per outermost region, if the cache is on",
        "aten/src/ATen/autocast_mode.cpp",
    ),
    Rule("threads", "a new thread starts outside of every region, and regions of one thread touch no other", _REGION),
    # The functions that take a device type came with pytorch#124359.
    Rule(
        "state",
        "the state functions read and set what a region uses and refuse arguments of a wrong type",
        "torch/csrc/autograd/init.cpp",
        since="2.4",
    ),
    # The functions in pytorch#124359, the classes in pytorch#126062.
    Rule(
        "deprecated",
        "a deprecated spelling warns, names its replacement and does the same",
        _AMP + "#torch.cuda.amp.autocast",
        since="2.4",
    ),
    Rule(
        "defaults",
        "a region given no options is enabled, uses the device type's default dtype and leaves the cache as it was",
        _REGION,
    ),
    Rule(
        "anydtype",
        "whatever dtype is set, an op that casts to it does what it does on tensors cast by hand, and every other op "
        "what its policy says",
        _PYTHON,
    ),
    Rule(
        "precision",
        "a setting of how float32 is computed changes values within a bound, and no dtype, cast or other setting",
        "https://docs.pytorch.org/docs/2.13/generated/torch.set_float32_matmul_precision.html",
        since="2.9",
    ),
    Rule("errors", "a wrong argument is refused, or warned of and the region disabled, in words that name it", _PYTHON),
    Rule("exceptions", "an exception leaves a region unchanged, and the state from before the region is back", _PYTHON),
    Rule("modules", "a module in a region does what the functions it calls do there", _EXAMPLES),
    Rule(
        "relations",
        "ways to ask for one computation agree: in-place and out= calls, methods, gradient modes, memory, derivatives",
        _AMP + "#autocast-eligibility",
    ),
    Rule(
        "variants",
        "a module has the dtypes of its formula with any optional arguments, in training and evaluation, with and "
        "without gradients",
        _AMP,
    ),
    Rule(
        "moves",
        "a converted module keeps its parameters, shared ones shared, so that an optimizer made before trains it in a "
        "region; a copied or saved one keeps what is shared",
        "torch/nn/modules/module.py",
        autograd=True,
    ),
    Rule(
        "autodiff",
        "backward runs in the dtypes of the forward pass wherever it is called, and each leaf gets the gradient, in "
        "its own dtype, that explicit casts give",
        _REGION,
        autograd=True,
    ),
    Rule(
        "customfn",
        "a function of one's own, and an op of one's own, that asks for it runs in the dtype and the autocast state it "
        "asks for, forward and backward",
        _AMP + "#torch.amp.custom_fwd",
        autograd=True,
    ),
    Rule(
        "j2t",
        "a JAX function made a PyTorch one has the values and gradients of the same function in PyTorch, to any order, "
        "and receives what custom_fwd would give it",
        "https://github.com/pytorch/xla/issues/9361",
    ),
    Rule(
        "checkpoint",
        "a checkpointed function is computed again in the autocast state it was computed in, with the same dtypes, "
        "bits and gradients, and the state around the backward pass is left alone",
        "torch/utils/checkpoint.py",
        autograd=True,
    ),
    Rule(
        "functorch",
        "a transformed function sees the region it is called in, and its derivatives have the dtype of what they are "
        "taken with respect to",
        "https://docs.pytorch.org/docs/2.13/func.api.html",
        autograd=True,
    ),
    Rule(
        "transforms",
        "under one transform, or two, an op casts what it casts without one, and the result is that of explicit casts",
        "https://docs.pytorch.org/docs/2.13/func.api.html",
        autograd=True,
    ),
    Rule(
        "dataparallel",
        "a replica runs its forward in the region its caller is in, and gradients are reduced in the dtype of their "
        "parameters unless a hook or a policy says otherwise",
        _EXAMPLES + "#dataparallel-in-a-single-process",
        autograd=True,
    ),
    Rule(
        "ranks",
        "two ranks train like one process on the joined batch, in the same dtypes, and all of them skip a step or none",
        "https://docs.pytorch.org/docs/2.13/ddp_comm_hooks.html",
        autograd=True,
    ),
    Rule(
        "unscale",
        "gradients are multiplied by the inverse of the scale, each once and in its own dtype, and any that is not "
        "finite is found",
        _AMP + "#torch.amp.GradScaler.unscale_",
        autograd=True,
    ),
    Rule(
        "rescale",
        "the scale backs off after an overflow, grows after growth_interval steps without one where float32 holds it, "
        "and is kept otherwise",
        _AMP + "#torch.amp.GradScaler.update",
        autograd=True,
    ),
    Rule(
        "optimizers",
        "an optimizer stepped by a scaler does what it does with gradients that were never scaled, and a skipped step "
        "changes nothing",
        _AMP + "#torch.amp.GradScaler.step",
        autograd=True,
    ),
    Rule(
        "loops",
        "a training loop with a scaler, written as the documentation writes it, trains as one in float32 does",
        _EXAMPLES,
        autograd=True,
    ),
    Rule(
        "lossscale",
        "a GradScaler scales outputs, unscales gradients once, skips the step of an optimizer that has a gradient that "
        "is not finite, backs the scale off then and grows it after growth_interval iterations without one",
        _SCALER,
        autograd=True,
    ),
    Rule(
        "persistence",
        "a GradScaler that is saved and loaded, pickled or copied goes on as the one it was made of",
        _SCALER + ".state_dict",
        autograd=True,
    ),
    Rule(
        "misuse",
        "a call that GradScaler does not support is refused in words that name it, or does nothing",
        _SCALER,
        autograd=True,
    ),
    Rule(
        "reports",
        "what users reported as wrong, and PyTorch has neither promised nor mended, is as they ask",
        "https://github.com/pytorch/pytorch/issues",
    ),
    Rule(
        "limits",
        "a compiled program does in and around regions what it does eagerly, or is refused in words that name the "
        "limitation",
        "torch/csrc/jit/JIT-AUTOCAST.md",
    ),
    Rule(
        "ambient",
        "a compiled function acts in the state that it is called in, except that a record or machine code keeps the "
        "casts of the state that it was made in",
        _REGION,
    ),
    Rule(
        "guards",
        "a compiled function acts by the autocast settings of each call, and compiles anew only for settings that are "
        "new to it",
        "torch/csrc/dynamo/guards.cpp",
    ),
    Rule(
        "failures",
        "an error at run time ends the regions that it leaves, in a compiled graph and around it, and no other",
        _PYTHON,
    ),
    Rule(
        "derivatives",
        "a compiled function has the gradients of the eager program whose backward pass is in the regions that "
        "backward_pass_autocast names",
        "torch/_functorch/config.py",
        autograd=True,
    ),
    Rule(
        "hops",
        "in the function that a higher-order operator is given, an op casts what it casts without the operator",
        "https://docs.pytorch.org/docs/2.13/higher_order_ops.html",
    ),
    Rule(
        "faketensor",
        "in a region fake and compiled tensors have the dtypes, shapes and strides of real ones, also where an op "
        "without a policy is made of ops with one, and meta tensors are not cast",
        "https://docs.pytorch.org/docs/2.13/user_guide/torch_compiler/torch.compiler_fake_tensor.html",
    ),
    Rule(
        "parity",
        "a program with regions does compiled what it does eagerly",
        "https://docs.pytorch.org/docs/2.13/export.html",
    ),
    Rule("programs", "a program of ops and nested regions does what the other rules say of its steps", _AMP),
)

RULES = {rule.name: rule for rule in _ALL}
"""Every rule by name."""
