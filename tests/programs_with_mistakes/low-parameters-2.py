import torch
model = torch.nn.Linear(16, 4).to(torch.bfloat16)  # wrong
# right: model = torch.nn.Linear(16, 4)
opt = torch.optim.SGD(model.parameters(), lr=1e-5)
x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
torch.nn.functional.cross_entropy(model(x.to(torch.bfloat16)).float(), y).backward()  # wrong
# right: with torch.autocast("cpu", dtype=torch.bfloat16):
    # right: loss = torch.nn.functional.cross_entropy(model(x), y)
# right: loss.backward()
opt.step()
