"""Embedding tables of one process."""

import torch
import torch.distributed
from dovetail.embedding._jagged import read_batch
from dovetail.embedding._tables import Lookups, Table, describe
from torch import Tensor

#: Dtype that a module's conversions see in place of the rows; for "mxfp8" the dtype of its codes.
_ROW_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "mxfp8": torch.float8_e4m3fn}


class EmbeddingCollection(Lookups):
    """Embedding tables that train themselves in the backward pass.

    Rows are not parameters and get no ``grad``. ``state_dict`` holds ``TABLE.weight``, the optimizer's state of each
    table and the number of steps. Copies and pickles hold the same; a conversion to another dtype is an error.

    DistributedDataParallel does not see the rows, so the ranks' tables would part. A lookup that trains is therefore an
    error in a job of several ranks unless ``ranks`` is ``"separate"``.

    Args:
        tables: the tables. Pooling ``"none"`` is for all tables or none, which then have one ``dim``.
        features: table of each feature, by name; several features may share a table.
        optimizer: ``"sgd"``, ``"momentum"``, ``"adagrad"``, ``"rowwise_adagrad"``, ``"adam"``, ``"rowwise_adam"`` or
            ``"ftrl"`` (FTRL-Proximal, McMahan et al. 2013). Row-wise optimizers have one second moment per row. The
            state is float32.
        lr: learning rate.
        momentum: momentum, used by ``"momentum"``.
        betas: betas, used by ``"adam"`` and ``"rowwise_adam"``.
        eps: epsilon, used by the Adagrads and the Adams.
        weight_decay: L2 decay of the rows that a batch touches.
        update: ``"backward"``: each backward pass is one optimizer step. ``"apply"``: gradients wait for
            :meth:`apply_gradients`; micro-batches then give the same bits as their whole batch.
        seed: seed of the initial rows and of stochastic rounding.
        row_dtype: how rows are stored: ``"fp32"``, ``"bf16"`` or ``"mxfp8"``. Updates round the last two
            stochastically.
        device: device of the tables and their batches. ``"cuda"`` stores ``"fp32"`` or ``"bf16"``.
        ranks: ``"refuse"``: training in a job of several ranks is an error. ``"separate"``: each rank has tables of its
            own, which learn from the rank's samples alone.
        l1: L1 coefficient, used by ``"ftrl"``: a weight is 0 while its summed gradient is at most this.
        l2: L2 coefficient, used by ``"ftrl"``.
        beta: used by ``"ftrl"``: a larger value makes the first steps of a weight smaller.

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
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 1.0,
    ):
        super().__init__()
        if ranks not in ("refuse", "separate"):
            raise ValueError(f'ranks = "{ranks}", but it is "refuse" or "separate"')
        self.tables, self.features = [Table(*table) for table in tables], dict(features)
        for table in self.tables:
            if table.dynamic or table.sharding or table.max_bytes:
                raise ValueError(
                    f'table "{table.name}" is dynamic or has a sharding or max_bytes, which only a '
                    "ShardedEmbeddingCollection has; it also runs in one process"
                )
        settings = {"name": optimizer, "lr": lr, "momentum": momentum, "betas": betas, "eps": eps}
        self._optimizer = optimizer
        settings |= {"weight_decay": weight_decay, "l1": l1, "l2": l2, "beta": beta}
        self.ranks, self.row_dtype, self.device, self._lr = ranks, row_dtype, torch.device(device), lr
        self._arguments = describe(self.tables, self.features, settings, seed, row_dtype), update
        self._make(self.device)

    def _make(self, device: torch.device) -> None:
        self._hold(torch.ops.dovetail.embedding_tables(*self._arguments, device), device)
        self.device = device
        self._stored = [torch.ops.dovetail.embedding_weight(self.handle, i) for i in range(len(self.tables))]

    def forward(self, values, offsets: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Look up a batch of ids and pool their rows.

        The layout follows TorchRec's KeyedJaggedTensor. The ids of feature f and sample b are ``values[i]`` for i
        from ``offsets[f * samples + b]`` to ``offsets[f * samples + b + 1]``. Pooling ``"none"`` is FBGEMM's
        ``PoolingMode.NONE``.

        A program of :func:`torch.export.export` holds the rows and looks up. It does not train.

        Args:
            values: (N) int64 or int32: ids. Or a batch like a KeyedJaggedTensor, alone: an object with ``keys()``,
                ``values()``, and ``offsets()`` or ``lengths()``, perhaps ``weights()``. Its keys are names of
                features, in any order. Keys that are no features are left out.
            offsets: (features * samples + 1) int64 or int32, ascending from 0 to N.
            weights: (N) float32: weight of each id; None weighs each 1. Weights get no gradient.

        Returns:
            (samples, sum of the features' dims) float32: features concatenated in the order of ``features``. An empty
            bag gives zeros. With pooling ``"none"``: (N, dim), one row per id.

        Raises:
            RuntimeError: gradients are enabled in a job of several ranks, and ``ranks`` is ``"refuse"``.
        """
        if torch.compiler._is_exporting_flag:
            return self._exported(values, offsets, weights)
        if self.ranks == "refuse" and torch.is_grad_enabled() and _num_ranks() > 1:
            raise RuntimeError(
                f"EmbeddingCollection: {_num_ranks()} ranks would train tables that part, for "
                "DistributedDataParallel does not see rows that a backward pass updates. Use a "
                'ShardedEmbeddingCollection, or give ranks="separate" if each rank is meant to have its own tables'
            )
        return self._look_up(values, offsets, weights)

    def _exported(self, batch, offsets: Tensor | None, weights: Tensor | None) -> Tensor:
        """Look up in the rows as tensors, which an exported program can hold."""
        values, offsets, weights = read_batch(batch, offsets, weights, list(self.features))
        names = [table.name for table in self.tables]
        return torch.ops.dovetail.embedding_pool(
            self._stored,
            values,
            offsets,
            weights,
            [table.dim for table in self.tables],
            [table.pooling for table in self.tables],
            [names.index(table) for table in self.features.values()],
            self.row_dtype,
        )

    def apply_gradients(self) -> None:
        """Apply all gradients since the previous update as one step, in the order of their lookups.

        Raises:
            RuntimeError: ``update`` is ``"backward"``.
        """
        torch.ops.dovetail.embedding_apply(self.handle)

    def set_lr(self, lr: float) -> None:
        """Set the collection's learning rate; a table with its own rate keeps its ratio to it."""
        self._check_rate(self._optimizer)
        torch.ops.dovetail.embedding_set_lr(self.handle, lr)
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
        return self._stored[[t.name for t in self.tables].index(table)]

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for i, table in enumerate(self.tables):
            tensors[f"{table.name}.weight"] = self._stored[i]
            for name, state in torch.ops.dovetail.embedding_state(self.handle, i).items():
                tensors[f"{table.name}.{name}"] = state
        return tensors

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        for name, tensor in self._tensors().items():
            destination[prefix + name] = tensor
        destination[prefix + "steps"] = torch.tensor(torch.ops.dovetail.embedding_steps(self.handle))

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors):
        tensors = self._tensors()
        for name in [*tensors, "steps"]:
            if prefix + name not in state_dict:
                missing.append(prefix + name)
            elif name == "steps":
                torch.ops.dovetail.embedding_set_steps(self.handle, int(state_dict[prefix + name]))
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
        if waiting := torch.ops.dovetail.embedding_waiting(self.handle):
            raise RuntimeError(
                f"EmbeddingCollection: {waiting} gradients wait for apply_gradients and would be lost; call it first"
            )
        steps = torch.tensor(torch.ops.dovetail.embedding_steps(self.handle))
        return {name: tensor.clone() for name, tensor in self._tensors().items()} | {"steps": steps}

    def _rebuild(self, snapshot: dict[str, Tensor], device: torch.device) -> None:
        """Make the tables anew on a device."""
        self._make(device)
        torch.ops.dovetail.embedding_set_lr(self.handle, self._lr)
        torch.ops.dovetail.embedding_set_steps(self.handle, int(snapshot["steps"]))
        for name, tensor in self._tensors().items():
            tensor.copy_(snapshot[name])

    def __getstate__(self) -> dict:
        state = super().__getstate__() | {"snapshot": self._snapshot()}
        del state["_stored"]
        return state

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

    def extra_repr(self) -> str:
        return f"tables={len(self.tables)}, features={list(self.features)}"


def _num_ranks() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
