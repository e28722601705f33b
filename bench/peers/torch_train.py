"""bench/peers/torch_train.py NETWORK eager|compile|one-graph - PyTorch's side of bench/train.py

Tuned in its favour: rows are tensors in memory, drawn once per slice and then read as views, no
loss is fetched, eager's optimizer is the fused one. `compile` is torch.compile as its manual has
it: model with loss, and the optimizer's step. `one-graph` goes further than most would: forward,
backward and update in one graph, called through the C++ wrapper.
"""
import os
import sys

import torch
import torch._inductor.config

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nets     # noqa: E402
from serve import serve     # noqa: E402

SLICE = {"lenet": 400, "convblock": 640}


def eager(cfg):
    net = cfg["net"]()
    optimizer = torch.optim.SGD(net.parameters(), **cfg["sgd"], fused=True)

    def step(x, y):
        optimizer.zero_grad(set_to_none=True)
        cfg["loss"](net(x), y).backward()
        optimizer.step()
    return step


def one_graph(cfg):
    """The whole step as one graph: torch.func gives the gradients, the update is written out."""
    net = cfg["net"]()
    lr, momentum = cfg["sgd"]["lr"], cfg["sgd"]["momentum"]
    params = {k: p.detach() for k, p in net.named_parameters()}
    buffers = {k: b for k, b in net.named_buffers() if "num_batches" not in k}
    for m in net.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            m.num_batches_tracked = None        # a count that only a momentum of None reads
    velocity = {k: torch.zeros_like(p) for k, p in params.items()}

    def loss(params, buffers, x, y):
        buffers = {k: b.clone() for k, b in buffers.items()}
        out = torch.func.functional_call(net, (params, buffers), (x,))
        return cfg["loss"](out, y), buffers

    def step(params, velocity, buffers, x, y):
        grads, new = torch.func.grad(loss, has_aux=True)(params, buffers, x, y)
        for k, g in grads.items():
            velocity[k].mul_(momentum).add_(g)
            params[k].sub_(velocity[k], alpha=lr)
        for k, b in new.items():
            buffers[k].copy_(b)

    torch._inductor.config.cpp_wrapper = True   # kernels called from C++: fewer microseconds a call
    fast = torch.compile(step, fullgraph=True)
    return lambda x, y: fast(params, velocity, buffers, x, y)


def compiled(cfg):
    """The usual way: the forward pass and loss compiled with their backward, then the optimizer."""
    net = cfg["net"]()
    optimizer = torch.optim.SGD(net.parameters(), **cfg["sgd"])
    forward = torch.compile(lambda x, y: cfg["loss"](net(x), y))
    update = torch.compile(optimizer.step)

    def step(x, y):
        optimizer.zero_grad(set_to_none=False)
        forward(x, y).backward()
        update()
    return step


def main(name, how):
    cfg = nets.NETWORKS[name]
    x, y = nets.fashion("train", cfg["mean"], cfg["std"])
    step = {"eager": eager, "compile": compiled, "one-graph": one_graph}[how](cfg)
    batch, n = cfg["batch"], SLICE[name]

    def slice_of_an_epoch():
        rows = torch.randint(len(x), (n,))
        xs, ys = x[rows], y[rows]
        for at in range(0, n, batch):
            step(xs[at:at + batch], ys[at:at + batch])
    serve(slice_of_an_epoch, n)


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(*sys.argv[1:])
