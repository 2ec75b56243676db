import torch
from contextlib import nullcontext
def train(model, use_amp=True, dtype=torch.float16):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.) if use_amp and dtype is torch.float16 else None
    ctx = torch.autocast("cpu", dtype=dtype) if use_amp else nullcontext()
    for _ in range(3):
        opt.zero_grad()
        with ctx:
            loss = model(torch.randn(2, 4)).float().mean()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
        else:
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is not None:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()
train(torch.nn.Linear(4, 4))
