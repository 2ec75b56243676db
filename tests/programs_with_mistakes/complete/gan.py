# mistakes: update-between-steps, optimizer-in-region
import torch
from torch import nn

class Generator(nn.Module):
    def __init__(self, noise, size):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(noise, 32), nn.ReLU(), nn.Linear(32, size), nn.Tanh())

    def forward(self, z):
        return self.net(z)

class Discriminator(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(size, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x)

class GAN:
    def __init__(self, noise=8, size=16):
        self.noise = noise
        self.nets = {"g": Generator(noise, size), "d": Discriminator(size)}
        self.optimizers = {key: torch.optim.Adam(net.parameters(), 2e-4) for key, net in self.nets.items()}
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.bce = nn.BCEWithLogitsLoss()

    def losses(self, real):
        fake = self.nets["g"](torch.randn(len(real), self.noise))
        scores = self.nets["d"](real), self.nets["d"](fake.detach()), self.nets["d"](fake)
        one, zero = torch.ones_like(scores[0]), torch.zeros_like(scores[0])
        return self.bce(scores[0], one) + self.bce(scores[1], zero), self.bce(scores[2], one)

    def optimize(self, which):
        self.scaler.step(self.optimizers[which])
        self.scaler.update()

    def train_step(self, real):
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss_d, loss_g = self.losses(real)
        self.scaler.scale(loss_d).backward(retain_graph=True)
        self.scaler.scale(loss_g).backward()
        with torch.autocast("cpu", dtype=torch.float16):
            self.optimize("d")
            self.optimize("g")

if __name__ == "__main__":
    torch.manual_seed(0)
    gan = GAN()
    for _ in range(3):
        gan.train_step(torch.randn(4, 16))
