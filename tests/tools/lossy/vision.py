"""Train a vision model whose own normalization subtracts two large numbers in bfloat16."""

import torch
import torch.nn.functional as F
from torch import nn


class Standardize(nn.Module):
    def forward(self, x):
        flat = x.flatten(2).bfloat16() + 4
        mean = flat.mean(-1)
        variance = (flat * flat).mean(-1) - mean * mean  # loses
        return (flat - mean[..., None]) / variance.clamp_min(0.01)[..., None].sqrt()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2))
        self.standardize = Standardize()
        self.head = nn.Linear(8 * 36, 10)

    def forward(self, x):
        return self.head(self.standardize(self.features(x)).flatten(1))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    x, y = torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
