import torch
class Scores(torch.nn.Module):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, q, k):
        return torch.einsum("bid,bjd->bij", q, k).to(torch.float32)  # wrong
        # right: return torch.einsum("bid,bjd->bij", q, k)
out = Scores()(torch.randn(1, 3, 4), torch.randn(1, 3, 4, requires_grad=True))
out.sum().backward()
