import torch
from torch.cuda import amp  # wrong
# right: from torch import amp
model = torch.nn.Linear(4, 4)
with amp.autocast(enabled=False):  # wrong
# right: with amp.autocast("cuda", enabled=False):
    model(torch.randn(2, 4))
