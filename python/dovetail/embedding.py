"""Embedding tables of a recommender: all lookups in one operation, the optimizer fused into the backward pass.

>>> tables = [dovetail.embedding.Table("user", 1000, 16), dovetail.embedding.Table("item", 500, 32, "mean")]
>>> embeddings = dovetail.embedding.EmbeddingCollection(tables, {"user": "user", "clicked": "item", "bought": "item"})
>>> y = embeddings(values, offsets)  # (samples, 16 + 32 + 32)
>>> unpooled = [dovetail.embedding.Table("item", 500, 32, "none")]
>>> events = dovetail.embedding.EmbeddingCollection(unpooled, {"seen": "item"})
>>> y = events(values, offsets)  # (len(values), 32)

The update formulas are in ``dovetail/embedding/pack/row_optimizer.h``, the order of additions in
``dovetail/embedding/pack/lookup.h``. Wrong shapes, dtypes, ids and names raise RuntimeError.
"""

from typing import NamedTuple

import torch
import torch.distributed
from torch import Tensor, nn

__all__ = ["EmbeddingCollection", "Table"]


class Table(NamedTuple):
    """One table. Optimizer settings that are None take the collection's value."""

    #: Unique name.
    name: str
    #: Number of rows, at most 2^31; ids are 0 to rows - 1.
    rows: int
    #: Elements per row.
    dim: int
    #: ``"sum"``, ``"mean"``, or ``"none"``: one output row per id.
    pooling: str = "sum"
    #: Name of the optimizer.
    optimizer: str | None = None
    #: Learning rate.
    lr: float | None = None
    #: Momentum, used by ``"momentum"``.
    momentum: float | None = None
    #: Betas, used by ``"adam"``.
    betas: tuple[float, float] | None = None
    #: Epsilon, used by ``"adagrad"``, ``"rowwise_adagrad"`` and ``"adam"``.
    eps: float | None = None
    #: L2 decay of the rows that a batch touches.
    weight_decay: float | None = None


#: Dtype that a module's conversions see in place of the rows; for "mxfp8" the dtype of its codes.
_ROW_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "mxfp8": torch.float8_e4m3fn}


