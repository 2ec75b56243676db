"""Train a small GPT in float16 whose attention scores overflow before they are scaled."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        q, k, v = (self.qkv(self.norm(x)) * 100).chunk(3, -1)
        scores = q @ k.transpose(-2, -1)  # loses
        weights = F.softmax(scores / 1e5, -1)
        x = x + self.out(weights @ (v / 100))
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.blocks = nn.Sequential(Block(32), Block(32))
        self.head = nn.Linear(32, 50)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    tokens = torch.randint(0, 50, (4, 17))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
