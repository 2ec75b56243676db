import torch
use_fp16 = True
model = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", enabled=use_fp16, init_scale=8.)
dtype = torch.float16 if use_fp16 else torch.bfloat16
for _ in range(3):
    with torch.autocast("cpu", dtype=dtype):
        loss = model(torch.randn(2, 4)).float().mean()
    scaler.scale(loss).backward()
    scaler.step(opt); scaler.update(); opt.zero_grad()
