"""An image's way through convolutions and the perceptron behind them, there and back, without autograd.

The products are torch's own; what is saved is what stands between them (bench/results/conv_update.md has the figures).
Inside, the channels of a pixel lie side by side: oneDNN finds the gradient of the first layer in a third of the time
then. The scale of bytes, 1/255, is in the first layer's weights. The gradient by the image, which nobody asks for, is
left out. The wide layer behind the convolutions is y = W x on columns, and its gradient is made in two halves at once:
either takes half the time that torch's usual order of the same product does.

In bfloat16, if asked for: pixels are exact in it, weights and slopes are rounded to 8 bits, products are summed up in
float32 as ever, and weights, gradients and everything behind the wide layer stay float32.

A batch goes through the convolutions in parts that fit into the cache. What is kept for the way back is the output of
each layer, and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from passel.maths.shapes import Array, Floats
from passel.nets.perceptron import Perceptron
from passel.nets.torsos import ImageTorso

#: Numbers of observations that go through the convolutions together: 37 stacks of DQN's, 5 screens of a console.
TOGETHER = 1 << 20

#: What the convolutions may leave behind for the way back, in each network at the same time. A batch that leaves more
#: is seen twice, which costs a third more time, and then its gradients are added up.
KEPT_BYTES = 1 << 26

_SIDE_BY_SIDE = torch.channels_last


@dataclass
class ImageTape:
    """What the way back needs: of each part of the batch its images and what every convolution made of them,
    [b, C, H, W]; of the perceptron the output of each hidden layer, [width, B].
    """

    images: list[Tensor]
    floats: Tensor | None  # the images as the first layer saw them, if there is but one part
    maps: list[list[Tensor]]
    columns: list[Tensor]


class ImagePath:
    """The way through an ImageTorso and a Perceptron. These stay modules as any other; their weights are used here."""

    def __init__(self, torso: ImageTorso, perceptron: Perceptron, precision: torch.dtype = torch.float32) -> None:
        self._precision = precision
        self._channels_last, self._outputs = torso.channels_last, torso.outputs
        self._convolutions = [layer for layer in torso.convolutions if isinstance(layer, nn.Conv2d)]
        self._linear = [layer for layer in perceptron.layers if isinstance(layer, nn.Linear)]

    @torch.no_grad()
    def values(self, obs: Array) -> Floats:
        """The output [B, K]."""
        obs = _with_channel(obs)
        return self._think([self._see(self._floats(part), part)[-1] for part in _parts(obs)])[-1].T.numpy()

    @torch.no_grad()
    def record(self, obs: Array) -> tuple[Floats, ImageTape | Array]:
        """The output [B, K], and what `backward` needs: of very many images, the images themselves."""
        obs = _with_channel(obs)
        if len(self.spans(obs)) > 1:
            return self.values(obs), obs
        return self._record(obs)

    def backward(self, tape: ImageTape | Array, output_grad: Floats) -> None:
        """Write the gradient of every weight to its `.grad`, in place of what was there."""
        if isinstance(tape, ImageTape):
            return self._backward(tape, output_grad)
        for span in self.spans(tape):
            self._backward(self._record(tape[span])[1], output_grad[span], add=span.start > 0)

    def spans(self, obs: Array) -> list[slice]:
        """Parts of a batch that leave no more behind than they may."""
        return _slices(len(obs), KEPT_BYTES // (self._precision.itemsize * self._outputs))

    @torch.no_grad()
    def _record(self, obs: Array) -> tuple[Floats, ImageTape]:
        images, maps = _parts(obs), []
        for image in images:
            floats = self._floats(image)
            maps.append(self._see(floats, image))
        *columns, output = self._think([part[-1] for part in maps])
        return output.T.numpy(), ImageTape(images, floats if len(images) == 1 else None, maps, columns)

    @torch.no_grad()
    def _backward(self, tape: ImageTape, output_grad: Floats, *, add: bool = False) -> None:
        first, *others = self._linear
        delta = torch.from_numpy(output_grad).T
        for layer, column in zip(reversed(others), reversed(tape.columns), strict=True):
            _write_linear(layer, delta, column.T, add)
            delta = _through_relu(torch.mm(layer.weight.T, delta), column)
        delta = delta.to(self._precision)
        _write_linear(first, delta, _features([maps[-1] for maps in tape.maps]), add)
        delta, start = torch.mm(first.weight.to(self._precision).T, delta), 0
        for image, maps in zip(tape.images, tape.maps, strict=True):
            rows, *shape = maps[-1].shape
            slope = delta[:, start : start + rows].reshape(*shape, rows).permute(3, 0, 1, 2)
            floats = self._floats(image) if tape.floats is None else tape.floats
            self._see_back([floats, *maps], slope.contiguous(memory_format=_SIDE_BY_SIDE), image, add or start > 0)
            start += rows

    def _floats(self, image: Tensor) -> Tensor:
        """Images as the convolutions want them: floats [b, C, H, W], the channels of a pixel side by side."""
        if self._channels_last:
            return image.permute(0, 3, 1, 2).to(self._precision)
        floats = torch.empty(image.shape, dtype=self._precision, memory_format=_SIDE_BY_SIDE)
        for channel in range(image.shape[1]):  # one by one: a third of the time that one copy takes
            floats[:, channel].copy_(image[:, channel])
        return floats

    def _see(self, floats: Tensor, image: Tensor) -> list[Tensor]:
        """What every convolution makes of the images."""
        maps, scale = [floats], _scale(image)
        for layer in self._convolutions:
            weight = layer.weight if scale == 1 else layer.weight * scale
            assert layer.bias is not None
            bias = layer.bias.to(self._precision)
            seen = functional.conv2d(maps[-1], weight.to(self._precision), bias, layer.stride).relu_()
            maps.append(seen.contiguous(memory_format=_SIDE_BY_SIDE))
            scale = 1.0
        return maps[1:]

    def _see_back(self, maps: list[Tensor], slope: Tensor, image: Tensor, add: bool) -> None:
        """From the loss's slope at the last map to the gradients of all convolutions, the last one first."""
        for number in range(len(self._convolutions) - 1, -1, -1):
            layer, scale = self._convolutions[number], _scale(image) if number == 0 else 1.0
            slope, weight_grad, bias_grad = torch.ops.aten.convolution_backward(
                _through_relu(slope, maps[number + 1]),
                maps[number],
                layer.weight.to(self._precision),
                [layer.out_channels],
                layer.stride,
                [0, 0],
                [1, 1],
                False,
                [0, 0],
                1,
                [number > 0, True, True],
            )
            _write(layer.weight, weight_grad if scale == 1 else weight_grad * scale, add)
            assert layer.bias is not None
            _write(layer.bias, bias_grad, add)

    def _think(self, maps: list[Tensor]) -> list[Tensor]:
        """The output of every layer of the perceptron, [width, B]."""
        columns = [_features(maps).T]
        for layer in self._linear:
            column = torch.mm(layer.weight.to(columns[-1].dtype), columns[-1]).float().add_(layer.bias[:, None])
            columns.append(column if layer is self._linear[-1] else column.relu_())
        return columns[1:]


