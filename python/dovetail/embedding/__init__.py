"""Embedding tables of a recommender: all lookups in one operation, the optimizer fused into the backward pass.

>>> tables = [dovetail.embedding.Table("user", 1000, 16), dovetail.embedding.Table("item", 500, 32, "mean")]
>>> embeddings = dovetail.embedding.EmbeddingCollection(tables, {"user": "user", "clicked": "item", "bought": "item"})
>>> y = embeddings(values, offsets)  # (samples, 16 + 32 + 32)
>>> unpooled = [dovetail.embedding.Table("item", 500, 32, "none")]
>>> events = dovetail.embedding.EmbeddingCollection(unpooled, {"seen": "item"})
>>> y = events(values, offsets)  # (len(values), 32)

Over the ranks of a job that ``torchrun`` has started, with the samples of this rank:

>>> torch.distributed.init_process_group("gloo")
>>> embeddings = dovetail.embedding.ShardedEmbeddingCollection(tables, {"user": "user", "clicked": "item"})
>>> y = embeddings(values, offsets)

The update formulas are in ``dovetail/embedding/pack/row_optimizer.h``, the order of additions in
``dovetail/embedding/pack/lookup.h``. Wrong shapes, dtypes, ids and names raise RuntimeError.
"""

from dovetail.embedding._collection import EmbeddingCollection
from dovetail.embedding._sharded import ShardedEmbeddingCollection
from dovetail.embedding._tables import Dynamic, Table, Tiers

__all__ = ["Dynamic", "EmbeddingCollection", "ShardedEmbeddingCollection", "Table", "Tiers"]
