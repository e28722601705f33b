"""A network fitted by PyTorch's DistributedDataParallel: nothing here knows of muster.

torchrun --nproc-per-node 2 train.py runs it as well.
"""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def rows(n=512):
    """The same made-up rows in every process: y = sin(x0) + x1 * x2."""
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:])


# Kept to the end: gloo of PyTorch 1.13 may wait for ever at exit for the thread that summed, when
# that is the last to let go of a tensor and main holds the interpreter.
total = torch.zeros(1)


def mean_over_workers(value):
    total[0] = value
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--checkpoint", help="go on from this file, and save there each epoch")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    first = 0
    if args.checkpoint and os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]

    data = rows()
    sampler = DistributedSampler(data)
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        losses = []
        for x, y in DataLoader(data, batch_size=32 // dist.get_world_size(), sampler=sampler):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        mean = mean_over_workers(sum(losses) / len(losses))
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}  loss {mean:.4f}  workers {dist.get_world_size()}")
            if args.checkpoint:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                            "epoch": epoch + 1}, args.checkpoint + ".new")
                os.replace(args.checkpoint + ".new", args.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
