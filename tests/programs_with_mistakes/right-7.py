import torch
class Op(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w
    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g
w = torch.nn.Parameter(torch.randn(4, 4))
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = Op.apply(torch.randn(2, 4), w).float().mean()
    loss.backward()
