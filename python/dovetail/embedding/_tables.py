"""Tables of a collection, and the description of them that the compiled library reads."""

import json
from typing import Any, NamedTuple

import torch
from dovetail.embedding._jagged import read_batch
from torch import Tensor, nn


class Table(NamedTuple):
    """One table. Optimizer settings that are None take the collection's value."""

    #: Unique name.
    name: str
    #: Number of rows, at most 2^31; ids are 0 to rows - 1. Maximum number of rows of a dynamic table.
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
    #: Betas, used by ``"adam"`` and ``"rowwise_adam"``.
    betas: tuple[float, float] | None = None
    #: Epsilon, used by the Adagrads and the Adams.
    eps: float | None = None
    #: L2 decay of the rows that a batch touches.
    weight_decay: float | None = None
    #: Sharding of this table in a :class:`ShardedEmbeddingCollection`; None: the collection's.
    sharding: str | None = None
    #: True: a table without a fixed vocabulary. Any int64 is a valid id, and :class:`Dynamic` decides which get a row.
    #: Only a :class:`ShardedEmbeddingCollection` has such tables.
    dynamic: bool = False
    #: Maximum bytes of a dynamic table on all ranks, with its optimizer state and its map of ids; 0: no limit.
    max_bytes: int = 0
    #: L1 and L2 coefficients, and beta, used by ``"ftrl"``.
    l1: float | None = None
    l2: float | None = None
    beta: float | None = None
    #: Initial values are uniform in [-initial_range, initial_range); None: 1 / sqrt(rows).
    initial_range: float | None = None


class Dynamic(NamedTuple):
    """Admission and eviction of ids in dynamic tables."""

    #: ``"always"``: each id gets a row. ``"count"``: an id that has occurred ``min_count`` times. ``"probability"``:
    #: each occurrence draws at random.
    admission: str = "always"
    #: ``"count"``: occurrences before an id gets a row, including the current step.
    min_count: int = 2
    #: ``"count"``: maximum number of ids of a table that are counted without a row.
    max_candidates: int = 1_000_000
    #: ``"probability"``: chance of each occurrence to get a row.
    probability: float = 0.1
    #: ``"none"``. ``"age"``: rows not seen for ``max_age`` steps leave. ``"frequency"``: the rarest rows leave until
    #: ``keep_rows`` are left; then all counts are halved.
    eviction: str = "none"
    #: Steps between evictions.
    evict_steps: int = 1000
    #: Steps without an occurrence after which a row or a candidate leaves.
    max_age: int = 100_000
    #: ``"frequency"``: rows of a table that stay.
    keep_rows: int = 0


class Tiers(NamedTuple):
    """Memory tiers. Results do not depend on them."""

    #: Memory of each rank for rows and their state. It includes the ids of dynamic tables, some 60 bytes for each of
    #: their rows and candidates.
    memory_bytes: int
    #: Folder of the files for all other rows; None: other RAM.
    folder: str | None = None
    #: Rows that stay in memory: ``"hot"`` (the most frequent), ``"lru"`` or ``"lfu"``.
    policy: str = "hot"
    #: Room of each table for rows that only one step needs.
    step_rows: int = 4096
    #: ``"hot"``: steps that count rows before the first choice.
    warmup_steps: int = 100
    #: ``"hot"``: steps between choices; 0: choose once.
    refresh_steps: int = 1000


class Lookups(nn.Module):
    """Differentiable lookups in tables that a ``torch.classes.dovetail.EmbeddingTables`` owns."""

    features: dict[str, str]

    def _hold(self, owner: torch.ScriptObject, device: torch.device) -> None:
        # In a tuple, since torch.export refuses modules with a ScriptObject.
        self.owner, self.handle = (owner,), owner.handle()
        # Input of each lookup, so that autograd calls its backward. The rows have no gradient.
        self.anchor = torch.zeros((), device=device, requires_grad=True)

    def _look_up(self, batch, offsets: Tensor | None, weights: Tensor | None) -> Tensor:
        values, offsets, weights = read_batch(batch, offsets, weights, list(self.features))
        anchor = self.anchor if torch.is_grad_enabled() else None
        return torch.ops.dovetail.embedding_lookup(anchor, self.handle, values, offsets, weights)[0]

    def _check_rate(self, optimizer: str) -> None:
        """Refuse a new learning rate. The weights of ftrl are sums times the rate: another one would scale them."""
        names = [table.name for table in self.tables if (table.optimizer or optimizer) == "ftrl"]
        if names:
            raise ValueError(f"the learning rate of ftrl is constant, which trains {names}; leave set_lr out")

    def __getstate__(self) -> dict:
        return {k: v for k, v in self.__dict__.items() if k not in ("owner", "handle", "anchor")}

    def share_memory(self):
        """Raise RuntimeError: rows lie in this process's memory."""
        raise RuntimeError(f"{type(self).__name__}: rows cannot be shared between processes; give each one a copy")


def describe(
    tables: list[Table], features: dict[str, str], optimizer: dict[str, Any], seed: int, row_dtype: str, **more: Any
) -> str:
    """Return a collection as the text that ``spec_from_json`` (library_spec.h) reads."""
    index = {table.name: i for i, table in enumerate(tables)}
    for feature, table in features.items():
        if table not in index:
            raise ValueError(f'feature "{feature}" looks into table "{table}", which is none of {list(index)}')
    described = []
    for table in tables:
        own = {key: getattr(table, "optimizer" if key == "name" else key) for key in optimizer}
        own = {key: optimizer[key] if value is None else value for key, value in own.items()}
        described.append(
            {
                "name": table.name,
                "rows": table.rows,
                "dim": table.dim,
                "pooling": table.pooling,
                "optimizer": own,
                "sharding": table.sharding,
                "dynamic": table.dynamic,
                "max_bytes": table.max_bytes,
                "initial_range": -1.0 if table.initial_range is None else table.initial_range,
            }
        )
    return json.dumps(
        {
            "tables": described,
            "features": [index[table] for table in features.values()],
            "optimizer": optimizer,
            "seed": seed,
            "row_dtype": row_dtype,
            **more,
        }
    )
