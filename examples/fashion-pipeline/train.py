"""Step two: trains on what step one left; TensorBoard's logs and the weights stay on the volume."""
import argparse
import pickle
import time
from pathlib import Path

import torch
from tensorboardX import SummaryWriter
from torch.nn.functional import nll_loss

from model import Net


def train_epoch(model, loader, optimizer, epoch, device, writer):
    model.train()
    for i, (images, labels) in enumerate(loader):
        loss = nll_loss(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.add_scalar("loss", loss.item(), (epoch - 1) * len(loader) + i)
        if i % 100 == 0:
            print(f"epoch {epoch}, batch {i} of {len(loader)}: loss={loss.item():.4f}", flush=True)


@torch.no_grad()
def accuracy(model, loader, device):
    model.eval()
    right = sum((model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
                for images, labels in loader)
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset_root_dir", default="./datasets")
    parser.add_argument("--dataset_name", default="fashion-mnist")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()

    folder = Path(args.dataset_root_dir) / args.dataset_name
    train_loader, test_loader = (pickle.loads((folder / f"{part}.pickle").read_bytes())
                                 for part in ("train", "test"))
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    writer = SummaryWriter(f"logs/{args.epochs}_{args.lr}")
    for epoch in range(1, args.epochs + 1):
        begin = time.perf_counter()
        train_epoch(model, train_loader, optimizer, epoch, device, writer)
        rate = len(train_loader.dataset) / (time.perf_counter() - begin)
        right = accuracy(model, test_loader, device)
        writer.add_scalar("accuracy", right, epoch)
        print(f"epoch {epoch}: accuracy={right:.4f}, {rate:.0f} samples/s", flush=True)
    writer.close()
    torch.save(model.cpu().state_dict(), "mnist.pt")


if __name__ == "__main__":
    main()
