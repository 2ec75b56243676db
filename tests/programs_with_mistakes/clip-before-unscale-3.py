import torch
model = torch.nn.Linear(8, 8)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=512.)
for step in range(3):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.half):
        loss = (model(torch.randn(4, 8)) ** 2).mean()
    scaler.scale(loss).backward()
    for p in model.parameters():
        p.grad.data.clamp_(-0.1, 0.1)
    scaler.step(opt)
    scaler.update()
