"""Shapes of the operators of ``dovetail/embedding/library_lookup.cpp``, for torch.compile and torch.export."""

import torch
from torch import Tensor


def _shape(features: int, columns: int, unpooled: bool, values: Tensor, offsets: Tensor) -> Tensor:
    rows = values.shape[0] if unpooled else (offsets.shape[0] - 1) // max(features, 1)
    return values.new_empty(rows, columns, dtype=torch.float32)


def _lookup_shape(anchor, tables, values, offsets, weights):
    features, columns, unpooled = torch.ops.dovetail.embedding_result_sizes(tables)
    number = torch.empty((), dtype=torch.int64, device="cpu")
    return _shape(features, columns, bool(unpooled), values, offsets), number


def _update_shape(tables, number, gradient, values, offsets, weights):
    return gradient.new_empty(())


def _pool_shape(rows, values, offsets, weights, dims, poolings, feature_table, row_dtype):
    unpooled = "none" in poolings
    columns = dims[0] if unpooled else sum(dims[table] for table in feature_table)
    return _shape(len(feature_table), columns, unpooled, values, offsets)


def _select_shape(values, offsets, weights, features, order):
    # Some ids belong to features that are left out. How many depends on the batch.
    whole = len(order) == features
    ids = values.shape[0] if whole else torch.library.get_ctx().new_dynamic_size()
    bags = (offsets.shape[0] - 1) // features * len(order)
    selected = [values.new_empty(ids), offsets.new_empty(bags + 1)]
    return selected if weights is None else [*selected, weights.new_empty(ids)]


def register_shapes() -> None:
    """Register the shapes. The operators must be loaded."""
    for name, shape in [
        ("lookup", _lookup_shape),
        ("update", _update_shape),
        ("pool", _pool_shape),
        ("select", _select_shape),
    ]:
        torch.library.register_fake(f"dovetail::embedding_{name}", shape)
