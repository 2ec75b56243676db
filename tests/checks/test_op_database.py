"""The cases from PyTorch's op database: their names are current and safe, and the check fails where it should."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from ampcheck import samples
from ampcheck.checks.cases import database_cases
from ampcheck.checks.op_database import SAMPLES, OpDatabaseCheck
from ampcheck.devices.base import Device
from ampcheck.devices.registry import known
from ampcheck.errors import Broken, Unsupported, UsageError
from ampcheck.observe.recorder import tensors
from ampcheck.samples import op_database
from ampcheck.spec.case import MAX_LENGTH, RULES, Case
from ampcheck.spec.casting import FLOATING
from ampcheck.spec.policies import minor, versions
from scripts import op_database as tool
from tests.cli_support import python

CPU = known()["cpu"]
CHECK = OpDatabaseCheck()
DEVICES = [device for device in known().values() if device.key.startswith("Autocast")]


def case(op: str) -> Case:
    """The database's case of an op."""
    (found,) = (c for c in database_cases(CPU) if (c.op, c.inputs) == (op, "fp32"))
    return found


# ---- names


def test_the_file_is_current() -> None:
    if minor(torch.__version__) not in versions():
        assert not op_database.rows()
        return
    assert tool.current() == op_database.rows()


def test_a_difference_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fewer = {op: row for op, row in op_database.rows().items() if op != "relu" and op != "nn.functional.relu"}
    monkeypatch.setattr(op_database, "rows", lambda: fewer)
    assert tool.main([]) == 1
    assert capsys.readouterr().out.startswith("nn.functional.relu: the file has None; torch ")


def test_writing_changes_the_lines_of_one_version(tmp_path: Path) -> None:
    path = tmp_path / "op_database.csv"
    tool.write(path, "2.13", op_database.rows("2.13"))
    assert path.read_text() == op_database.FILE.read_text()
    relu = op_database.DatabaseRow("nn.functional.relu", "fp32", "relu")
    tool.write(path, "2.13", op_database.rows("2.13") | {"nn.functional.relu": relu})
    lines = [line.split(",") for line in path.read_text().splitlines() if line.startswith("nn.functional.relu,")]
    assert sorted(line[-2:] for line in lines) == [["2.11", "2.12"], ["2.13", "2.13"], ["2.14", ""]]
    assert ["nn.functional.relu", "fp32", "relu", "2.13", "2.13"] in lines
    with pytest.raises(UsageError, match=r"^torch 9\.9 is in no policy table yet; run python -m scripts.release"):
        tool.write(path, "9.9", {})


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.token)
def test_ids_are_safe_and_hold_no_foreign_token(device: Device) -> None:
    tokens = {*RULES, *FLOATING, *(d.token for d in DEVICES), "jax", "tpu", "eager", "jit", "autograd", "scaler"}
    ids = [c.id for c in database_cases(device)]
    assert len(ids) > 1000
    assert len(set(ids)) == len(ids)
    for name in ids:
        assert len(name) <= MAX_LENGTH
        op, _, rest = name.partition("+")
        assert rest.startswith("database-")
        assert [token for token in tokens if token in op.lower()] == []


def test_no_op_of_the_catalogue_has_a_sample_of_that_name() -> None:
    assert [
        op.overload for op in samples.catalogue().values() for s in op.samples if s.name == op_database.SAMPLE
    ] == []


def test_ops_with_a_policy_are_left_out_where_they_have_one() -> None:
    on_cpu, on_mps = ({c.op for c in database_cases(known()[name])} for name in ("cpu", "virtual:mps"))
    assert not {"mm", "nn.functional.conv2d"} & on_cpu
    assert "exp" in on_cpu
    assert "exp" not in on_mps
    assert {"relu" if "relu" in on_cpu else "nn.functional.relu", "add", "__getitem__"} <= on_cpu


def test_collecting_imports_no_database() -> None:
    program = """
import sys
from ampcheck.devices.registry import known
from ampcheck.checks.cases import database_cases
assert sum(1 for _ in database_cases(known()["cpu"])) > 1000
heavy = {f"torch.testing._internal.{m}" for m in ("common_utils", "common_methods_invocations", "opinfo")}
assert not {*heavy, "expecttest", "jax"} & set(sys.modules)
"""
    python("-W", "error::UserWarning", "-c", program)


# ---- samples


