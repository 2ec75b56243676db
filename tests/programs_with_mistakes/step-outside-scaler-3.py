# also: step-with-non-finite, non-finite-in-float32
import torch
from torch import nn
nets = nn.ModuleDict({"enc": nn.Linear(8, 4), "dec": nn.Linear(4, 8), "dis": nn.Linear(8, 1)})
opts = {k: torch.optim.Adam(v.parameters(), 1e-3) for k, v in nets.items()}
scaler = torch.amp.GradScaler("cpu")
def losses(x):
    z = nets["enc"](x); y = nets["dec"](z)
    return {"rec": (y - x).square().mean(), "adv": nn.functional.softplus(-nets["dis"](y)).mean()}
for _ in range(3):
    with torch.autocast("cpu", dtype=torch.float16): total = sum(losses(torch.randn(4, 8)).values())
    for o in opts.values(): o.zero_grad()
    scaler.scale(total).backward()
    scaler.step(opts["enc"]); scaler.step(opts["dec"])
    opts["dis"].step()
    scaler.update()
