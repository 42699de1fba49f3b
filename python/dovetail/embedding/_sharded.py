"""Embedding tables over the ranks of a job."""

import json
from typing import Any

import torch
import torch.distributed
from dovetail.embedding._tables import Dynamic, Lookups, Table, Tiers, describe
from torch import Tensor

#: Number of collections that each group has had, by the group's name. All ranks count alike.
_made: dict[str, int] = {}


class ShardedEmbeddingCollection(Lookups):
    """Embedding tables whose rows are spread over ranks, and that train themselves in the backward pass.

    Each rank looks up its own samples, and every table is trained on the samples of all ranks. The tables are on the
    CPU. All ranks of the group make the same calls in the same order. Such calls are the constructor, lookups,
    backward, ``state_dict`` and ``load_state_dict``. The collection has connections of its own (Gloo).

    The dense part of a model may be in DistributedDataParallel, with or without this module inside.

    One step is at a time: a lookup with gradients enabled, then its backward, which is one optimizer step. The next
    lookup ends a step that had no backward, without an update. A backward that comes later is an error.

    On one rank, results have the bits of :class:`EmbeddingCollection`. On several ranks, lookups in whole, column-wise
    and replicated tables have these bits too. Row-wise tables add one partial sum per rank, in rank order. So bags
    with ids on several ranks are rounded differently, and so are the gradients of their means. Updates of
    all other tables have the same bits on any number of ranks. This holds for equal gradients, and if the ranks divide
    the batch in their order. With ``transfer="rows"``, lookups have these bits in all tables. Updates do not: each rank
    sums the gradients of a row over its own samples first.

    Args:
        tables: the tables. Their pooling is ``"sum"`` or ``"mean"``.
        features: table of each feature, by name; several features may share a table.
        optimizer: as in :class:`EmbeddingCollection`, like ``lr``, ``momentum``, ``betas``, ``eps``, ``weight_decay``,
            ``l1``, ``l2`` and ``beta``.
        seed: seed of the initial rows and of stochastic rounding.
        row_dtype: how rows are stored: ``"fp32"``, ``"bf16"`` or ``"mxfp8"``.
        group: ranks of the tables. None: all ranks of the job, or one without a job.
        sharding: ``"auto"``, ``"row"``, ``"table"``, ``"column"`` or ``"replicated"``. row: row i on rank i mod n.
            table: each table on one rank. column: a range of columns on each rank. Tables may have their own.
        rank_bytes: maximum bytes of rows and state on each rank, which ``"auto"`` keeps to; 0: unlimited.
        ids_per_sample: expected ids of a sample by feature, for ``"auto"``; others have 1.
        exchange: format in which ranks exchange pooled rows and their gradients: ``"fp32"``, ``"bf16"``, ``"mxfp8"`` or
            ``"fp8"``.
        transfer: rows that ranks exchange in a step. ``"bags"``: a pooled row for each bag. ``"rows"``: each distinct
            row of a rank's samples once, and one summed gradient for it. Long sequences and frequent ids cost less.
        gradients: ``"mean"``: mean over ranks, as in DistributedDataParallel. ``"sum"``: their sum.
        tiers: memory tiers of the tables; None: all rows stay in memory.
        dynamic: admission and eviction of ids in dynamic tables.
        timeout_s: maximum seconds that a rank waits for the others.

    Raises:
        ValueError: a feature names an unknown table, or an option has no effect.
        RuntimeError: a size, name or optimizer setting is out of range, or the ranks' arguments differ.
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
        seed: int = 0,
        row_dtype: str = "fp32",
        group: torch.distributed.ProcessGroup | None = None,
        sharding: str = "auto",
        rank_bytes: int = 0,
        ids_per_sample: dict[str, float] | None = None,
        exchange: str = "fp32",
        gradients: str = "mean",
        tiers: Tiers | None = None,
        dynamic: Dynamic | None = None,
        timeout_s: float = 60.0,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 1.0,
        transfer: str = "bags",
    ):
        super().__init__()
        self.tables, self.features, self.row_dtype = [Table(*table) for table in tables], dict(features), row_dtype
        self._check_effects(dynamic, ids_per_sample or {})
        settings = {"name": optimizer, "lr": lr, "momentum": momentum, "betas": betas, "eps": eps}
        self._optimizer = optimizer
        settings |= {"weight_decay": weight_decay, "l1": l1, "l2": l2, "beta": beta}
        options = {
            "sharding": sharding,
            "rank_bytes": rank_bytes,
            "ids_per_sample": [(ids_per_sample or {}).get(feature, 1.0) for feature in self.features],
            "exchange": exchange,
            "transfer": transfer,
            "gradients": gradients,
            "tiers": tiers and tiers._replace(folder=tiers.folder or "")._asdict(),
            "dynamic": (dynamic or Dynamic())._asdict(),
        }
        text = describe(self.tables, self.features, settings, seed, row_dtype, options=options)
        if group is None and torch.distributed.is_available() and torch.distributed.is_initialized():
            group = torch.distributed.group.WORLD
        name = "none" if group is None else group.group_name
        _made[name] = _made.get(name, 0) + 1
        owner = torch.ops.dovetail.sharded_embedding_tables(
            text, None if group is None else group.boxed(), f"dovetail/embedding/{_made[name]}", timeout_s
        )
        self._rank = 0 if group is None else group.rank()
        self._hold(owner, torch.device("cpu"))

    def _check_effects(self, dynamic: Dynamic | None, ids_per_sample: dict[str, float]) -> None:
        if dynamic is not None and not any(table.dynamic for table in self.tables):
            raise ValueError("dynamic has no effect: no table is dynamic; make one with Table(..., dynamic=True)")
        if unlimited := [table.name for table in self.tables if table.max_bytes and not table.dynamic]:
            raise ValueError(f"max_bytes has no effect on {unlimited}, which are not dynamic")
        if unknown := [feature for feature in ids_per_sample if feature not in self.features]:
            raise ValueError(f"ids_per_sample has {unknown}, which are no features of {list(self.features)}")

    def forward(self, values, offsets: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Look up a batch of this rank's samples. Arguments and result are as in :class:`EmbeddingCollection`.

        The batch may have no samples.
        """
        if torch.compiler._is_exporting_flag:
            raise RuntimeError(
                "ShardedEmbeddingCollection: rows of other ranks cannot be exported; load its state_dict into an "
                "EmbeddingCollection with the same tables and export that"
            )
        return self._look_up(values, offsets, weights)

    def set_lr(self, lr: float) -> None:
        """Set the collection's learning rate; a table with its own rate keeps its ratio to it."""
        self._check_rate(self._optimizer)
        torch.ops.dovetail.sharded_embedding_set_lr(self.handle, lr)

    def plan(self) -> dict[str, Any]:
        """Return the plan: packs of tables, their sharding, and their bytes on each rank."""
        return json.loads(torch.ops.dovetail.sharded_embedding_plan(self.handle))

    def tier_counts(self) -> dict[str, int]:
        """Return counts of this rank since the start: hits and misses in memory, rows read and written."""
        return dict(torch.ops.dovetail.sharded_embedding_tier_counts(self.handle))

    def key_counts(self) -> dict[str, int]:
        """Return counts of the dynamic tables on this rank: rows, candidates, bytes, ids admitted and evicted."""
        return dict(torch.ops.dovetail.sharded_embedding_key_counts(self.handle))

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        for i, table in enumerate(self.tables):
            for name, tensor in torch.ops.dovetail.sharded_embedding_read(self.handle, i).items():
                destination[f"{prefix}{table.name}.{name}"] = tensor
        if self._rank == 0:
            updates, steps = torch.ops.dovetail.sharded_embedding_steps(self.handle)
            destination[prefix + "steps"] = torch.tensor(updates)
            if any(table.dynamic for table in self.tables):
                destination[prefix + "table_steps"] = torch.tensor(steps)

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors):
        own = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
        given, steps, wrong = [{} for _ in self.tables], [0, 0, 0], []
        if self._rank == 0:
            names = self._names_of_steps()
            for i, table in enumerate(self.tables):
                shapes = torch.ops.dovetail.sharded_embedding_shapes(self.handle, i)
                names += [f"{table.name}.{name}" for name in shapes]
                given[i] = {name: own[f"{table.name}.{name}"] for name in shapes if f"{table.name}.{name}" in own}
                wrong += [f"{prefix}{table.name}.{x}" for x in self._wrong(table, given[i], shapes)]
                if len(given[i]) < len(shapes):  # never a part of a table
                    given[i] = {}
            missing.extend(prefix + name for name in names if name not in own)
            unexpected.extend(prefix + name for name in own if name not in names)
            if "steps" in own:
                steps = [1, int(own["steps"]), int(own.get("table_steps", own["steps"]))]
        flags = torch.ops.dovetail.sharded_embedding_from_rank_zero(
            self.handle, [*steps, *(int(len(contents) > 0) for contents in given)], "; ".join(wrong)
        )
        if flags[0]:
            torch.ops.dovetail.sharded_embedding_set_steps(self.handle, flags[1], flags[2])
        for i in range(len(self.tables)):
            if flags[3 + i]:
                contents = {name: tensor.contiguous() for name, tensor in given[i].items()}
                torch.ops.dovetail.sharded_embedding_write(self.handle, i, contents)

    def _names_of_steps(self) -> list[str]:
        return ["steps", "table_steps"] if any(table.dynamic for table in self.tables) else ["steps"]

    @staticmethod
    def _wrong(table: Table, given: dict[str, Tensor], shapes: dict[str, Tensor]) -> list[str]:
        """Say which tensors do not fit. A dynamic table has any number of rows."""
        wrong = []
        first = 1 if table.dynamic else 0
        for name, tensor in given.items():
            if tensor.dtype != shapes[name].dtype or tensor.shape[first:] != shapes[name].shape[first:]:
                is_now, given_is = (f"{x.dtype} {list(x.shape)}" for x in (shapes[name], tensor))
                wrong.append(f"{name} is {is_now}, not {given_is}")
        return wrong

    def __getstate__(self) -> dict:
        raise RuntimeError(
            "ShardedEmbeddingCollection: it cannot be copied or pickled, since rows lie on several ranks; save its "
            "state_dict, which all ranks call together"
        )

    def _apply(self, fn, recurse=True):
        """Refuse another dtype or device."""
        wanted = fn(torch.empty(0))
        if wanted.dtype != torch.float32 or not wanted.is_cpu:
            raise RuntimeError(
                "ShardedEmbeddingCollection: its rows stay on the CPU, and its results are float32; convert the "
                f"other modules one by one, not to {wanted.dtype} on {wanted.device} with this one"
            )
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        return f"tables={len(self.tables)}, features={list(self.features)}"
