import torch
class MatMul(torch.autograd.Function):
    @staticmethod
    def forward(a, b):
        return a.matmul(b)  # wrong
        # right: with torch.autocast("cpu", enabled=False):
            # right: return a.float().matmul(b.float())
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad.matmul(b.mT), a.mT.matmul(grad)
matmul = MatMul.apply
w = torch.randn(8, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = matmul(torch.randn(2, 8), w)
try:
    out.float().sum().backward()
except RuntimeError as e: pass
