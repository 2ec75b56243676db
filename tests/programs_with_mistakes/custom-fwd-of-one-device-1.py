import torch
class Op(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")  # wrong
    # right: @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w
    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")  # wrong
    # right: @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g.float() @ w.t(), x.t() @ g.float()
w = torch.randn(8, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = Op.apply(torch.randn(2, 8), w)
out.float().sum().backward()
