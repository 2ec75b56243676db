# loop over modules casting each, keep norms
import torch
def convert(model):
    for mod in model.modules():
        if isinstance(mod, torch.nn.Linear): mod.to(torch.bfloat16)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)); convert(model)
opt = torch.optim.SGD(model.parameters(), .3)
for _ in range(3):
    with torch.autocast("cpu", dtype=torch.bfloat16): loss = torch.nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.randint(2, (4,)))
    loss.backward(); opt.step(); opt.zero_grad()
