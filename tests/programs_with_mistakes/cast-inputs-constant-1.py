import torch
class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w
    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g
Op.forward = staticmethod(torch.amp.custom_fwd(Op.forward, device_type="cpu", cast_inputs=torch.float16))  # wrong
# right: Op.forward = staticmethod(torch.amp.custom_fwd(Op.forward, device_type="cpu"))
w = torch.randn(8, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = Op.apply(torch.randn(2, 8), w)
out.float().sum().backward()
