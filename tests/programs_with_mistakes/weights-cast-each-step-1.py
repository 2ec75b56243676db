import torch
model = torch.nn.Linear(64, 64).eval()  # wrong
# right: model = torch.nn.Linear(64, 64).eval().to(torch.bfloat16)
@torch.inference_mode()
def serve(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):  # wrong
        return model(x)  # wrong
    # right: return model(x.to(torch.bfloat16))
for _ in range(6):
    serve(torch.randn(2, 64))
