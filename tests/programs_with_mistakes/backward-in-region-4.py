import torch
from functools import partial
half = partial(torch.autocast, device_type="cpu", dtype=torch.float16)
model = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.)
def step(x):
    with half():
        loss = model(x).float().mean()
        scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
for _ in range(2):
    step(torch.randn(2, 4))
