"""bench/peers/fit_a_line.py numpy|torch CSV OUT - the EDL text's program in two other ways

Prints the seconds from after the imports to the save, and the last test loss.
"""
import sys
import time

import numpy as np


def rows(path):
    table = np.loadtxt(path, delimiter=",", skiprows=2, dtype=np.float32)
    x, y = table[:, :-1], table[:, -1:]
    x = (x - x.mean(0)) / (x.max(0) - x.min(0))
    n = int(len(x) * 0.8)
    return x[:n], y[:n], x[n:], y[n:]


def with_numpy(path, out, epochs=100, batch=20, lr=0.001):
    start = time.perf_counter()
    x, y, xt, yt = rows(path)
    rng = np.random.default_rng(1)
    w = rng.uniform(-1, 1, (13, 1)).astype(np.float32) / np.float32(13 ** 0.5)
    b = np.zeros(1, np.float32)
    step = 0
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for at in range(0, len(x), batch):
            xb, yb = x[order[at:at + batch]], y[order[at:at + batch]]
            d = (xb @ w + b - yb) * np.float32(2 / len(xb))
            w -= np.float32(lr) * (xb.T @ d)
            b -= np.float32(lr) * d.sum(0)
            if step % 10 == 0:
                loss = np.square(xt @ w + b - yt).mean()
            step += 1
    np.savez(out, w=w, b=b)
    return time.perf_counter() - start, loss


def with_torch(path, out, epochs=100, batch=20, lr=0.001):
    import torch
    torch.set_num_threads(1)            # two cost more than they help at this size
    torch.manual_seed(1)
    start = time.perf_counter()
    x, y, xt, yt = (torch.from_numpy(v) for v in rows(path))
    net = torch.nn.Linear(13, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, foreach=False)
    step = 0
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for rows_of_step in order.split(batch):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(x[rows_of_step]), y[rows_of_step]).backward()
            optimizer.step()
            if step % 10 == 0:
                with torch.no_grad():
                    loss = torch.nn.functional.mse_loss(net(xt), yt).item()
            step += 1
    torch.save(net.state_dict(), out)
    return time.perf_counter() - start, loss


if __name__ == "__main__":
    seconds, loss = {"numpy": with_numpy, "torch": with_torch}[sys.argv[1]](*sys.argv[2:])
    print(seconds, loss)
