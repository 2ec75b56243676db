import torch
# The first scale is too high for a step or two, as PyTorch means it to be.
m = torch.nn.Linear(16, 4)
opt = torch.optim.SGD(m.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
for _ in range(12):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = m(torch.randn(8, 16)).float().square().sum()
    opt.zero_grad(); scaler.scale(loss).backward(); scaler.step(opt); scaler.update()
