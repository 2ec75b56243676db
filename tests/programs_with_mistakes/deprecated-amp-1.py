import torch
class Loop:
    def __init__(self):
        self.scaler = torch.cuda.amp.GradScaler(enabled=False)  # wrong
        # right: self.scaler = torch.amp.GradScaler("cuda", enabled=False)
Loop()
