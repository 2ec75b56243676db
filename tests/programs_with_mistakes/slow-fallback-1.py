import torch
import torch.nn.functional as F
lin = torch.nn.Linear(16, 32)
rope = torch.randn(6, 16)
with torch.autocast("cpu", dtype=torch.bfloat16):
    q, k = lin(torch.randn(1, 2, 6, 16)).chunk(2, -1)
    q = q.float() * rope
    out = F.scaled_dot_product_attention(q, k.float(), torch.randn(1, 2, 6, 16))
    n = F.rms_norm(lin(torch.randn(2, 16)), (32,), torch.ones(32))  # wrong
    # right: n = F.rms_norm(lin(torch.randn(2, 16)), (32,), torch.ones(32).bfloat16())
(n.sum() + out.sum()).backward()
