import torch
teacher, student = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
opt = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(2):
    x = torch.randn(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            t = teacher(x)
        loss = (student(x).float() - t.float()).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
