import contextlib, torch
model = torch.nn.Linear(4, 4)
opt = torch.optim.AdamW(model.parameters())
for _ in range(3):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        loss = model(torch.randn(2, 4)).float().mean()
    loss.backward(); opt.step(); opt.zero_grad()
