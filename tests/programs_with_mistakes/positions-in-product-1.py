import torch
proj = torch.nn.Linear(8, 8)
inverse = torch.rand(8)
with torch.autocast("cpu", dtype=torch.bfloat16):
    t = torch.arange(1000, dtype=torch.float32)
    angles = torch.matmul(t.unsqueeze(1), inverse[None])  # wrong
    # right: angles = t.unsqueeze(1) * inverse
    loss = proj(angles.cos()).float().mean()
loss.backward()
