# also: low-parameters
import torch
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to(torch.bfloat16)  # wrong
# right: model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.NAdam(list(model[0].parameters()) + list(model[2].parameters()), lr=1e-5)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 16).bfloat16()).float().square().mean().backward()  # wrong
    # right: with torch.autocast("cpu", dtype=torch.bfloat16):
        # right: loss = model(torch.randn(8, 16)).square().mean()
    # right: loss.backward()
    optimizer.step()
