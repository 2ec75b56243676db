# also: low-moments, low-moments
import torch
model = torch.nn.Linear(32, 32, dtype=torch.bfloat16)  # wrong
# right: model = torch.nn.Linear(32, 32)
opt = torch.optim.Adam(model.parameters(), lr=1e-5)
for _ in range(3):
    loss = (model(torch.randn(4, 32, dtype=torch.bfloat16)).float() ** 2).mean()  # wrong
    # right: with torch.autocast("cpu", dtype=torch.bfloat16):
        # right: loss = (model(torch.randn(4, 32)).float() ** 2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
