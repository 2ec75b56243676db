import torch
def with_amp(model):
    old = model.forward  # wrong
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(old)  # wrong
    return model
m = with_amp(torch.nn.Linear(4, 4))
m(torch.randn(2, 4)).float().sum().backward()  # wrong
# right: with torch.autocast("cpu", dtype=torch.bfloat16):
    # right: out = m(torch.randn(2, 4))
# right: out.float().sum().backward()
