import torch
class Loop:
    def __init__(self):
        self.scaler = torch.cuda.amp.GradScaler(enabled=False)
Loop()
