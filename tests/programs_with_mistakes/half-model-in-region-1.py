# also: low-moments, low-parameters
import torch
model = torch.nn.Linear(4, 4).to("cpu").bfloat16()  # wrong
# right: model = torch.nn.Linear(4, 4).to("cpu")
opt = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(2, 4)).float().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
