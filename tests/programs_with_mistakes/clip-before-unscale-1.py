# helper closure, grad accumulation, alias of imports
import torch as th
import torch.nn as nn
import torch.nn.functional as F
from torch import amp

ACCUM = 4

def make_stepper(model, opt, grad_scaler, max_norm):
    params = [p for p in model.parameters() if p.requires_grad]

    def do_step():
        total = nn.utils.clip_grad_norm_(params, max_norm)
        grad_scaler.step(opt)
        grad_scaler.update()
        opt.zero_grad(set_to_none=True)
        return total

    return do_step

def main():
    dev = "cuda" if th.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(12, 24), nn.SiLU(), nn.Linear(24, 3)).to(dev)
    opt = th.optim.AdamW(model.parameters(), 1e-3)
    s = amp.GradScaler(dev)
    advance = make_stepper(model, opt, s, 0.5)
    for i in range(12):
        xb = th.randn(8, 12, device=dev)
        yb = th.randint(3, (8,), device=dev)
        with amp.autocast(dev, dtype=th.half):
            loss = F.cross_entropy(model(xb), yb) / ACCUM
        s.scale(loss).backward()
        if (i + 1) % ACCUM == 0:
            advance()

main()
