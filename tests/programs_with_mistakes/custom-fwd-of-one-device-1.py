import torch
from torch.amp import custom_bwd, custom_fwd
fwd, bwd = custom_fwd(device_type="cuda", cast_inputs=torch.float32), custom_bwd(device_type="cuda")  # wrong
# right: fwd, bwd = custom_fwd(device_type="cpu", cast_inputs=torch.float32), custom_bwd(device_type="cpu")
class Scaled(torch.autograd.Function):
    forward = staticmethod(fwd(lambda ctx, x, m: (ctx.save_for_backward(m), x @ m)[1]))
    backward = staticmethod(bwd(lambda ctx, g: (g.float() @ ctx.saved_tensors[0].t(), None)))
class Layer(torch.nn.Module):
    def forward(self, x):
        return Scaled.apply(x, torch.eye(4))
model = torch.nn.Sequential(Layer(), Layer())
x = torch.randn(2, 4, requires_grad=True)
with torch.autocast("cpu"):
    loss = model(x).float().square().mean()
loss.backward()
