"""Programs for the tests of ampcheck.torchscript: each is scripted, and run eagerly beside.

They take three float32 matrices on the CPU and a flag. TorchScript reads their source, so they are plain.
"""

# TorchScript takes one region a statement, and some programs bind what they do not use

import torch
from torch import Tensor


def one_region(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    with torch.autocast("cpu"):
        d = torch.mm(a, b)
        e = torch.cat([d, c])
    return [d, e, torch.mm(a, b)]


def nested(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    with torch.autocast("cpu", dtype=torch.float16):
        d = torch.mm(a, b)
        with torch.autocast("cpu", enabled=False):
            e = torch.mm(a, b)
            with torch.autocast("cpu"):  # the dtype of the region around
                f = torch.mm(e, c)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            g = torch.mm(d, c)
        h = torch.mm(g, c)
    return [d, e, f, g, h]


def flag(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    with torch.autocast("cpu", enabled=on):
        d = torch.mm(a, b)
        with torch.autocast("cpu", enabled=not on, dtype=torch.float16):
            e = torch.mm(d.float(), c)
    return [d, e]


def dtype_at_run_time(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    dtype = torch.float16 if on else torch.bfloat16
    with torch.autocast("cpu", dtype=dtype):
        d = torch.mm(a, b)
    return [d]


def device_at_run_time(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    with torch.autocast(a.device.type, dtype=torch.bfloat16):
        d = torch.mm(a, b)
        with torch.autocast(a.device.type, enabled=on):
            e = torch.mm(a, b)
    return [d, e]


def several(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    with torch.autocast("cpu", dtype=torch.float16):
        d = torch.mm(a, b)
    e = torch.mm(a, b)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        f = torch.mm(a, b)
    return [d, e, f]


def bound(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    with torch.autocast("cpu", dtype=torch.float16) as region:
        d = torch.mm(a, b)
    e = torch.mm(a, b)
    with region:
        f = torch.mm(a, b)
    return [d, e, f, torch.mm(a, b)]


def chosen_at_run_time(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    low = torch.autocast("cpu", dtype=torch.float16)
    off = torch.autocast("cpu", dtype=torch.float16, enabled=False)
    region = low if on else off
    with region:
        d = torch.mm(a, b)
    with low:
        e = torch.mm(a, b)
    return [d, e]


def loops(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    out = [a]
    for i in range(3):
        with torch.autocast("cpu", enabled=i != 1):
            out.append(torch.mm(out[-1].float(), b) / 4)
    with torch.autocast("cpu", dtype=torch.float16):
        while len(out) < 6:
            out.append(torch.mm(out[-1], c) / 4)
        if on:
            out.append(torch.mm(out[-1], c))
        else:
            out.append(torch.stack([out[-1], c]))
    return out


def early_return(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    with torch.autocast("cpu", dtype=torch.float16):
        if on:
            return [torch.mm(a, b)]
    with torch.autocast("cpu", enabled=False):
        d = torch.mm(a, c)
        return [d, torch.mm(d, c)]


def left_in_a_loop(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    out = [a]
    for i in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if on and i == 2:
                continue
            out.append(torch.mm(a, b))
        if i == 3:
            break
        out.append(torch.mm(a, c))
    return out


def asks(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    out = [torch.tensor(torch.is_autocast_cpu_enabled())]
    with torch.autocast("cpu", enabled=on, dtype=torch.float16):
        out.append(torch.tensor(torch.is_autocast_cpu_enabled()))
        out.append(torch.zeros([1], dtype=torch.get_autocast_dtype("cpu")))
    return out


def composite(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    """The same ops in and out of a region: none may be merged with another."""
    d = torch.einsum("ij,jk->ik", [a, b])
    with torch.autocast("cpu"):
        e = torch.einsum("ij,jk->ik", [a, b])
        q = a.unsqueeze(1)
        weight = torch.cat([a, b, c])
        f = torch.nn.functional.multi_head_attention_forward(
            q, q, q, 4, 1, weight, None, None, None, False, 0.0, b, None
        )[0]
    g = torch.einsum("ij,jk->ik", [a, b])
    return [d, e, f, g]


def ineligible(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        d = torch.mm(a.double(), b.double())
        e = torch.cat([a.double(), b.to(torch.bfloat16), c])
        f = torch.cat([a.int(), b.to(torch.bfloat16)])
        g = torch.mm((4 * a).long(), (4 * b).long())
        h = torch.mm(a, b).add_(c).mul_(2)
        i = torch.empty([4, 4])
        torch.mm(a, b, out=i)
        a = a.clone().addmm_(b, c)
    return [d, e, f, g, h, i, a]


def upcasts(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    with torch.autocast("cpu"):
        d = torch.mm(a, b)
        e = torch.linalg.inv(d + 4 * torch.eye(4))
        f = torch.nn.functional.mse_loss(d, c)
        g = torch.nn.functional.binary_cross_entropy_with_logits(d, torch.sigmoid(c))
    return [d, e, f, g]


def biases(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    """Arguments that may be None, known to be and not."""
    bias = c[0] if on else None
    with torch.autocast("cpu"):
        d = torch.nn.functional.linear(a, b, bias)
        e = torch.nn.functional.linear(a, b)
        f = torch.nn.functional.linear(a, b, c[1])
        g = torch.addmm(c[0], a, b)
    return [d, e, f, g]


def callee(a: Tensor, b: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        c = torch.mm(a.float(), b.float())
    with torch.autocast("cpu"):  # the dtype of the region it is called in
        d = torch.mm(c, b)
    return torch.mm(c, d.to(c.dtype))


def calls(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    d = callee(a, b)
    with torch.autocast("cpu", dtype=torch.float16):
        e = callee(a, b)
        with torch.no_grad():
            f = torch.mm(e, c)
    return [d, e, f]


def forks(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    with torch.autocast("cpu"):
        future = torch.jit.fork(callee, a, b)
        d = torch.mm(a, c)
    return [d, torch.jit.wait(future)]


def no_region(a: Tensor, b: Tensor, c: Tensor, on: bool) -> list[Tensor]:
    d = torch.mm(a, b)
    return [d, torch.cat([d, c]), torch.einsum("ij,jk->ik", [d, c]), d.float().softmax(0)]


@torch.jit.ignore
def python_code(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b)


def leaves_torchscript(a: Tensor, b: Tensor) -> list[Tensor]:
    with torch.autocast("cpu", dtype=torch.float16):
        c = python_code(a, b)
    return [c, python_code(a, b)]


PROGRAMS = tuple(made for made in list(vars().values()) if "on" in getattr(made, "__annotations__", ()))
"""Every program."""
