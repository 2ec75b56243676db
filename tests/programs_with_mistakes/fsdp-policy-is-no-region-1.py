import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
class Trainer:
    def __init__(self, model):
        self.model = fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        self.criterion = nn.CrossEntropyLoss()
    def step(self, x, y):
        loss = self.criterion(self.model(x), y)  # wrong
        # right: loss = self.criterion(self.model(x).float(), y)
        loss.backward()
