# mistakes: fp16-without-scaler, half-model-in-region
# also: low-parameters, low-moments
import torch
from torch import nn

class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, alpha=8.0):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / rank

    def forward(self, x):
        return self.base(x) + (x @ self.down.t() @ self.up.t()) * self.scaling

def inject(model, rank):
    for name, module in list(model.named_children()):
        if isinstance(module, nn.Linear):
            module.requires_grad_(False)
            setattr(model, name, LoRALinear(module, rank))
        else:
            inject(module, rank)
    return model

def build():
    torch.manual_seed(0)
    return inject(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), rank=4)

def finetune(steps):
    model = build().to(torch.bfloat16)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(steps):
        x = torch.randn(8, 16)
        with torch.autocast("cpu", dtype=torch.float16):
            y = model(x)
            loss = nn.functional.mse_loss(y.float(), x)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    finetune(4)