@pytest.mark.parametrize("op", ["uniform", "nn.functional.nll_loss", "as_strided.partial_views", "__getitem__", "svd"])
def test_samples_are_the_same_at_each_call(op: str) -> None:
    info = op_database.database()[op]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = op_database.samples(info, "fp32", "cpu", SAMPLES)
    second = op_database.samples(info, "fp32", "cpu", SAMPLES)
    assert torch.equal(state, torch.get_rng_state())
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        assert repr(a) == repr(b)
        everything = [list(tensors((s.input, s.args, s.kwargs))) for s in (a, b)]
        torch.testing.assert_close(*everything, rtol=0, atol=0)


# ---- the check


def test_right_behaviour_passes_without_values() -> None:
    """Of an op that casts by itself before an op with a policy."""
    device = known()["virtual:xpu"]
    (chosen,) = (c for c in database_cases(device) if (c.op, c.inputs) == ("float_power", "fp16"))
    assert CHECK.run(chosen, device) == []


def _planted(op: str, wrong: object) -> object:
    """The op database with another function for one op."""
    return patch.object(op_database.database()[op], "op", wrong)


def _only_under_autocast(change: Callable[[object], object], otherwise: Callable[..., object]) -> object:
    def call(*args: object, **kwargs: object) -> object:
        if torch.is_autocast_enabled("cpu"):
            return change(otherwise(*args, **kwargs))
        return otherwise(*args, **kwargs)

    return call


def _refuse(out: object) -> object:
    raise RuntimeError("not under autocast")


@pytest.mark.parametrize(
    ("op", "change", "says"),
    [
        ("add", lambda out: out.bfloat16(), "add returned bf16; expected fp32 as without autocast (rule fallthrough"),
        ("add", lambda out: out * 1.5, "output 0 of add differs in value; expected the same bits as without autocast"),
        ("add", lambda out: out.unsqueeze(0), "output 0 of add has shape (1,); expected () as without autocast"),
        ("allclose", lambda out: not out, "allclose returned [False]; expected [True] as without autocast"),
        ("add", _refuse, "add under autocast raised RuntimeError: not under autocast; without autocast"),
        ("empty_like", lambda out: out.half(), "empty_like returned fp16; expected fp32 as without autocast"),
    ],
    ids=["dtype", "value", "shape", "result", "error", "uninitialised"],
)
def test_a_difference_is_found(op: str, change: object, says: str) -> None:
    chosen = case(op)
    with _planted(op, _only_under_autocast(change, op_database.database()[op].op)):
        differences = CHECK.run(chosen, CPU)
    assert len(differences) == 1
    assert says in differences[0]
    assert differences[0].startswith("sample 0: ")
    assert CHECK.run(chosen, CPU) == []


def test_a_part_that_gets_a_wrong_dtype_is_found() -> None:
    """A composite op that hides from autocast what its part receives."""

    def wrong(*args: object, **kwargs: object) -> object:
        a = torch.ones(2, 2)
        with torch.autocast("cpu", enabled=False):
            return torch.mm(a, a)

    with _planted("add", wrong):
        differences = CHECK.run(case("add"), CPU)
    assert differences == [
        f"sample 0: argument {place} of aten::mm was given as fp32 and reached the kernel as fp32; expected bf16 "
        f"(rule downcast: {RULES['downcast'].sentence})"
        for place in (0, 1)
    ]


def test_what_is_raised_with_and_without_autocast_is_broken_unless_the_device_declares_it() -> None:
    said = "RuntimeError: not under autocast"
    with _planted("add", lambda *args, **kwargs: _refuse(None)):
        with pytest.raises(Broken, match=rf"^add raised {said}; it raises that without autocast, too$"):
            CHECK.run(case("add"), CPU)
        with patch.object(type(CPU), "refusals", ("not under",)), pytest.raises(Unsupported, match=f"^{said}$"):
            CHECK.run(case("add"), CPU)


def test_an_op_without_samples_is_no_pass() -> None:
    with patch.object(op_database.database()["add"], "sample_inputs_func", lambda *args: iter(())):
        assert CHECK.run(case("add"), CPU) == ["the op database has no fp32 sample of add for cpu"]


def test_an_op_this_torch_lacks_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"^the op database of torch .* has no abacus$"):
        CHECK.run(Case("eager", "fallthrough", "abacus", "database", "fp32", "bf16", "cpu", "cpu"), CPU)
