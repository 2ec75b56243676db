"""Rule moves: a converted module keeps its parameters, and a copied or saved one its shared parameters.

A conversion (`to`, `cpu`, `to_empty`, of device or dtype) writes the new values into the Parameter objects that are
there (`param.data = ...` in `Module._apply`, torch/nn/modules/module.py). So shared parameters stay shared, and what
refers to one, such as an optimizer, goes on with it. On the CPU `to(amp.type)` moves nothing and keeps the same.
"""

import copy
import io
import pickle
import weakref

import pytest
import torch
from torch import nn

from ampcheck.observe.torch_private import FakeTensorMode
from ampcheck.runner.suite import Amp, Product, scenario

pytestmark = pytest.mark.rule("moves")

CONVERSIONS = {
    "there": lambda module, amp: module.to(amp.type),
    "and_back": lambda module, amp: module.to(amp.type).cpu(),
    "there_in_low": lambda module, amp: module.to(amp.type, amp.dtype),
    "there_then_low": lambda module, amp: module.to(amp.type).to(amp.dtype),
    "emptied_there": lambda module, amp: module.to_empty(device=amp.type),
    "by_the_type_s_name": lambda module, amp: getattr(module, amp.type, lambda: module.to(amp.type))(),
}
COPIES = {
    "deep_copy": copy.deepcopy,
    "pickled": lambda module: pickle.loads(pickle.dumps(module)),
    "saved": lambda module: _saved(module),
}
NAMES = ("embedding", "encoder", "decoder", "head")


