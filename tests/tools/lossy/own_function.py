"""Train a model with its own function, whose backward rounds a large number."""

import torch
import torch.nn.functional as F
from torch import nn


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        clipped = (grad * 512).bfloat16()
        clipped = (clipped + 300).clamp(0, 600) - 300  # loses
        return clipped.to(x.dtype) / 512 * weight, (grad * x).sum(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 64)
        self.scale = nn.Parameter(torch.ones(64))
        self.down = nn.Linear(64, 1)

    def forward(self, x):
        return self.down(Scaled.apply(torch.tanh(self.up(x)), self.scale))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(20):
    x = torch.randn(64, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True).sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