class EmbeddingCollection(nn.Module):
    """Embedding tables that train themselves in the backward pass.

    Rows are not parameters and get no ``grad``. ``state_dict`` holds ``TABLE.weight``, the optimizer's state of each
    table and the number of steps. Copies and pickles hold the same; a conversion to another dtype is an error.

    DistributedDataParallel does not see the rows, so the ranks' tables would part. A lookup that trains is therefore an
    error in a job of several ranks unless ``ranks`` is ``"separate"``.

    Args:
        tables: the tables. Pooling ``"none"`` is for all tables or none, which then have one ``dim``.
        features: table of each feature, by name; several features may share a table.
        optimizer: ``"sgd"``, ``"momentum"``, ``"adagrad"``, ``"rowwise_adagrad"`` or ``"adam"``. Its state is float32.
        lr: learning rate.
        momentum: momentum, used by ``"momentum"``.
        betas: betas, used by ``"adam"``.
        eps: epsilon, used by ``"adagrad"``, ``"rowwise_adagrad"`` and ``"adam"``.
        weight_decay: L2 decay of the rows that a batch touches.
        update: ``"backward"``: each backward pass is one optimizer step. ``"apply"``: gradients wait for
            :meth:`apply_gradients`; micro-batches then give the same bits as their whole batch.
        seed: seed of the initial rows and of stochastic rounding.
        row_dtype: how rows are stored: ``"fp32"``, ``"bf16"`` or ``"mxfp8"``. Updates round the last two
            stochastically.
        device: device of the tables and their batches. ``"cuda"`` stores ``"fp32"`` or ``"bf16"``.
        ranks: ``"refuse"``: training in a job of several ranks is an error. ``"separate"``: each rank has tables of its
            own, which learn from the rank's samples alone.

    Raises:
        ValueError: a feature names an unknown table.
        RuntimeError: a size, name or optimizer setting is out of range.
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
        ranks: str = "refuse",
    ):
        super().__init__()
        if ranks not in ("refuse", "separate"):
            raise ValueError(f'ranks = "{ranks}", but it is "refuse" or "separate"')
        self.tables, self.features = [Table(*table) for table in tables], dict(features)
        index = {table.name: i for i, table in enumerate(self.tables)}
        for feature, table in self.features.items():
            if table not in index:
                raise ValueError(f'feature "{feature}" looks into table "{table}", which is none of {list(index)}')
        general = (optimizer, lr, momentum, betas, eps, weight_decay)
        optimizers = [general, *(self._own(table, general) for table in self.tables)]
        self.ranks, self.row_dtype, self.device, self._lr = ranks, row_dtype, torch.device(device), lr
        self._arguments = (
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
        )
        self.packed = torch.ops.dovetail.embedding_tables(*self._arguments, self.device)

    @staticmethod
    def _own(table: Table, general: tuple) -> tuple:
        own = (table.optimizer, table.lr, table.momentum, table.betas, table.eps, table.weight_decay)
        return tuple(g if o is None else o for o, g in zip(own, general, strict=True))

    def forward(self, values: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Look up a batch of ids and pool their rows.

        The layout follows TorchRec's KeyedJaggedTensor. The ids of feature f and sample b are ``values[i]`` for i
        from ``offsets[f * samples + b]`` to ``offsets[f * samples + b + 1]``. Pooling ``"none"`` is FBGEMM's
        ``PoolingMode.NONE``.

        Args:
            values: (N) int64 or int32: ids.
            offsets: (features * samples + 1) int64 or int32, ascending from 0 to N.
            weights: (N) float32: weight of each id; None weighs each 1. Weights get no gradient.

        Returns:
            (samples, sum of the features' dims) float32: features concatenated in the order of ``features``. An empty
            bag gives zeros. With pooling ``"none"``: (N, dim), one row per id.

        Raises:
            RuntimeError: gradients are enabled in a job of several ranks, and ``ranks`` is ``"refuse"``.
        """
        if self.ranks == "refuse" and torch.is_grad_enabled() and _num_ranks() > 1:
            raise RuntimeError(
                f"EmbeddingCollection: {_num_ranks()} ranks would train tables that part, for "
                "DistributedDataParallel does not see rows that a backward pass updates. Use torch.nn.EmbeddingBag, "
                'train by `dovetail launch -n N train CONFIG` with [recommender], or give ranks="separate" if each '
                "rank is meant to have tables of its own"
            )
        return torch.ops.dovetail.embedding_lookup(self.packed, values, offsets, weights)

    def apply_gradients(self) -> None:
        """Apply all gradients since the previous update as one step, in the order of their lookups.

        Raises:
            RuntimeError: ``update`` is ``"backward"``.
        """
        torch.ops.dovetail.embedding_apply(self.packed)

    def set_lr(self, lr: float) -> None:
        """Set the collection's learning rate; a table with its own rate keeps its ratio to it."""
        torch.ops.dovetail.embedding_set_lr(self.packed, lr)
        self._lr = lr

    def weight(self, table: str) -> Tensor:
        """Return the stored rows of a table, not a copy.

        Args:
            table: name of the table.

        Returns:
            (rows, dim) float32 or bfloat16. For ``"mxfp8"``: (rows, dim + ceil(dim / 32)) uint8, E4M3 codes followed by
            E8M0 scales.

        Raises:
            ValueError: unknown table.
        """
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

    def _snapshot(self) -> dict[str, Tensor]:
        """Copies of all tensors and the number of steps."""
        if waiting := torch.ops.dovetail.embedding_waiting(self.packed):
            raise RuntimeError(
                f"EmbeddingCollection: {waiting} gradients wait for apply_gradients and would be lost; call it first"
            )
        steps = torch.tensor(torch.ops.dovetail.embedding_steps(self.packed))
        return {name: tensor.clone() for name, tensor in self._tensors().items()} | {"steps": steps}

    def _rebuild(self, snapshot: dict[str, Tensor], device: torch.device) -> None:
        """Make the tables anew on a device."""
        self.packed = torch.ops.dovetail.embedding_tables(*self._arguments, device)
        self.device = device
        torch.ops.dovetail.embedding_set_lr(self.packed, self._lr)
        torch.ops.dovetail.embedding_set_steps(self.packed, int(snapshot["steps"]))
        for name, tensor in self._tensors().items():
            tensor.copy_(snapshot[name])

    def __getstate__(self) -> dict:
        return {k: v for k, v in self.__dict__.items() if k != "packed"} | {"snapshot": self._snapshot()}

    def __setstate__(self, state: dict) -> None:
        snapshot = state.pop("snapshot")
        super().__setstate__(state)
        self._rebuild(snapshot, self.device)

    def _apply(self, fn, recurse=True):
        """Follow a module's ``to``, ``cuda``, ``double`` and alike: another device is done, another dtype refused."""
        wanted = fn(torch.empty(0, dtype=_ROW_DTYPES[self.row_dtype], device=self.device))
        if wanted.dtype != _ROW_DTYPES[self.row_dtype]:
            raise RuntimeError(
                f'EmbeddingCollection: rows are stored as row_dtype = "{self.row_dtype}" and cannot become '
                f"{wanted.dtype}; make the collection with another row_dtype (fp32, bf16, mxfp8), or convert the other "
                "modules one by one"
            )
        if wanted.device != self.device:
            self._rebuild(self._snapshot(), wanted.device)
        return super()._apply(fn, recurse)

    def share_memory(self):
        """Raise RuntimeError: rows lie in this process's memory."""
        raise RuntimeError("EmbeddingCollection: rows cannot be shared between processes; give each one a copy")

    def extra_repr(self) -> str:
        return f"tables={len(self.tables)}, features={list(self.features)}"


def _num_ranks() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
