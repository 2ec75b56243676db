import torch
model = torch.nn.Linear(4, 4)
original = model.forward  # wrong
@torch.autocast("cpu", dtype=torch.bfloat16)  # wrong
def forward(x):
    return original(x)  # wrong
    # right: with torch.autocast("cpu", dtype=torch.bfloat16):
        # right: return model(x)
model.forward = forward  # wrong
model(torch.randn(2, 4)).float().sum().backward()  # wrong
# right: forward(torch.randn(2, 4)).float().sum().backward()
