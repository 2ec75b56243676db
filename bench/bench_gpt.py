"""A training step of a GPT in bfloat16 autocast, in each way to run it: time, first step, peak memory.

    pytest bench/bench_gpt.py

Four layers, 256 wide, a sequence of 128, a batch of 4, AdamW. Each way has a process of its own with an empty cache;
they take their steps in turns. Times are printed; what is asserted is a ratio. torchax needs optax, which is not
installed with ampcheck: without it, that way is left out.
"""

import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from ampcheck.bench.core.table import seconds
from ampcheck.bench.workloads.steps import TransformerBlock
from ampcheck.runner.worker import Channel, Worker

LAYERS, WIDTH, HEADS, LENGTH, BATCH, TOKENS = 4, 256, 4, 128, 4, 512
RATE, DECAY, BETAS, EPSILON = 1e-3, 0.01, (0.9, 0.999), 1e-8
ROUNDS, STEPS, LIMIT = 15, 5, 600.0


class Block(TransformerBlock):
    """A transformer block written out, with ReLU. `hidden`: the pairs of places that do not see each other."""

    def forward(self, x: torch.Tensor, hidden: torch.Tensor | None = None) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(w // self.heads)
        scores = torch.softmax(scores if hidden is None else scores.masked_fill(hidden, -math.inf), -1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(b, t, w))
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Tokens in, a score of each token for the next place out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.layers = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)
        self.register_buffer("hidden", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.places
        for layer in self.layers:
            x = layer(x, self.hidden)
        out: torch.Tensor = self.head(self.norm(x))
        return out


def made(device: str) -> tuple[Gpt, torch.Tensor, torch.Tensor]:
    """Return the model, and tokens (BATCH, LENGTH) with the next ones."""
    torch.manual_seed(0)
    model, data = Gpt(), torch.randint(TOKENS, (BATCH, LENGTH + 1))
    return model.to(device), data[:, :-1].to(device), data[:, 1:].to(device)


def loss_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(out.flatten(0, 1), y.flatten())


def in_torch(way: str) -> Callable[[], float]:
    """Return the step on the CPU ("eager", "inductor") or on the jax device ("jax eager", "jax compile", "jax jit")."""
    device = "jax" if way.startswith("jax") else "cpu"
    if device == "jax":
        import ampcheck.jax_device as ours  # noqa: PLC0415  # a process has either it or torchax
    model, x, y = made(device)
    called: Any = model
    if way in ("inductor", "jax compile"):
        called = torch.compile(model, backend="inductor" if way == "inductor" else "jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = loss_of(called(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    taken = ours.jit(step) if way == "jax jit" else step
    return lambda: taken(x, y).item()


def by_torchax() -> Callable[[], float]:
    """Return the step of torchax's own trainer, one program."""
    import jax  # noqa: PLC0415  # of this process alone
    import optax  # noqa: PLC0415
    import torchax  # noqa: PLC0415
    from torchax import interop, train  # noqa: PLC0415

    torchax.enable_globally()
    model, x, y = made("jax")

    def called(weights: Any, buffers: Any, x: torch.Tensor) -> torch.Tensor:
        with torchax.amp.autocast("jax", dtype=torch.bfloat16):
            return torch.func.functional_call(model, {**weights, **buffers}, (x,))

    optimizer = optax.adamw(RATE, *BETAS, EPSILON, weight_decay=DECAY)
    weights, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    state = [weights, interop.call_jax(optimizer.init, weights)]
    step = interop.jax_jit(
        train.make_train_step(called, loss_of, optimizer), kwargs_for_jax_jit={"donate_argnums": (0, 2)}
    )

    def take() -> float:
        loss, *state[:] = step(state[0], buffers, state[1], x, y)
        return float(jax.block_until_ready(interop.jax_view(loss)))

    return take


def by_hand() -> Callable[[], float]:
    """Return the step as written in JAX, with the casts of autocast and sums of products in float32."""
    import jax  # noqa: PLC0415  # of this process alone
    import jax.numpy as jnp  # noqa: PLC0415

    from bench import jax_reference as reference  # noqa: PLC0415  # imports JAX

    model, x, y = made("cpu")
    weights = {name: jnp.array(parameter.detach().numpy()) for name, parameter in model.named_parameters()}
    inputs, wanted = jnp.array(x.numpy()), jnp.array(y.numpy())
    mask = jnp.triu(jnp.ones((LENGTH, LENGTH), bool), 1)

    def forward(p: Any, x: Any) -> Any:
        x = p["tokens.weight"][x] + p["places"]
        for n in range(LAYERS):
            head = f"layers.{n}."
            own = {name.removeprefix(head): value for name, value in p.items() if name.startswith(head)}
            x, _ = reference.block(own, {}, x, HEADS, mask)
        return reference.linear(p, "head", reference.layer_norm(p, "norm", x)).astype(jnp.float32)

    def loss(p: Any, x: Any, y: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(forward(p, x)), y[..., None], -1).mean()

    @jax.jit(donate_argnums=(0, 1))
    def step(p: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        count, first, second = state
        count += 1
        first = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, first, grads)
        second = jax.tree.map(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, second, grads)
        size, root = RATE / (1 - BETAS[0] ** count), jnp.sqrt(1 - BETAS[1] ** count)

        def moved(w: Any, m: Any, v: Any) -> Any:
            return w * (1 - RATE * DECAY) - size * m / (jnp.sqrt(v) / root + EPSILON)

        return value, jax.tree.map(moved, p, first, second), (count, first, second)

    zeros = [jax.tree.map(jnp.zeros_like, weights) for _ in range(2)]
    state = [weights, (jnp.zeros(()), *zeros)]

    def take() -> float:
        value, *state[:] = step(*state, inputs, wanted)
        return float(value)

    return take


WAYS: dict[str, Callable[[], Callable[[], float]]] = {
    **{way: (lambda way=way: in_torch(way)) for way in ("eager", "inductor", "jax eager", "jax compile", "jax jit")},
    "torchax jit": by_torchax,
    "JAX by hand": by_hand,
}


def child(way: str) -> None:
    """Take the first step, and then as many as each line of standard input says; say what each took."""
    began = time.perf_counter()
    step = WAYS[way]()
    built = time.perf_counter()
    loss = step()
    first = time.perf_counter() - built
    losses = [loss, step(), step()]
    channel = Channel()
    channel.send({"built": built - began, "first": first, "losses": losses})
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step()
        taken = [(time.perf_counter() - wall) / int(line), (time.process_time() - cpu) / int(line)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        channel.send({"wall": taken[0], "cpu": taken[1], "peak": peak})


def test_a_gpt_in_every_way(show: Callable[[str], None]) -> None:
    found: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory() as empty, ExitStack() as running:
        paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": paths}
        env |= {"XDG_CACHE_HOME": empty, "TORCHINDUCTOR_CACHE_DIR": f"{empty}/inductor", "JAX_PLATFORMS": "cpu"}
        children = {}
        for way in WAYS:
            command = [sys.executable, "-W", "ignore", __file__, way]
            children[way] = running.enter_context(Worker(command, env))
            if said := children[way].hear(LIMIT):
                found[way] = {**said, "rounds": []}
        for _ in range(ROUNDS):
            for way, row in found.items():
                children[way].tell(str(STEPS))
                row["rounds"].append(children[way].hear(LIMIT))
    show("| way | a step | its processor time | first step | peak memory | third loss |\n|---|---|---|---|---|---|")
    for way, row in found.items():
        wall, cpu = (statistics.median(one[name] for one in row["rounds"]) for name in ("wall", "cpu"))
        peak = max(one["peak"] for one in row["rounds"]) / 1e6
        times = f"{seconds(wall)} | {seconds(cpu)} | {row['first']:.1f} s"
        show(f"| {way} | {times} | {peak:.0f} MB | {row['losses'][2]:.4f} |")
    ours, theirs = found["jax jit"], found["JAX by hand"]
    assert all(abs(a - b) < 2e-2 for a, b in zip(ours["losses"], theirs["losses"], strict=True))
    ratios = [b["wall"] / a["wall"] for a, b in zip(ours["rounds"], theirs["rounds"], strict=True)]
    show(f"jax jit: {statistics.median(ratios):.2f} of the speed of JAX by hand")
    assert statistics.median(ratios) > 0.8


if __name__ == "__main__":
    child(sys.argv[1])
