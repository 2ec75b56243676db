import torch
model = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
for _ in range(4):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(2, 4)).float().mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    # right: before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    sched.step()  # wrong
    # right: if scaler.get_scale() >= before:
        # right: sched.step()
