"""`ampcheck lint` finds mistakes in eager training code, and nothing in right programs."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from ampcheck.cli import main
from ampcheck.tools.lint import TRAINING, lint_source
from ampcheck.tools.lint.fix import fix_source

HEAD = """\
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
"""

PLAIN = HEAD.replace('scaler = torch.amp.GradScaler("cuda")\n', "")

FORWARD = """\
with torch.autocast("cuda", dtype=torch.float16):
    loss = model(x).sum()
"""


def loop(body: str, head: str = HEAD) -> str:
    """Return a script whose loop runs the body."""
    return head + "for x in batches:\n    optimizer.zero_grad()\n" + indent(dedent(body), "    ")


SCALED = "scaler.scale(loss).backward()\n"
STEP = "scaler.step(optimizer)\nscaler.update()\n"
CLIP = "clip_grad_norm_(model.parameters(), 1.0)\n"
UNSCALE = "scaler.unscale_(optimizer)\n"

FUNCTION = """\
import torch

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return {product}

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad
"""

WRONG = [
    (
        "step-outside-scaler",
        "from torch.amp import GradScaler\n\ndef backward(grad_scaler, loss):\n    scaled = grad_scaler.scale(loss)\n"
        "    scaled.backward()\n\ndef train(loss, opt, grad_scaler):\n    backward(grad_scaler, loss)\n"
        "    opt.step()\n",
    ),
    ("inverted-condition", "import torch\n\nclass A:\n    def f(self):\n"
    "        self.scaler = torch.amp.GradScaler(enabled=not self.fp16)\n"),
    ("inverted-condition", "import torch\n\nwith torch.autocast('cuda', torch.float16, not amp):\n    f()\n"),
    ("forward-replaced", "import torch\n\ndef wrap(m):\n"
    "    setattr(m, 'forward', torch.autocast('cpu')(m.forward))\n"),
    ("forward-replaced", "import torch\n\nregion = torch.autocast('cpu')\nm.forward = region(m.forward)\n"),
    (
        "backward-in-region",
        "import torch\n\nclass A:\n    @torch.autocast('cpu')\n    def step(self, x):\n"
        "        torch.autograd.backward(self.model(x).sum())\n",
    ),
    ("unscale-twice", loop("for part in x:\n    loss = model(part).sum()\n    " + SCALED + "    " + UNSCALE + STEP)),
    ("fp16-without-scaler", loop("with torch.autocast(device_type='cuda'):\n    loss = model(x).sum()\n"
    "loss.backward()\noptimizer.step()\n", PLAIN)),
]  # fmt: skip
"""Mistakes in shapes that no file of `programs_with_mistakes` has."""

RIGHT = [
    loop(FORWARD + "if clip:\n    scaler.scale(loss).backward()\n    scaler.unscale_(optimizer)\n    " + CLIP
         + "else:\n    scaler.scale(loss).backward()\n" + STEP),
    loop(FORWARD + "if use_amp:\n    scaler.scale(loss).backward()\nelse:\n    loss.backward()\n"
         "if scaler is not None and clip:\n    scaler.unscale_(optimizer)\nif clip:\n    " + CLIP
         + "if use_amp:\n    scaler.step(optimizer)\n    scaler.update()\nelse:\n    optimizer.step()\n"),
    loop(FORWARD.replace("dtype=torch.float16", "dtype=dtype") + SCALED + STEP),
    loop(FORWARD.replace("float16", "bfloat16") + "loss.backward()\n" + CLIP + "optimizer.step()\n", PLAIN),
    loop("with torch.no_grad():\n    with torch.autocast('cuda'):\n        soft = teacher(x)\nloss = model(x).sum()\n"
         "loss.backward()\noptimizer.step()\n", PLAIN),
    HEAD + "def train(loss):\n    if not use_amp:\n        loss.backward()\n"
    "        " + CLIP + "        optimizer.step()\n"
    "        return\n    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()\n",
    HEAD + "loss_scaler = NativeScaler()\nloss_scaler(loss, optimizer, parameters=model.parameters())\n",
    PLAIN + "with torch.autocast('cpu'):\n    with torch.autocast('cpu', enabled=False):\n        loss.backward()\n",
    HEAD + "one, two = torch.amp.GradScaler(), torch.amp.GradScaler()\none.scale(a).backward()\n"
    "two.scale(b).backward()\n"
           "one.step(opt_a)\none.update()\ntwo.step(opt_b)\ntwo.update()\n",
    loop("with torch.autocast('cuda'):\n    loss = model(x).sum()\n"
         "scale = scaler.scale if scaler else float\nscale(loss).backward()\n"
         "scaler.step(optimizer) if scaler else optimizer.step()\n", HEAD),
    "import torch\n\ndef f(x):\n    return x.is_cuda and torch.is_autocast_enabled()\n",
    "import torch\n\ntry:\n    s = torch.amp.GradScaler()\nexcept AttributeError:\n"
    "    s = torch.cuda.amp.GradScaler()\n",
    FUNCTION.format(product="x @ w").replace("return grad @ w.t()", "w = w.to(grad.dtype)\n"
    "        return grad @ w.t()"),
    FUNCTION.format(product="x * w"),
    "import torch\n\ndef f(xs):\n    for x in xs:\n        with torch.autocast('cpu'):\n"
    "            y = x @ x\n        yield y\n",
]  # fmt: skip


def rules(text: str) -> list[str]:
    return [report.rule for report in lint_source(text, "p.py", list(TRAINING))]


@pytest.mark.parametrize(("rule", "text"), [*WRONG, *(("", text) for text in RIGHT)])
def test_a_program(rule: str, text: str) -> None:
    assert sorted(set(rules(text))) == [rule] * bool(rule), text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "from torch.cuda.amp import GradScaler, autocast\ns = GradScaler(1024.0, enabled=on)\n"
            "with autocast(on, torch.half):\n    f()\n",
            "from torch.amp import GradScaler, autocast\ns = GradScaler(\"cuda\", 1024.0, enabled=on)\n"
            'with autocast("cuda", enabled=on, dtype=torch.half):\n    f()\n',
        ),
        ("import torch\nwith torch.cpu.amp.autocast():\n    f()\n", 'import torch\n'
        'with torch.amp.autocast("cpu"):\n    f()\n'),
        (
            "from torch.cuda import amp\n\nclass F:\n    @amp.custom_bwd\n    def é(c): return amp.autocast()\n",
            'from torch import amp\n\nclass F:\n    @amp.custom_bwd(device_type="cuda")\n'
            '    def é(c): return amp.autocast("cuda")\n',
        ),
        ("from torch.cuda.amp import autocast\nregion = autocast\n", "from torch.cuda.amp import autocast\n"
        "region = autocast\n"),
        (
            "import torch as t\nif x.is_cuda and t.is_autocast_enabled():\n    a = t.get_autocast_cpu_dtype( )  # é\n",
            'import torch as t\nif x.is_cuda and t.is_autocast_enabled("cuda"):\n'
            '    a = t.get_autocast_dtype("cpu")  # é\n',
        ),
        (
            "import torch\nfrom torch.cuda.amp import custom_fwd as fwd, autocast as region\n\nclass F:\n    @fwd\n"
            "    def f(c, x):\n        with region():\n            return x.to(torch.get_autocast_gpu_dtype())\n",
            "import torch\nfrom torch.amp import custom_fwd as fwd, autocast as region\n\nclass F:\n"
            '    @fwd(device_type="cuda")\n    def f(c, x):\n        with region("cuda"):\n'
            '            return x.to(torch.get_autocast_dtype("cuda"))\n',
        ),
        ("import torch.cuda.amp as a\na.custom_fwd(cast_inputs=None)\n", 'import torch.amp as a\n'
        'a.custom_fwd(device_type="cuda", cast_inputs=None)\n'),
    ],
)  # fmt: skip
def test_deprecated_names_are_rewritten(old: str, new: str) -> None:
    assert fix_source(old) == new
    assert fix_source(new) == new


@pytest.mark.parametrize(
    "region", ["", "with torch.autocast('cpu'):\n    pass\n", "with torch.autocast(d):\n    pass\n"]
)
def test_a_question_that_may_mean_another_device_stays_and_is_reported(region: str) -> None:
    text = f"import torch\n{region}d = torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None\n"
    assert fix_source(text) == text
    assert rules(text) == ["state-of-cuda"] * 2


def test_what_is_meant_for_an_older_torch_stays() -> None:
    text = "import torch\n\ntry:\n    s = torch.amp.GradScaler()\nexcept AttributeError:\n"
    "    s = torch.cuda.amp.GradScaler()\n"
    assert fix_source(text) == text


def test_line_ends_and_encodings_stay(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_bytes("# coding: latin-1\r\nimport torch\r\né = torch.cuda.amp.GradScaler()\r\n".encode("latin-1"))
    assert main.main(["lint", str(file), "--fix"]) == 0
    wanted = '# coding: latin-1\r\nimport torch\r\né = torch.amp.GradScaler("cuda")\r\n'
    assert file.read_bytes() == wanted.encode("latin-1")


def test_options_and_comments_take_ids_and_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.py"
    file.write_text("import torch\nwith torch.cuda.amp.autocast():\n    loss.backward()  # ampcheck: ignore[AMP005]\n")
    assert main.main(["lint", str(file)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{file}:2:6: AMP033 deprecated-amp: ")
    assert "\n1 report\nread 1 file, 1 region, 0 scalers;" in out
    assert main.main(["lint", str(file), "--select", "AMP005,AMP006"]) == 0
    assert main.main(["lint", str(file), "--ignore", "deprecated-amp"]) == 0
    assert main.main(["lint", str(file), "--fix"]) == 0
    assert 'with torch.amp.autocast("cuda"):' in file.read_text()
