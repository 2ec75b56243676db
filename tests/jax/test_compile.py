"""`torch.compile(backend="jax")` beside the suites: buffers, writes, `jit` around; and what compiling costs."""

import copy
import json
import os
import subprocess
import sys
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from jaxlib.mlir import ir

from ampcheck.jax_device import jit
from ampcheck.jax_device.disk_cache import DiskCache
from ampcheck.jax_device.dispatch import program
from tests.cli_support import LIMIT, PROGRAMS, python

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch's own, while Dynamo is imported
    import ampcheck.jax_device.compile  # noqa: F401  # registers the backend

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor's imports


def test_the_entry_point_is_enough() -> None:
    """Nothing but the name is needed in a new process: torch loads the backend, and registers it itself."""
    code = (
        "import torch, ampcheck.jax_device\n"
        "print(torch.compile(torch.sin, backend='jax')(torch.zeros(2, device='jax')).tolist())"
    )
    assert python("-c", code) == "[0.0, 0.0]\n"


def test_steps_of_several_sizes_are_those_of_the_module_itself() -> None:
    """Losses, gradients and running statistics."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    layers = torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    module = torch.nn.Sequential(*layers).to("jax")
    twin = copy.deepcopy(module)
    seen = []
    for call, owner in ((torch.compile(module, backend="jax"), module), (twin, twin)):
        torch.manual_seed(0)
        losses = []
        for rows in (8, 8, 5):
            x, y = torch.randn(rows, 4).to("jax"), torch.randn(rows, 3).to("jax")
            loss = F.mse_loss(call(x), y)
            loss.backward()
            losses.append(loss.detach())
        seen.append([t.cpu() for t in (*losses, *(p.grad for p in owner.parameters()), *owner.buffers())])
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-5, atol=1e-6)
    assert module[1].num_batches_tracked.item() == 3


def test_a_compiled_function_inside_of_a_jitted_one_is_part_of_its_program() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2)).to("jax")
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(5, 3, device="jax")
    expected = compiled(x)

    @jit
    def step(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        out = compiled(x)
        out.square().sum().backward()
        return out.detach()

    torch.testing.assert_close(step(x), expected)
    assert step.compiles == 1
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    compiled(x).square().sum().backward()  # compiled again, outside
    torch.testing.assert_close(found, [p.grad for p in model.parameters()])


def told(**environment: str) -> dict[str, int | float | str]:
    """What a child says in which each warning is an error, with no cache named but in `environment`."""
    env = {k: v for k, v in os.environ.items() if k not in ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")}
    # Importing torchax warns, and is not what is asked here.
    command = [sys.executable, "-W", "error:Error:UserWarning", "-c", PROGRAMS["compile-child"]]
    child = subprocess.run(command, env=env | environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    assert "persistent compilation cache" not in child.stderr
    return json.loads(child.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.nightly
@pytest.mark.parametrize("others", [False, True])
def test_the_next_process_finds_the_programs_of_several_that_ran_at_once(tmp_path: Path, others: bool) -> None:
    """And one that has another processor, none of them."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    with ThreadPoolExecutor(2) as pool:
        first = [*pool.map(lambda _: told(**environment), range(2))]
    folder = tmp_path / "ampcheck" / "jax"
    assert ({f["folder"] for f in first}, folder.stat().st_mode & 0o777) == ({str(folder)}, 0o700)
    files = list(folder.iterdir())
    assert len(files) >= 4
    for file in files:  # none is half of a program
        assert file.name.endswith("-cache")
        zlib.decompress(file.read_bytes())
    second = told(**environment)
    assert second["hits"] == second["requests"] >= 4
    assert second["sum"] == first[0]["sum"]
    if others:
        other = told(**environment, XLA_FLAGS="--xla_cpu_max_isa=AVX")
        assert other["hits"] == 0
        assert other["processor"] != second["processor"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"JAX_ENABLE_COMPILATION_CACHE": "false"}, id="switched-off"),
        pytest.param({"JAX_COMPILATION_CACHE_DIR": ""}, id="no-folder"),
        pytest.param({"XDG_CACHE_HOME": "/dev/null"}, id="home-that-cannot-be-written"),
    ],
)
def test_without_a_folder_programs_are_compiled(environment: dict[str, str], tmp_path: Path) -> None:
    found = told(HOME=str(tmp_path), **environment)
    assert found["hits"] == 0
    assert not list(tmp_path.iterdir())


