import torch
from torch.cuda import amp
model = torch.nn.Linear(4, 4)
with amp.autocast(enabled=False):
    model(torch.randn(2, 4))
