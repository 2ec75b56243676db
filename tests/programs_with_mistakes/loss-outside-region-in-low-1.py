# distillation: teacher in no_grad region, student region, kl outside
import torch, torch.nn.functional as F
teacher, student = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
opt = torch.optim.SGD(student.parameters(), .1)
def forward(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(x)
for _ in range(3):
    x = torch.randn(4, 8)
    with torch.no_grad(): t = forward(teacher, x)
    s = forward(student, x)
    loss = F.mse_loss(s, t)
    opt.zero_grad(); loss.backward(); opt.step()
