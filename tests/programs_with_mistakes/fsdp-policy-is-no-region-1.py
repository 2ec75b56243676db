# also: fsdp-rounds-tables
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
policy = MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16, buffer_dtype=torch.float16)  # wrong
# right: policy = MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16)
def build(model):
    model = FSDP(model, mixed_precision=policy)
    return model
def train(model, opt, x):
    loss = model(x).softmax(-1).log().mean()  # wrong
    # right: loss = model(x).float().softmax(-1).log().mean()
    loss.backward()
    opt.step()
