import torch
@torch.autocast("cpu", dtype=torch.float32)  # wrong
# right: @torch.autocast("cpu", enabled=False)
def norm(x):
    return x.square().mean().sqrt()
norm(torch.randn(3, requires_grad=True)).backward()
