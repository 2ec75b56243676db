import torch
import torch.nn as nn
from torch.amp import GradScaler

class Trainer:
    def __init__(self, model, steps=4, accumulate=2):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), 0.1)
        self.amp_scaler = GradScaler("cpu", init_scale=256.0)
        self.steps, self.accumulate = steps, accumulate

    def compute_loss(self, x):
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            return self.model(x).pow(2).mean()

    def clip(self):
        # right: self.amp_scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=0.5)

    def fit(self):
        for i in range(self.steps):
            loss = self.compute_loss(torch.randn(4, 8)) / self.accumulate
            self.amp_scaler.scale(loss).backward()
            if (i + 1) % self.accumulate == 0:
                self.clip()
                self.amp_scaler.step(self.opt)
                self.amp_scaler.update()
                self.opt.zero_grad(set_to_none=True)

if __name__ == "__main__":
    Trainer(nn.Linear(8, 8)).fit()
