import torch
class Config:
    dtype = torch.bfloat16
    device = "cpu"
cfg = Config()
m = torch.nn.Linear(3, 3)
o = torch.optim.SGD(m.parameters(), lr=.1)
scaler = torch.amp.GradScaler(cfg.device)
for x in torch.randn(3, 2, 3):
    with torch.autocast(cfg.device, dtype=cfg.dtype):
        l = m(x).float().mean()
    scaler.scale(l).backward()
    scaler.step(o)
    scaler.update()
    o.zero_grad()
