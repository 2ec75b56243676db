import torch
def precision(x):
    on = torch.is_autocast_enabled(x.device.type)
    return torch.get_autocast_dtype(x.device.type) if on else x.dtype
with torch.autocast("cpu", dtype=torch.bfloat16):
    precision(torch.randn(2))
