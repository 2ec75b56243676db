import torch
from torch.autograd import Function
import torch.nn.functional as F
class MyLinear(Function):
    @staticmethod
    # right: @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, input, weight, bias=None):
        ctx.save_for_backward(input, weight)
        return F.linear(input, weight)
    @staticmethod
    # right: @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        input, weight = ctx.saved_tensors
        return torch.mm(g, weight), torch.mm(g.t(), input), None
w = torch.randn(4, 8, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = MyLinear.apply(torch.randn(2, 8, requires_grad=True), w)
try:
    out.float().sum().backward()
except RuntimeError as e: pass
