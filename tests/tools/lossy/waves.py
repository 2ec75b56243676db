"""Fit waves of large arguments, which a linear layer of the library computes."""

import torch
import torch.nn.functional as F
from torch import nn


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.phase = nn.Linear(1, 32)
        nn.init.uniform_(self.phase.weight, 50, 100)
        self.head = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, t):
        return self.head(torch.sin(self.phase(t)))  # loses


model = Waves()
optimizer = torch.optim.SGD(model.head.parameters(), lr=0.05)
for _ in range(20):
    t = torch.rand(64, 1) * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(model(t), torch.sin(60 * t))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
