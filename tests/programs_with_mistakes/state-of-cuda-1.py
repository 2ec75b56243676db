import torch
def scores(q, k):
    if torch.is_autocast_enabled():
        q = q.to(torch.get_autocast_gpu_dtype())
    return q @ k.mT
with torch.autocast("cpu"):
    scores(torch.randn(2, 2), torch.randn(2, 2))
