import torch
device = torch.device("cpu")
model = torch.nn.Linear(4, 4).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with torch.autocast("cuda", dtype=torch.bfloat16):  # wrong
    # right: with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = model(torch.randn(2, 4, device=device)).mean()
    loss.backward(); opt.step(); opt.zero_grad()
