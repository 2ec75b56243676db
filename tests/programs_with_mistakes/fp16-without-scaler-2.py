import torch
AMP_DTYPE = torch.float16  # wrong
# right: AMP_DTYPE = torch.bfloat16
def forward_loss(model, batch):
    with torch.amp.autocast("cpu", dtype=AMP_DTYPE):
        return model(batch).float().mean()
def train_epoch(model, opt):
    for _ in range(2):
        opt.zero_grad()
        loss = forward_loss(model, torch.randn(2, 4))
        loss.backward()
        opt.step()
if __name__ == "__main__":
    m = torch.nn.Linear(4, 4)
    train_epoch(m, torch.optim.SGD(m.parameters(), lr=0.1))
