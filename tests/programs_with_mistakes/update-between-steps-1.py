import torch
from torch import nn
class GAN:
    def __init__(self):
        self.g, self.d = nn.Linear(4, 8), nn.Linear(8, 1)
        self.optims = {"g": torch.optim.Adam(self.g.parameters()), "d": torch.optim.Adam(self.d.parameters())}
        self.scaler = torch.amp.GradScaler("cpu", init_scale=128.)
    def train_step(self, real):
        with torch.autocast("cpu", dtype=torch.float16):
            fake = self.g(torch.randn(5, 4))
            d_loss = nn.functional.softplus(-self.d(real)).mean() + nn.functional.softplus(self.d(fake.detach())).mean()
            g_loss = nn.functional.softplus(-self.d(fake)).mean()
        self.scaler.scale(d_loss).backward(retain_graph=True)
        self.scaler.scale(g_loss).backward()
        self.scaler.step(self.optims["d"])
        self.scaler.update()  # wrong
        self.scaler.step(self.optims["g"])
        self.scaler.update()
gan = GAN()
for _ in range(3):
    gan.train_step(torch.randn(5, 8))
