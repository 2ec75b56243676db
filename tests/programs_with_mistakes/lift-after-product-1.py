import torch
class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(8, 8))
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ self.w).float()  # wrong
            # right: return x @ self.w
h = Head()
h(torch.randn(2, 8)).sum().backward()
