import torch
class Block(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.fc = torch.nn.RMSNorm(d), torch.nn.Linear(d, d)
    def forward(self, x):
        return self.norm(self.fc(x))  # wrong
        # right: x = self.fc(x)
        # right: return torch.nn.functional.rms_norm(x, x.shape[-1:], self.norm.weight.to(x.dtype))
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = Block(8)(torch.randn(2, 8)).float().mean()
loss.backward()