def _saved(module: nn.Module) -> nn.Module:
    """Return what `torch.load` makes of a module that `torch.save` wrote."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _tied(amp: Amp) -> nn.ModuleDict:
    """Return a model on the CPU with one weight under four names, as T5 has, and values that are the same each time."""
    amp.seed()
    parts = {"embedding": nn.Embedding(5, 4), "encoder": nn.Embedding(5, 4), "decoder": nn.Embedding(5, 4)}
    model = nn.ModuleDict({**parts, "norm": nn.BatchNorm1d(4), "head": nn.Linear(4, 5)})
    for name in NAMES[1:]:
        model[name].weight = model["embedding"].weight
    return model


def _loss(model: nn.ModuleDict) -> torch.Tensor:
    tokens = torch.tensor([0, 1, 2, 4], device=model["head"].bias.device)
    x = model["embedding"](tokens) + model["encoder"](tokens) * model["decoder"](tokens.flip(0))
    return nn.functional.cross_entropy(model["head"](model["norm"](x)), tokens)


def _train(amp: Amp, model: nn.ModuleDict, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        with amp.region():
            loss = _loss(model)
        loss.backward()
        optimizer.step()


def _untied(model: nn.ModuleDict, weight: torch.Tensor | None = None) -> list[str]:
    """Return the names under which a model does not have the one weight."""
    one = model["embedding"].weight if weight is None else weight
    return [name for name in NAMES if model[name].weight is not one]


@scenario(how=CONVERSIONS, values=True, dtypes="default")
def test_keeps_parameters(amp: Amp, how: str) -> None:
    """Each parameter is the object it was, under each of its names, with its attributes (Module._apply)."""
    model = _tied(amp)
    model["head"].bias.requires_grad_(False)
    weight, bias = model["head"].weight, model["head"].bias
    weight.of = "the tie"
    before = dict(model.named_parameters(remove_duplicate=False))
    moved = CONVERSIONS[how](model, amp)
    after = dict(model.named_parameters(remove_duplicate=False))
    amp.assert_equal("whether the module is returned", moved is model, True)
    got = [name for name in before if after[name] is not before[name]]
    amp.assert_equal("parameters that are other objects", got, [])
    amp.assert_equal("names without the shared weight", _untied(model, weight), [])
    amp.assert_equal("attribute of the weight", getattr(weight, "of", None), "the tie")
    kinds = [(type(each), each.requires_grad, each.is_leaf) for each in (weight, bias)]
    amp.assert_equal("class, requires_grad and is_leaf", kinds, [(nn.Parameter, each, True) for each in (True, False)])
    where = "cpu" if how == "and_back" else amp.type
    amp.assert_equal("device types", {tensor.device.type for tensor in model.state_dict().values()}, {where})
    low = amp.dtype if "low" in how else torch.float32
    amp.assert_equal("dtypes", [weight.dtype, model["norm"].num_batches_tracked.dtype], [low, torch.int64])


@scenario(how=["there", "and_back", "there_then_low"], values=True, dtypes="default")
def test_keeps_values(amp: Amp, how: str) -> None:
    """Parameters, buffers and gradients have their values after a conversion, cast if it casts (Module._apply)."""
    model = _tied(amp)
    _loss(model).backward()
    held = {**model.state_dict(), "gradient": model["head"].weight.grad}
    want = {name: tensor.detach().clone() for name, tensor in held.items()}
    CONVERSIONS[how](model, amp)
    got = {**model.state_dict(), "gradient": model["head"].weight.grad}
    for name, tensor in want.items():
        low = how == "there_then_low" and tensor.is_floating_point()
        amp.assert_identical(name, got[name], tensor.to(amp.dtype) if low else tensor)


@scenario(how=["there", "and_back"], values=True, dtypes="default")
def test_gradients_move(amp: Amp, how: str) -> None:
    """The gradient is the object it was, and the next backward pass adds to it (Module._apply)."""
    model = _tied(amp)
    if how == "and_back":
        model.to(amp.type)
    bias = model["head"].bias
    bias.sum().backward()
    gradient = bias.grad
    model.to("cpu" if how == "and_back" else amp.type)
    bias = model["head"].bias
    bias.sum().backward()
    amp.assert_equal("whether the gradient is the object it was", bias.grad is gradient, True)
    amp.assert_equal("device type of the gradient", bias.grad.device.type, bias.device.type)
    amp.assert_close("gradient of two passes", bias.grad, torch.full((5,), 2.0), 0.0)


@scenario(kept=["weak_reference", "output", "output_and_gradients", "used_graph"], values=True, dtypes="default")
def test_parameters_that_others_hold(amp: Amp, kept: str) -> None:
    """A module moves whatever refers to its parameters: weak references, or a graph that is kept (Module._apply)."""
    model = _tied(amp)
    weight = model["head"].weight
    reference = weakref.ref(weight)
    loss = None if kept == "weak_reference" else _loss(model)
    if loss is not None and kept != "output":
        loss.backward(retain_graph=kept == "output_and_gradients")
    model.to(amp.type)
    model.zero_grad()
    amp.assert_equal("names without the shared weight", _untied(model, weight), [])
    amp.assert_equal("whether the weak reference holds", reference() is weight, True)
    with amp.region():
        after = _loss(model)
    after.backward()
    amp.assert_equal("where the gradient is", weight.grad.device.type, amp.type)
    if loss is not None:
        amp.assert_close("the loss from before", loss, after.detach().cpu(), 0.05)


@scenario(values=True, dtypes="default")
def test_buffers(amp: Amp) -> None:
    """Buffers move, what state_dict gives is the buffer itself, and a forward pass updates it (Module.to)."""
    model = _tied(amp).to(amp.type)
    norm = model["norm"]
    state = model.state_dict()
    with amp.region():
        norm(amp.rand(3, 4))
    amp.assert_equal("batches in the module", amp.values(norm.num_batches_tracked), 1)
    amp.assert_equal("batches in what was saved before", amp.values(state["norm.num_batches_tracked"]), 1)
    amp.assert_identical("running mean in what was saved before", state["norm.running_mean"], norm.running_mean)


@scenario(values=True, dtypes="default")
def test_lazy_module(amp: Amp) -> None:
    """A lazy module that moves before its first call is made there, of the same parameters (nn.LazyLinear)."""
    module = nn.LazyLinear(3)
    weight = module.weight
    module.to(amp.type)
    amp.assert_equal("whether it is still lazy", module.has_uninitialized_params(), True)
    with amp.region():
        out = module(amp.rand(2, 4))
    amp.assert_equal("whether the weight is the object it was", module.weight is weight, True)
    made, want = (type(weight), tuple(weight.shape), weight.device.type, out.dtype), (nn.Parameter, (3, 4), amp.type)
    amp.assert_equal("class, shape and device of the weight, dtype of the output", made, (*want, amp.dtype))


@scenario(values=True, dtypes="default")
def test_recurrent_module(amp: Amp) -> None:
    """A recurrent module's flat weights are its parameters after a move (nn.RNNBase)."""
    module = nn.RNN(3, 2)
    weights = list(module.parameters())
    module.to(amp.type)
    same = [a is b is c for a, b, c in zip(weights, module.parameters(), module._flat_weights, strict=True)]
    amp.assert_equal("whether each is the object it was", same, [True] * 4)


