"""The paper's networks: fully connected ones (5.1, 5.2) and the CIFAR form of ResNet-18 (5.3)."""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from langevin_paper.linear import OneDNNLinear

__all__ = ["mlp", "resnet18"]


def mlp(*sizes: int, onednn: bool = False) -> nn.Sequential:
    """Make a fully connected network with ReLU between the layers; its input is flattened.

    With `onednn` its products on a CPU are oneDNN's, which differ by rounding (`OneDNNLinear`); torch's transforms know nothing of
    those, so it is for plain training only.

    Example:
        >>> sum(p.numel() for p in mlp(36, 30, 30, 6).parameters())  # Landsat
        2226
    """
    layers: list[nn.Module] = [nn.Flatten()]
    linear = OneDNNLinear if onednn else nn.Linear
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _convolution(channels_in: int, channels_out: int, kernel_size: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(channels_in, channels_out, kernel_size, stride, padding=kernel_size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out))


class _Block(nn.Module):
    """Two convolutions and a short cut (He et al. 2016)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(channels_in, channels_out, 3, stride)
        self.second = _convolution(channels_out, channels_out, 3, 1)
        same = channels_in == channels_out and stride == 1
        self.shortcut = nn.Identity() if same else _convolution(channels_in, channels_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return (self.second(self.first(x).relu()) + self.shortcut(x)).relu()


def resnet18(num_classes: int = 10, *, width: int = 64) -> nn.Sequential:
    """Make the CIFAR form of ResNet-18: a 3x3 stem and no max-pool; `width` is 64 in the paper.

    Example:
        >>> sum(p.numel() for p in resnet18().parameters())
        11173962
    """
    blocks, channels = [], width
    for stage, stride in enumerate((1, 2, 2, 2)):
        for block in range(2):
            blocks.append(_Block(channels, width << stage, stride if block == 0 else 1))
            channels = width << stage
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    return nn.Sequential(_convolution(3, width, 3, 1), nn.ReLU(), *blocks, *head)
