"""Statistics of quantization, for each layer of a model."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import nn

FIELDS = (
    "elements",
    "blocks",
    "zero_blocks",
    "non_finite_blocks",
    "underflows",
    "saturations",
    "saturating_blocks",
    "amax",
    "min_scale",
    "max_scale",
    "signal",
    "error",
)


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Counts of the quantizations of one operand.

    Args:
        elements: number of elements.
        blocks: number of blocks.
        zero_blocks: blocks whose largest finite magnitude is 0.
        non_finite_blocks: blocks with a NaN or an infinity.
        underflows: nonzero elements that became zero.
        saturations: elements that were clamped.
        saturating_blocks: blocks with clamped elements.
        amax: largest finite magnitude.
        min_scale: smallest scale byte of a block that is not zero.
        max_scale: largest scale byte.
        signal: sum of squares of the elements.
        error: sum of squares of the rounding errors.
    """

    elements: int
    blocks: int
    zero_blocks: int
    non_finite_blocks: int
    underflows: int
    saturations: int
    saturating_blocks: int
    amax: float
    min_scale: int
    max_scale: int
    signal: float
    error: float

    @property
    def underflow_fraction(self) -> float:
        """Share of the elements that became zero."""
        return self.underflows / max(self.elements, 1)

    @property
    def saturation_fraction(self) -> float:
        """Share of the elements that were clamped."""
        return self.saturations / max(self.elements, 1)

    @property
    def sqnr_db(self) -> float:
        """Signal-to-quantization-noise ratio in dB; infinite without errors, NaN without a signal."""
        if self.signal == 0:
            return math.nan
        return math.inf if self.error == 0 else 10 * math.log10(self.signal / self.error)


@dataclasses.dataclass(frozen=True)
class LayerStatistics:
    """Statistics of one layer.

    Args:
        weight: last quantization of the weight for forward.
        activation: sum over all quantizations of the input for forward.
        gradient: sum over all quantizations of the output's gradient.
    """

    weight: Statistics
    activation: Statistics
    gradient: Statistics


def read(values: list[float]) -> Statistics:
    """Statistics from the numbers that the operator returns."""
    real = ("amax", "signal", "error")
    return Statistics(**{f: value if f in real else int(value) for f, value in zip(FIELDS, values, strict=True)})


@contextlib.contextmanager
def collect_statistics(model: nn.Module) -> Iterator[dict[str, LayerStatistics]]:
    """Count the quantizations of the layers of ``model`` that run inside the ``with`` statement.

    >>> with dovetail.mx.collect_statistics(model) as layers:
    ...     loss(model(x)).backward()
    >>> layers["blocks.0.up"].gradient.underflow_fraction

    On a GPU, counting waits for the device in each quantization; outside the statement nothing is counted. A forward
    that activation checkpointing repeats counts twice. A compiled model is compiled again for the statement.

    Args:
        model: module with quantized Linears.

    Yields:
        A dictionary of statistics by the layer's name in ``model.named_modules()``. It is filled at the end of the
        statement. A layer that did not run is not in it.

    Raises:
        ValueError: the model has no quantized Linear.
        RuntimeError: the model is counted already.
    """
    from dovetail.mx.modules import Quantized

    found = {name or "model": module for name, module in model.named_modules() if isinstance(module, Quantized)}
    if not found:
        raise ValueError(f"{type(model).__name__} has no quantized Linear; dovetail.mx.convert makes them")
    if any(module.layer for module in found.values()):
        raise RuntimeError("collect_statistics: this model is counted already; leave the outer statement first")
    layers: dict[str, LayerStatistics] = {}
    torch.ops.dovetail.mx_take_statistics()
    try:
        for name, module in found.items():
            module.layer = name
        yield layers
    finally:
        for module in found.values():
            module.layer = ""
        names, values = torch.ops.dovetail.mx_take_statistics()
        counted = dict(zip(names, values.tolist(), strict=True))
        for name in found:
            if name in counted:
                layers[name] = LayerStatistics(*map(read, counted[name]))
