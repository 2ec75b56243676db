import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
    @torch.autocast(device_type="cpu", dtype=torch.float16)
    def forward(self, x):
        return self.fc(x)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
# right: scaler = torch.amp.GradScaler("cpu")
for _ in range(2):
    out = net(torch.randn(3, 4))
    loss = out.float().pow(2).mean()
    opt.zero_grad()
    loss.backward()  # wrong
    # right: scaler.scale(loss).backward()
    opt.step()  # wrong
    # right: scaler.step(opt)
    # right: scaler.update()