def _with_channel(obs: Array) -> Array:
    """A batch of planes [B, H, W] as images with one channel."""
    return obs[:, None] if obs.ndim == 3 else obs


def _parts(obs: Array) -> list[Tensor]:
    whole = torch.from_numpy(obs)
    return [whole[part] for part in _slices(len(obs), TOGETHER // math.prod(obs.shape[1:]))]


def _slices(rows: int, stride: int) -> list[slice]:
    stride = max(1, stride)
    return [slice(start, start + stride) for start in range(0, rows, stride)]


def _scale(image: Tensor) -> float:
    """Bytes are scaled to [0, 1]."""
    return 1 / 255 if image.dtype == torch.uint8 else 1.0


def _features(maps: list[Tensor]) -> Tensor:
    """The last maps of all parts as the perceptron knows them, [B, C * H * W]."""
    return maps[0].flatten(1) if len(maps) == 1 else torch.cat([part.flatten(1) for part in maps])


def _through_relu(slope: Tensor, output: Tensor) -> Tensor:
    """In place: 0 where the ReLU gave 0."""
    through: Tensor = torch.ops.aten.threshold_backward.grad_input(slope, output, 0, grad_input=slope)
    return through


def _write_linear(layer: nn.Linear, delta: Tensor, x: Tensor, add: bool) -> None:
    """dW = delta x and db = sum delta; shapes: delta [width, B], x [B, inputs]."""
    place, halves = _place(layer.weight), 2 if layer.out_features % 2 == 0 else 1
    into, half = (side.view(halves, -1, side.shape[1]) for side in (place, delta.contiguous()))
    if x.dtype == place.dtype:
        torch.baddbmm(into, half, x.expand(halves, -1, -1), beta=1 if add else 0, out=into)
    else:
        _write(layer.weight, torch.mm(delta, x), add)
    _write(layer.bias, delta.sum(1, dtype=place.dtype), add)


def _write(weight: Tensor, grad: Tensor, add: bool) -> None:
    place = _place(weight)
    if add:
        place.add_(grad)
    else:
        place.copy_(grad)


def _place(weight: Tensor) -> Tensor:
    if weight.grad is None:
        raise ValueError("there is no place for the gradient: put the module behind a Flat first")
    return weight.grad
