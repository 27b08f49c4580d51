"""MobileNetV2 as torchvision has it, for processes that need no other network.

torchvision imports torch's compiler along with all its models: two seconds of every
process that extracts features. The names of all parameters are torchvision's.
"""

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

_FIRST, _LAST = 32, 1280
# Expansion, channels, number of blocks, stride of the first: table 2 of its paper.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2(nn.Module):
    """Images (n, 3, s, s) -> features (n, 1280): the network without its classifier.

    And without the dropout before that, which no use of the features has.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_convolution(3, _FIRST, size=3, stride=2)]
        channels = _FIRST
        for expansion, out, blocks, stride in _STAGES:
            for block in range(blocks):
                step = stride if block == 0 else 1
                layers.append(_Block(channels, out, expansion, step))
                channels = out
        layers.append(_convolution(channels, _LAST, size=1))
        self.features = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, averaged over positions."""
        return adaptive_avg_pool2d(self.features(images), (1, 1)).flatten(1)


class _Block(nn.Module):
    """Widens, convolves each channel by itself, narrows; adds its input if it can."""

    def __init__(self, channels: int, out: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = channels * expansion
        widen = [_convolution(channels, wide, size=1)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *widen,
            _convolution(wide, wide, size=3, stride=stride, groups=wide),
            nn.Conv2d(wide, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self._adds_input = stride == 1 and channels == out

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.conv(inputs)
        return inputs + outputs if self._adds_input else outputs


def _convolution(
    channels: int, out: int, size: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Return a convolution with batch norm and its activation."""
    return nn.Sequential(
        nn.Conv2d(channels, out, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU6(inplace=True),
    )
