import torch
def amp_context(device="cpu", dtype=torch.bfloat16):
    return torch.autocast(device_type=device, dtype=dtype)
def main():
    model = torch.nn.Linear(4, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with amp_context():
            loss = model(torch.randn(2, 4)).float().mean()
            opt.zero_grad()
            loss.backward()
        opt.step()
main()
