# mistakes: clip-before-unscale, loss-outside-region-in-low, scheduler-after-skip
import argparse
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width_in, width_out):
        super().__init__()
        self.conv = nn.Conv2d(width_in, width_out, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(width_out)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))

class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(Block(3, 8), Block(8, 16))
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))

def batches(count, size):
    for _ in range(count):
        yield torch.randn(size, 3, 16, 16), torch.randint(0, 10, (size,))

def train_one_epoch(model, loader, criterion, optimizer, scheduler, scaler, args):
    model.train()
    for images, labels in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16, enabled=args.amp):
            logits = model(images)
        loss = criterion(logits, labels)
        scaler.scale(loss).backward()
        if args.clip:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--amp", action="store_true", default=True)
    parser.add_argument("--clip", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Classifier(10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26, enabled=args.amp)
    for epoch in range(2):
        train_one_epoch(model, batches(4, 4), nn.CrossEntropyLoss(), optimizer, scheduler, scaler, args)

if __name__ == "__main__":
    main()
