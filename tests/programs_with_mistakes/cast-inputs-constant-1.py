import torch
from torch.amp import custom_fwd as fwd, custom_bwd as bwd
class Op(torch.autograd.Function):
    @staticmethod
    @fwd(device_type="cpu", cast_inputs=torch.float16)  # wrong
    # right: @fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w
    @staticmethod
    @bwd(device_type="cpu")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g.to(x.dtype) @ w.t(), x.t() @ g.to(x.dtype)
w = torch.randn(8, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = Op.apply(torch.randn(2, 8), w)
out.float().sum().backward()
