# also: softmax-or-exp-in-low
import torch
class RMS(torch.nn.Module):
    def forward(self, x):
        with torch.amp.autocast("cpu", dtype=torch.float32):  # wrong
        # right: with torch.amp.autocast("cpu", enabled=False):
            # right: x = x.float()
            return x * x.pow(2).mean(-1, keepdim=True).rsqrt()
m = torch.nn.Sequential(torch.nn.Linear(4, 4), RMS())
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = m(torch.randn(2, 4))
out.float().sum().backward()
