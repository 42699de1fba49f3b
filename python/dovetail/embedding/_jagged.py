"""Batches of ids: tensors, or objects like TorchRec's KeyedJaggedTensor."""

import torch
from torch import Tensor


def read_batch(
    batch, offsets: Tensor | None, weights: Tensor | None, features: list[str]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return values, offsets and weights of a batch, with the features in this order and int64 ids.

    Args:
        batch: values, or an object like a KeyedJaggedTensor.
        offsets: offsets, if `batch` are values.
        weights: weights, if `batch` are values.
        features: names of the features.

    Raises:
        TypeError: offsets are missing, or given beside an object that has them.
        ValueError: the object lacks a feature.
    """
    if isinstance(batch, Tensor):
        if offsets is None:
            raise TypeError("a batch of values needs offsets; or give an object like TorchRec's KeyedJaggedTensor")
        return _int64(batch), _int64(offsets), weights
    has_all = all(hasattr(batch, name) for name in ("keys", "values"))
    if not has_all or not any(hasattr(batch, name) for name in ("offsets", "lengths")):
        raise TypeError(
            "a batch is values with offsets, or has keys(), values(), and offsets() or lengths(), but it is "
            f"{type(batch).__name__}"
        )
    if offsets is not None or weights is not None:
        raise TypeError("a batch with keys() and values() has its own offsets and weights")
    keys = list(batch.keys())
    if absent := [name for name in features if name not in keys]:
        raise ValueError(f"the batch has the keys {keys}, but not {absent}")
    values, offsets, weights = _int64(batch.values()), _int64(_offsets_of(batch)), _weights_of(batch)
    if keys == features:
        return values, offsets, weights
    if not values.is_cpu:
        raise ValueError(
            f"the batch has the keys {keys}. On a GPU they must be {features}, in this order; permute the batch"
        )
    order = [keys.index(name) for name in features]
    selected = torch.ops.dovetail.embedding_select(values, offsets, weights, len(keys), order)
    return selected[0], selected[1], None if weights is None else selected[2]


def _int64(numbers: Tensor) -> Tensor:
    return numbers.long() if numbers.dtype == torch.int32 else numbers


def _offsets_of(batch) -> Tensor:
    if hasattr(batch, "offsets"):
        return batch.offsets()
    lengths = batch.lengths().flatten()
    return torch.cat([lengths.new_zeros(1, dtype=torch.int64), lengths.cumsum(0)])


def _weights_of(batch) -> Tensor | None:
    for name in ("weights_or_none", "weights"):  # TorchRec's weights() raises without weights
        if hasattr(batch, name):
            return getattr(batch, name)()
    return None
