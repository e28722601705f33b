"""bench/peers/nets.py - the two image networks as their texts have them, and their data, for PyTorch

Used by the benchmarks and by tests/numeric/record_networks.py.
"""
import gzip
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class LeNet(nn.Module):
    """The network of the BigDL Orca text."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 4 * 4)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class ConvBlock(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding)
        self.bn = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn(self.conv(x)))


class ConvBlockNet(nn.Module):
    """The network of the Kubeflow Pipelines text."""

    def __init__(self):
        super().__init__()
        self.conv1 = ConvBlock(1, 16, 3, 2, 1)
        self.conv2 = ConvBlock(16, 32, 3, 1, 1)
        self.conv3 = ConvBlock(32, 64, 1, 1, 0)
        self.max_pool2d = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(64 * 7 * 7, 512)
        self.fc2 = nn.Linear(512, 10)

    def forward(self, x):
        x = self.conv3(self.conv2(self.conv1(x)))
        x = self.max_pool2d(x)
        x = x.view(-1, 64 * 7 * 7)
        x = self.fc1(x)
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


# net, loss, batch, mean, std, and what optim.SGD is given
NETWORKS = {
    "lenet": dict(net=LeNet, loss=F.cross_entropy, batch=4, mean=0.5, std=0.5,
                  sgd=dict(lr=0.001, momentum=0.9)),
    "convblock": dict(net=ConvBlockNet, loss=F.nll_loss, batch=64, mean=0.1307, std=0.3081,
                      sgd=dict(lr=0.01, momentum=0.5)),
}


def data_dir():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("MUSTER_DATA") or os.path.join(cache, "muster", "data")


def fashion(part, mean, std):
    """(images (n, 1, 28, 28) float32, labels (n) int64) of "train" or "t10k", scaled."""
    def read(kind, offset):
        path = os.path.join(data_dir(), "fashion-mnist", f"{part}-{kind}-ubyte.gz")
        with gzip.open(path) as f:
            return np.frombuffer(f.read(), np.uint8, offset=offset)
    x = torch.from_numpy(read("images-idx3", 16).copy()).view(-1, 1, 28, 28).float()
    y = torch.from_numpy(read("labels-idx1", 8).astype(np.int64))
    return x.div_(255).sub_(mean).div_(std), y