def test_a_program_on_disk_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DiskCache(tmp_path, 1000)
    assert cache.get("a") is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
        cache.put("a", b"1")
    assert cache.get("a") is None
    assert not list(tmp_path.iterdir())
    cache.put("a", b"1")
    cache.put("a", b"2")  # JAX could not read the first
    assert cache.get("a") == b"2"


def test_the_programs_on_disk_are_bounded(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    (tmp_path / "left.part").write_bytes(b"")
    os.utime(tmp_path / "left.part", (0, 0))
    for number in range(9):
        cache.put(str(number), bytes(100))
        os.utime(tmp_path / f"{number}-cache", (number, number))
    assert cache.get("0") is not None  # it is used, and is not among the oldest any more
    for number in range(9, 12):
        cache.put(str(number), bytes(100))
    left = {file.name.removesuffix("-cache") for file in tmp_path.iterdir()}
    assert "0" in left
    assert "11" in left
    assert not left & {"1", "2", "left.part"}
    assert len(left) * 100 <= 1000


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No program and no shape is known."""
    program.program_cache.clear()
    monkeypatch.setattr(program, "varying", program.Varying())
    yield
    program.program_cache.clear()


def test_programs_in_memory_are_bounded_and_made_again(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.program_cache, "limit", 8)
    x = torch.ones(3, device="jax")
    for _ in range(2):
        for n in range(1, 12):
            assert (x.expand(n, 3) * n).sum().item() == 3 * n * n
            assert 0 < len(program.program_cache) <= 8


class Experts(torch.nn.Module):
    """Two experts, each of which gets the tokens that were sent to it."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.ones(2, 4, 4))

    def forward(self, x: torch.Tensor, sent: int) -> torch.Tensor:
        parts = (x[:sent], x[sent:])
        return torch.cat([part @ weight for part, weight in zip(parts, self.weights, strict=True)])  # this line


def test_experts_with_ever_new_batches_are_warned_about_once(fresh: None) -> None:
    model, x = Experts().to("jax"), torch.ones(70, 4, device="jax")

    def loop() -> None:
        for sent in range(1, 25):
            model(x, sent).sum().backward()

    with pytest.warns(UserWarning, match=r"for 32 different shapes.*Pad the inputs") as seen:
        loop()
    assert len(seen) == 1
    lines = Path(__file__).read_text().splitlines()
    assert seen[0].filename == __file__
    assert lines[seen[0].lineno - 1].endswith("# this line")


def test_as_an_error_the_warning_leaves_the_op_usable(fresh: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(1, 40):
            x = torch.ones(n, device="jax")
            try:
                x.exp()
            except UserWarning:
                break
        assert (n, x.exp().shape, torch.ones(n + 1, device="jax").exp().shape) == (program.MANY, (n,), (n + 1,))


def test_what_a_program_was_compiled_from_is_not_held(fresh: None) -> None:
    """Each program holds an MLIR context of a megabyte where JAX is not made to forget it."""
    before = ir.Context._get_live_count()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(1, 65):
            torch.arange(float(n), device="jax").exp()
    assert ir.Context._get_live_count() - before <= 32


class Wider(torch.nn.Module):
    """A layer that is wider than the one before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + 1


def test_a_model_of_many_widths_with_some_batch_sizes_is_no_such_loop(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lines compile for as many shapes as are a loop's elsewhere, as DenseNet's do, but for few in each layer."""
    monkeypatch.setattr(program, "MANY", 8)
    model = torch.nn.Sequential(*(Wider(width) for width in range(1, 11))).to("jax")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for batch in (4, 3):  # the last one is smaller
            model(torch.ones(batch, 1, device="jax")).sum().backward()
    assert [w for w in seen if "different shapes" in str(w.message)] == []
