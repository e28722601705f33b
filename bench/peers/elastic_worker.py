"""bench/peers/elastic_worker.py LOG ROWS - LeNet, global batch 4, DDP over gloo, under torchrun

What elastic_torchrun.py starts. Trains until it is killed and appends to LOG one line when the
process begins and one when its first step is finished: time, what, world, pid, parent.
In its favour: rows are mapped from ROWS (uint8, no unpacking at a start) and no snapshot is saved
or read, so what the group had learnt is lost at each change.
"""
import os
import sys
import time


def tell(what):
    e = os.environ
    line = f"{time.time():.6f} {what} {e['WORLD_SIZE']} {os.getpid()} {os.getppid()}\n"
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())         # one write to an appended file: lines do not mix
    os.close(fd)


def main():
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import nets
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    cfg = nets.NETWORKS["lenet"]
    images, labels = (np.load(f"{sys.argv[2]}-{kind}.npy", mmap_mode="r") for kind in "xy")
    net = DistributedDataParallel(cfg["net"]())
    optimizer = torch.optim.SGD(net.parameters(), **cfg["sgd"], fused=True)
    part = max(1, cfg["batch"] // world)
    random = np.random.default_rng(rank)
    told = False
    while True:
        rows = random.integers(0, len(images), part)
        x = torch.from_numpy(images[rows]).float().div_(255).sub_(cfg["mean"]).div_(cfg["std"])
        optimizer.zero_grad(set_to_none=True)
        cfg["loss"](net(x), torch.from_numpy(labels[rows])).backward()
        optimizer.step()
        if not told:
            tell("step")
            told = True


if __name__ == "__main__":
    tell("up")
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main()
