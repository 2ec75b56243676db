import torch
class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(3))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x
def embed(teacher, batches):
    with torch.no_grad():
        for batch in batches:
            with torch.autocast("cpu"):  # wrong
                yield teacher(batch)  # wrong
            # right: yield teacher(batch.bfloat16())
teacher = Encoder().requires_grad_(False)  # wrong
# right: teacher = Encoder().requires_grad_(False).bfloat16()
print(len(list(embed(teacher, [torch.randn(4, 32) for _ in range(6)]))))
