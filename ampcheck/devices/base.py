"""What a device must give to be tested: a base class with few methods."""

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ampcheck.errors import Unsupported
from ampcheck.observe.dispatcher import UNKNOWN, live_registrations, unlisted
from ampcheck.observe.recorder import Observation, observe
from ampcheck.samples.describe import TensorArg
from ampcheck.samples.tensors import host_tensor
from ampcheck.spec.policies import KEYS, closest, covered, table
from ampcheck.spec.torch_dtypes import DTYPES
from ampcheck.spec.torch_private import registered


@cache  # finding the closest table looks through a folder, and every case asks more than once
def promised(key: str, torch_version: str, libraries: tuple[str, ...] = ()) -> Mapping[str, str]:
    """Return the policies of a key in a version of torch, with those of ops of some libraries."""
    known = table(key, closest(torch_version), libraries)
    if covered(torch_version) or key not in KEYS:
        return known
    # A torch that no table covers is taken at its word on what is registered; what is new has rule drift.
    live = live_registrations()[key]
    return {**{o: p for o, p in known.items() if o in live}, **dict.fromkeys(unlisted(key), UNKNOWN)}


_OF_A_DTYPE = re.compile(r"not implemented for '(\w+)'|[Uu]nsupported ScalarType:? '?(\w+)")
_FLOATS = {"Half": torch.float16, "BFloat16": torch.bfloat16, "Double": torch.float64}
_COMPLEX = {"ComplexHalf": torch.complex32, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128}
_NAMED = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()} | _FLOATS | _COMPLEX
"""The dtypes by the words for them in Python and in C++, but for C++'s of integers, which mean other things as well."""


