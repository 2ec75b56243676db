import torch
proj = torch.nn.Linear(8, 8)
def attend(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        s = proj(x)
    return torch.softmax(s, dim=-1)  # wrong
        # right: return torch.softmax(s, dim=-1)
a = attend(torch.randn(3, 8))
(a.float() ** 2).sum().backward()
