import torch
from torch.amp import autocast, GradScaler
class Engine:
    def __init__(self, model):
        self.model, self.optim = model, torch.optim.SGD(model.parameters(), 0.1)
        self.dtype = torch.bfloat16
        self.scaler = GradScaler("cpu")  # wrong
        # right: self.scaler = GradScaler("cpu", enabled=self.dtype is torch.float16)
    def __call__(self, x):
        self.optim.zero_grad()
        with autocast("cpu", dtype=self.dtype):
            loss = self.model(x).float().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optim)
        self.scaler.update()
e = Engine(torch.nn.Linear(4, 4))
for _ in range(2):
    e(torch.randn(2, 4))
