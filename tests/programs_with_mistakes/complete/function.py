# mistakes: cast-inputs-constant, scaler-with-bf16
# also: underflow-in-low
import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd

class FusedLinear(torch.autograd.Function):
    """A linear layer whose input is recomputed in the backward pass."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float16)
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return torch.addmm(bias, x, weight.t())

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x, grad.sum(0)

class Fused(nn.Module):
    def __init__(self, size_in, size_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size_out, size_in) * size_in**-0.5)
        self.bias = nn.Parameter(torch.zeros(size_out))

    def forward(self, x):
        return FusedLinear.apply(x, self.weight, self.bias)

def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), Fused(32, 4))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=256.0)

def train(steps=4):
    model, optimizer, scaler = make()
    for _ in range(steps):
        x, y = torch.randn(8, 16), torch.randn(8, 4)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return loss

if __name__ == "__main__":
    print(train())
