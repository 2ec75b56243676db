import torch
import torch.distributed.fsdp as fsdp
LOW = torch.bfloat16
class Config:
    policy = fsdp.MixedPrecision(param_dtype=LOW, reduce_dtype=LOW, buffer_dtype=LOW)  # wrong
    # right: policy = fsdp.MixedPrecision(param_dtype=LOW, reduce_dtype=LOW)
