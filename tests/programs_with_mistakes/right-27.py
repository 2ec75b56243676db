import torch
model = torch.nn.Linear(64, 64).eval().to(torch.bfloat16)
for _ in range(5):
    with torch.inference_mode():
        model(torch.randn(2, 64).to(torch.bfloat16))
alone = torch.nn.Linear(4, 4)
opt = torch.optim.Adam(alone.parameters())
for _ in range(3):
    alone(torch.randn(2, 4)).square().mean().backward()
    opt.step(); opt.zero_grad()
