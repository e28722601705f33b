"""bench/peers/elastic_ddp.py NETWORK eager|compile [WORKERS] - PyTorch DDP over gloo

A peer of bench/elastic.py. Each worker is a process with one thread and takes its part of the
global batch. Tuned in its favour: rows are tensors in memory, no loss is fetched, the optimizer is
the fused one, gradients are views of the buckets, batch norm's statistics stay each worker's own
(so the result is not that of one process). The benchmark starts the first process (serve.py's
protocol); it starts the others and tells them before each round to train or to stop.
"""
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nets     # noqa: E402
import serve    # noqa: E402

SLICE = {"lenet": 400, "convblock": 640}        # samples of the whole group


def slice_of(name, how, rank, world):
    cfg = nets.NETWORKS[name]
    x, y = nets.fashion("train", cfg["mean"], cfg["std"])
    net = DistributedDataParallel(cfg["net"](), broadcast_buffers=False, static_graph=True,
                                  gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(net.parameters(), **cfg["sgd"], fused=True)
    forward = torch.compile(net) if how == "compile" else net
    batch, n = cfg["batch"] // world, SLICE[name] // world
    random = torch.Generator().manual_seed(rank)

    def train():
        rows = torch.randint(len(x), (n,), generator=random)
        xs, ys = x[rows], y[rows]
        for at in range(0, n, batch):
            optimizer.zero_grad(set_to_none=True)
            cfg["loss"](forward(xs[at:at + batch]), ys[at:at + batch]).backward()
            optimizer.step()
    return train


def main(name, how, world, rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    train = slice_of(name, how, rank, world)
    go = torch.ones(1)

    def follow():
        dist.broadcast(go, 0)
        if go.item():
            train()
        return go.item()

    if rank == 0:
        serve.serve(follow, SLICE[name])
        go.zero_()
        follow()
    else:
        while follow():
            pass
    dist.destroy_process_group()


def start(name, how, world):
    with tempfile.TemporaryDirectory() as d:
        store = os.path.join(d, "store")
        others = [subprocess.Popen([sys.executable, __file__, name, how, str(world), str(rank),
                                    store], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL)
                  for rank in range(1, world)]
        try:
            main(name, how, world, 0, store)
        finally:
            for p in others:
                p.kill()
                p.wait()


if __name__ == "__main__":
    name, how, world, *rest = [*sys.argv[1:3], *(sys.argv[3:] or ["2"])]
    if rest:
        main(name, how, int(world), int(rest[0]), rest[1])
    else:
        start(name, how, int(world))
