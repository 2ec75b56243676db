import torch
model = torch.nn.Linear(4, 4)
@torch.autocast("xpu", dtype=torch.bfloat16)  # wrong
# right: @torch.autocast("cpu", dtype=torch.bfloat16)
def forward(x):
    return model(x)
forward(torch.randn(2, 4)).sum().backward()