class Device(ABC):
    """A device under test.

    A third party subclasses this in its own package and declares it under the entry point group `ampcheck.devices`, or
    names the module with `--device-module`; `docs/your_backend.md` has a complete example. Only `unavailable` must be
    written; the rest has defaults that suit a device whose tensors hold values.
    """

    def __init_subclass__(cls) -> None:
        if "executors" in vars(cls):  # what `compilers` was called
            cls.compilers = vars(cls)["executors"]

    name: str
    """Its name on the command line, e.g. "cpu" or "virtual:cuda"."""
    token: str
    """Its name in case ids. No other device's token, dtype or rule may occur in it."""
    type: str
    """The PyTorch device type, e.g. "cuda"."""
    key: str
    """Its autocast dispatch key, e.g. "AutocastCUDA"."""
    default_amp: str = "fp16"
    """The dtype `torch.autocast(type)` takes when given none."""
    amp_dtypes: tuple[str, ...] = ("fp16", "bf16")
    """The lower precisions it supports."""
    has_values: bool = True
    """False for a device without arithmetic: only dtypes are checked, and the report says so."""
    database: bool = True
    """Whether every run has the cases of PyTorch's op database. False where they take longer than all others together:
    only a nightly run has them then. Such a device has gradient cases of each op's main sample alone."""
    share: int = 1
    """A run that neither names the device nor is nightly has those of a smoke run and one of so many of its cases."""
    one_region_dtype: bool = False
    """Whether a run that chooses no cases takes one of a scenario that differ in the region's dtype alone, and of a
    further sample of an op one dtype of inputs. So a device that compiles a program for each case has few programs."""
    deviations: Path | None = None
    """Its `deviations.toml`."""
    on_request: str = ""
    """Why it is tested only where it is named with `--device`, and by its smoke cases in a whole run; "" for a device
    that every run tests."""
    backend: str = ""
    """What makes its device type known to PyTorch, where two backends would do so for one type. They exclude each other
    in a process."""
    lone: bool = False
    """Whether it has no backward pass in the process of a PrivateUse1 backend: autograd's streams are those of one
    accelerator, and such a backend comes first (torch.accelerator.current_accelerator)."""
    observes_composite_ops: bool = True
    """False where PyTorch takes composite ops apart before `observe` sees them; one that was not seen whole is then
    judged by its outputs alone."""
    without_autograd: str = ""
    """Why PyTorch's autograd does not run on it; "" for a device on which it does."""
    compilers: tuple[str, ...] = ()
    """The compilers (`ampcheck.spec.case`) that take programs on it. Suite jit has no case on a device without
    one: what a compiler does with a backend it was not told of has nothing to do with autocast."""
    refusals: tuple[str, ...] = ()
    """Regular expressions: how its kernels say that they do not take a dtype. A call that raises such a text under
    autocast, and outside of it on the same dtypes, is unsupported; any other exception is red."""
    known_preflight: Mapping[str, str] = {}
    """Why steps of the preflight fail on it, by the step's name. A step that fails and is not here makes a run red."""
    setup: tuple[str, ...] = ()
    """The lines of Python that a program needs before it can use the device."""
    region: str = "torch.autocast"
    """What a program calls, with the device type and `dtype=`, for what `autocast` returns."""

    def refuses(self, error: BaseException) -> bool:
        """Return whether an exception is one of the device's `refusals`, or about a dtype that it does not claim.

        Such are PyTorch's words for a kernel without an instance for a dtype, and any words that name a dtype of which
        no tensor can be made on the device.
        """
        text, claimed = str(error), [DTYPES[name] for name in ("fp32", *self.amp_dtypes)]
        named = [_NAMED[word] for word in re.findall(r"\w+", text) if word in _NAMED and _NAMED[word] not in claimed]
        found = _OF_A_DTYPE.search(text)
        if found and _FLOATS.get(found[1] or found[2]) in named:
            return True
        if any(re.search(refusal, text) for refusal in self.refusals):
            return True
        return self.has_values and not all(map(self._takes, dict.fromkeys(named)))

    def _takes(self, dtype: torch.dtype) -> bool:
        """Return whether a tensor of a dtype can be copied to the device."""
        try:
            torch.ones(2).to(dtype).to(self.type)
        except Exception:  # whatever a backend raises is its answer
            return False
        return True

    def float32_products(self, kind: str) -> str:
        """Return what the settings in force let float32 products round their factors to: "tf32", "bf16", or "ieee" for
        nothing less than float32. `kind`: "matmul" or "conv".
        """
        names = {"cpu": "mkldnn", "xpu": "mkldnn", "cuda": "cudnn" if kind == "conv" else "cuda"}
        module = getattr(torch.backends, names.get(self.type, self.type), None)
        setting = getattr(getattr(module, kind, None), "fp32_precision", None)
        chosen = setting or {"high": "tf32", "medium": "bf16"}.get(torch.get_float32_matmul_precision(), "ieee")
        return chosen if chosen in ("tf32", "bf16") else "ieee"

    @abstractmethod
    def unavailable(self) -> str | None:
        """Return why the device cannot be used on this machine, in a sentence, or None where it can."""

    def new_parameters(self) -> str:
        """Return why a module that moves to the device gets new parameters; "" where it keeps its own.

        PyTorch makes new ones on every PrivateUse1 backend. A device whose backend does better overrides this.
        """
        if self.key != "AutocastPrivateUse1":
            return ""
        return "PyTorch gives a module that moves to a PrivateUse1 backend new parameters (pytorch#96026)"

    def policies(self) -> Mapping[str, str]:
        """Return the policy promised for each overload; by default, that of PyTorch's table for the key and torch."""
        return promised(self.key, torch.__version__)

    def listed(self) -> tuple[Mapping[str, str], str]:
        """Return the policies that this process has for it, and where they are written; of a device that is active."""
        live = {overload: self.policies().get(overload, UNKNOWN) for overload in registered(self.key)}
        count = len(live) or "nothing"
        return live or self.policies(), f"what the device promises; {count} registered under {self.key} in this process"

    def tensor(self, arg: TensorArg, dtype: str, position: int) -> torch.Tensor:
        """Return a fresh tensor for an argument; on the CPU where the description says so."""
        made = host_tensor(arg, dtype, position)
        return made if arg.device == "cpu" else made.to(self.type)

    def autocast(
        self, dtype: str | None = None, *, enabled: bool = True, cache_enabled: bool | None = None
    ) -> torch.autocast:
        """Return a `torch.autocast` region for the device, not yet entered."""
        amp_dtype = DTYPES[dtype] if dtype else None
        return torch.autocast(self.type, dtype=amp_dtype, enabled=enabled, cache_enabled=cache_enabled)

    def observe(
        self, call: Callable[[], Any], opaque_ops: Collection[str], inputs: Sequence[torch.Tensor] = ()
    ) -> Observation:
        """Run `call` in the current region and record what its kernels received; see
        `ampcheck.observe.recorder.KernelRecorder`.

        A backend that casts where a dispatch mode sees nothing records in its own way, and nothing that it did not see.
        """
        return observe(call, self.type, opaque_ops, inputs)

    def leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a leaf of a graph that requires grad, of the tensor's values."""
        return tensor.detach().requires_grad_()

    def backward(self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Run a backward pass from `outputs`, given the gradient of each; it adds to the `grad` of each leaf."""
        torch.autograd.backward(outputs, gradients)

    def activate(self) -> AbstractContextManager[object]:
        """Return the context of everything that makes or uses tensors of the device; it is entered once per thread."""
        return contextlib.nullcontext()

    def native_ops(self) -> AbstractContextManager[object]:
        """Return the context, inside `activate`, of work on results of `host`; for devices that answer for every op."""
        return contextlib.nullcontext()

    def repeatable(self) -> AbstractContextManager[object]:
        """Return the context in which equal calls give equal bits, as far as the device can.

        It may run other kernels, so only calls whose bits differ are repeated in it.
        """
        return contextlib.nullcontext()

    def j2t(self, fn: Callable[..., Any], cast_inputs: torch.dtype | None = None) -> Callable[..., Any]:
        """Make a differentiable PyTorch function of a JAX one (rule j2t); `cast_inputs` as in `torch.amp.custom_fwd`.

        Raises Unsupported where the device has no such thing.
        """
        raise Unsupported(f"{self.name} makes no PyTorch functions of JAX functions")

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor's values on the CPU. Called only where `has_values`."""
        return tensor.detach().cpu()

    def snapshot(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor's values on the CPU, in new memory, so that later writes do not change them."""
        host = self.host(tensor)
        return host.clone() if self.type == "cpu" else host

    def seed(self) -> None:
        """Reset the random state that ops on the device draw from.

        Asks the device alone: `torch.manual_seed` formats the stack for every accelerator that is not in use.
        """
        torch.default_generator.manual_seed(0)
        module = getattr(torch, self.type, None)
        for name in ("manual_seed_all", "manual_seed"):
            if seed := getattr(module, name, None):
                seed(0)
                return

    def synchronize(self) -> None:  # noqa: B027  # a device that works at once has nothing to wait for
        """Wait until all work given to the device is done; raise where it takes no more."""

    def describe(self) -> dict[str, str]:
        """Return what a reader of a run file should know of the device: model, driver, versions."""
        return {}