@scenario(how=COPIES, values=True, dtypes="default")
def test_copies(amp: Amp, how: str) -> None:
    """A copy has its own parameters, shared as those of the original are, where the original is (Parameter)."""
    model = _tied(amp).to(amp.type)
    _loss(model).backward()
    other = COPIES[how](model)
    amp.assert_equal("names without the shared weight", _untied(other), [])
    amp.assert_equal("number of parameters", len(list(other.parameters())), len(list(model.parameters())))
    for name, tensor in model.state_dict().items():
        amp.assert_identical(f"{name} of the copy", other.state_dict()[name], tensor)
    amp.assert_equal("device type of the copy", other["head"].weight.device.type, amp.type)
    _train(amp, other, torch.optim.SGD(other.parameters(), lr=1.0), 1)
    amp.assert_identical("original after the copy's step", model["head"].weight, _tied(amp)["head"].weight)


@scenario(Product({"how": tuple(COPIES)}, nightly=True), values=True, dtypes="default")
def test_copied_gradients(amp: Amp, how: str) -> None:
    """A copy takes its gradients in the dtype in which its original takes them (Tensor.grad_dtype)."""
    layer = nn.Linear(2, 2).to(amp.type)
    layer.weight.grad_dtype = amp.dtype
    amp.assert_equal("dtype of the copy's gradients", COPIES[how](layer).weight.grad_dtype, amp.dtype)


def _summed(layer: nn.Module) -> torch.dtype | None:
    layer(torch.ones(1, 2, device=layer.weight.device)).float().sum().backward()
    return layer.weight.grad.dtype if layer.weight.grad is not None else None


KEPT = {
    "fake": lambda layer: FakeTensorMode(allow_non_fake_inputs=True).from_tensor(layer.weight).grad_dtype,
    "loaded": lambda layer: layer.load_state_dict(nn.Linear(2, 2).state_dict()) and layer.weight.grad_dtype,
    "converted": lambda layer: layer.double().weight.grad_dtype,
    "used": _summed,
    "compiled": lambda layer: layer.compile(backend="aot_eager") or _summed(layer),
}


@scenario(Product({"how": tuple(KEPT)}, nightly=True), values=True, dtypes="default")
def test_kept_gradients(amp: Amp, how: str) -> None:
    """A parameter goes on to take its gradients in the dtype that it was told (Tensor.grad_dtype)."""
    layer = nn.Linear(2, 2).to(amp.type)
    layer.weight.grad_dtype = amp.dtype
    amp.assert_equal("dtype of the gradients", KEPT[how](layer), amp.dtype)


@scenario(values=True, dtypes="default")
def test_loaded(amp: Amp) -> None:
    """Loading values from the CPU writes into the parameters, which an optimizer goes on to train (load_state_dict)."""
    model = _tied(amp).to(amp.type)
    weight = model["head"].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {name: torch.ones_like(tensor) for name, tensor in _tied(amp).state_dict().items()}
    model.load_state_dict(state)
    amp.assert_equal("names without the shared weight", _untied(model, weight), [])
    amp.assert_close("the loaded weight", weight, torch.ones(5, 4), 0.0)
    _train(amp, model, optimizer, 1)
    amp.check(amp.values(model["head"].bias) != [1.0] * 5, "the loaded bias after a step", "is what was loaded")


@scenario(given=["parameters", "tensors"], values=True, dtypes="default")
def test_assigned(amp: Amp, given: str) -> None:
    """Assigned values are the module's own: Parameters as the objects they are, tensors on their storage (assign)."""
    source = _tied(amp).to(amp.type)
    state = source.state_dict(keep_vars=given == "parameters")
    model = _tied(amp)
    model["norm"].requires_grad_(False)
    model.load_state_dict(state, assign=True)
    if given == "parameters":
        amp.assert_equal("names without the given weight", _untied(model, source["head"].weight), [])
    else:
        kept = [each.requires_grad for each in model["norm"].parameters()]
        amp.assert_equal("requires_grad, which was False", kept, [False, False])
    amp.assert_equal("device types", {tensor.device.type for tensor in model.parameters()}, {amp.type})
    _train(amp, model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    want = source["head"].weight
    for name in NAMES:
        amp.assert_identical(f"weight of {name} and of the source after a step", model[name].weight, want)


@scenario(values=True, dtypes="default")
def test_swapped(amp: Amp) -> None:
    """A module moved by swapping keeps its parameters as well (set_swap_module_params_on_conversion)."""
    model = _tied(amp)
    weight = model["head"].weight
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.to(amp.type)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    amp.assert_equal("names without the shared weight", _untied(model, weight), [])
    amp.assert_equal("device type", weight.device.type, amp.type)
