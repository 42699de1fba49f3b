"""Embedding tables of a recommender: all lookups one operation, the optimizer fused into the backward.

>>> tables = [dovetail.embedding.Table("user", 1000, 16), dovetail.embedding.Table("item", 500, 32, "mean")]
>>> embeddings = dovetail.embedding.EmbeddingCollection(tables, {"user": "user", "clicked": "item", "bought": "item"})
>>> y = embeddings(values, offsets)  # (samples, 16 + 32 + 32)
>>> unpooled = [dovetail.embedding.Table("item", 500, 32, "none")]
>>> events = dovetail.embedding.EmbeddingCollection(unpooled, {"seen": "item"})
>>> y = events(values, offsets)  # (len(values), 32)

What an update is: ``dovetail/embedding/optimizer.h``; in which order it adds: ``dovetail/embedding/lookup.h``.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Table(NamedTuple):
    """`pooling` is "sum", "mean" or "none". What an optimizer has and is None here is the collection's."""

    name: str
    rows: int
    dim: int
    pooling: str = "sum"
    optimizer: str | None = None
    lr: float | None = None
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    weight_decay: float | None = None


class EmbeddingCollection(nn.Module):
    """Pooled rows of `tables` for every feature of `features` (name of the feature -> name of its table).

    forward: values (N) int64, offsets (features * samples + 1) int64, feature-major as in TorchRec's KeyedJaggedTensor,
    weights (N) float32 or None -> (samples, sum of the features' dims), features side by side in the order of
    `features`. With pooling "none", which all tables or none have and then one dim: (N, dim), the row of every id in
    the order of `values`, as FBGEMM's PoolingMode.NONE.

    `optimizer` is "sgd", "momentum", "adagrad", "rowwise_adagrad" or "adam"; a table may have one, or numbers of it, of
    its own. `row_dtype` says how rows are stored:
    "fp32", "bf16" or "mxfp8", the last two rounded stochastically by an update; the optimizer's state is float32. On
    a `device` "cuda", where rows are "fp32" or "bf16", batches lie there too. With update "backward" each backward is
    a step; with "apply" gradients wait for `apply()`, and those of micro-batches give the bits of their batch. The
    rows are no parameters: `state_dict` holds, for each table, ``TABLE.weight`` and what its optimizer keeps, and the
    number of steps.
    """

    def __init__(
        self,
        tables: list[Table],
        features: dict[str, str],
        optimizer: str = "rowwise_adagrad",
        lr: float = 0.01,
        momentum: float = 0.9,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        update: str = "backward",
        seed: int = 0,
        row_dtype: str = "fp32",
        device: torch.device | str = "cpu",
    ):
        super().__init__()
        self.tables, self.features = [Table(*table) for table in tables], dict(features)
        index = {table.name: i for i, table in enumerate(self.tables)}
        for feature, table in self.features.items():
            if table not in index:
                raise ValueError(f'feature "{feature}" looks into table "{table}", which is none of {list(index)}')
        general = (optimizer, lr, momentum, betas, eps, weight_decay)
        optimizers = [general, *(self._own(table, general) for table in self.tables)]
        self.packed = torch.ops.dovetail.embedding_tables(
            [table.name for table in self.tables],
            [table.rows for table in self.tables],
            [table.dim for table in self.tables],
            [table.pooling for table in self.tables],
            [index[table] for table in self.features.values()],
            [name for name, *_ in optimizers],
            [x for _, lr, momentum, betas, *rest in optimizers for x in (lr, momentum, *betas, *rest)],
            update,
            seed,
            row_dtype,
            torch.device(device),
        )

    @staticmethod
    def _own(table: Table, general: tuple) -> tuple:
        own = (table.optimizer, table.lr, table.momentum, table.betas, table.eps, table.weight_decay)
        return tuple(g if o is None else o for o, g in zip(own, general, strict=True))

    def forward(self, values: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        return torch.ops.dovetail.embedding_lookup(self.packed, values, offsets, weights)

    def apply_gradients(self) -> None:
        """One update of all gradients since the last, in the order of their lookups."""
        torch.ops.dovetail.embedding_apply(self.packed)

    def set_lr(self, lr: float) -> None:
        """The collection's rate; a table with a rate of its own keeps its ratio to that."""
        torch.ops.dovetail.embedding_set_lr(self.packed, lr)

    def weight(self, table: str) -> Tensor:
        """The rows themselves as they are stored, not a copy: (rows, dim) float32 or bfloat16; of "mxfp8" (rows, dim +
        ceil(dim / 32)) uint8, E4M3 codes and behind them E8M0 scales."""
        return self._rows(self._index(table))

    def _index(self, table: str) -> int:
        return [t.name for t in self.tables].index(table)

    def _rows(self, index: int) -> Tensor:
        return torch.ops.dovetail.embedding_weight(self.packed, index)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for i, table in enumerate(self.tables):
            tensors[f"{table.name}.weight"] = self._rows(i)
            for name, state in torch.ops.dovetail.embedding_state(self.packed, i).items():
                tensors[f"{table.name}.{name}"] = state
        return tensors

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        for name, tensor in self._tensors().items():
            destination[prefix + name] = tensor
        destination[prefix + "steps"] = torch.tensor(torch.ops.dovetail.embedding_steps(self.packed))

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors):
        tensors = self._tensors()
        for name in [*tensors, "steps"]:
            if prefix + name not in state_dict:
                missing.append(prefix + name)
            elif name == "steps":
                torch.ops.dovetail.embedding_set_steps(self.packed, int(state_dict[prefix + name]))
            elif state_dict[prefix + name].shape != tensors[name].shape:
                errors.append(f"{prefix + name} is {tensors[name].shape}, not {state_dict[prefix + name].shape}")
            elif state_dict[prefix + name].dtype != tensors[name].dtype:
                errors.append(f"{prefix + name} is {tensors[name].dtype}, not {state_dict[prefix + name].dtype}")
            else:
                tensors[name].copy_(state_dict[prefix + name])
        known = {prefix + name for name in [*tensors, "steps"]}
        unexpected.extend(key for key in state_dict if key.startswith(prefix) and key not in known)

    def extra_repr(self) -> str:
        return f"tables={len(self.tables)}, features={list(self.features)}"
