"""The network: three blocks of convolution, batch norm and relu, then two dense layers."""
import torch
from torch import nn


class ConvBlock(nn.Module):
    """A convolution whose outputs are normalised over the batch and cut off at zero."""

    def __init__(self, inputs, outputs, kernel, stride=1, padding=0):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


class Net(nn.Module):
    """28 x 28 grey pixels to the log probabilities of ten classes."""

    def __init__(self):
        super().__init__()
        self.conv1 = ConvBlock(1, 16, 3, stride=2, padding=1)       # (N, 16, 14, 14)
        self.conv2 = ConvBlock(16, 32, 3, padding=1)                # (N, 32, 14, 14)
        self.conv3 = ConvBlock(32, 64, 1)                           # (N, 64, 14, 14)
        self.pool = nn.MaxPool2d(2)                                 # (N, 64, 7, 7)
        self.fc1 = nn.Linear(64 * 7 * 7, 512)
        self.fc2 = nn.Linear(512, 10)

    def forward(self, x):
        x = self.pool(self.conv3(self.conv2(self.conv1(x))))
        return torch.log_softmax(self.fc2(self.fc1(x.flatten(1))), dim=1)
