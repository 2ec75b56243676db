import torch
def scores(q, k):
    if torch.is_autocast_enabled():  # wrong
    # right: if torch.is_autocast_enabled(q.device.type):
        q = q.to(torch.get_autocast_gpu_dtype())  # wrong
        # right: q = q.to(torch.get_autocast_dtype(q.device.type))
    return q @ k.mT
with torch.autocast("cpu"):
    scores(torch.randn(2, 2), torch.randn(2, 2))
