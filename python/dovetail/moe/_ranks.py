"""Experts over the ranks of a torch ProcessGroup."""

import weakref
from typing import Any

import torch
import torch.distributed as dist

#: Connections of each group, by timeout. They last as long as the group.
_connections: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[float, Any]] = weakref.WeakKeyDictionary()


class ExpertRanks:
    """Ranks of a group, with connections of their own. All ranks of the group make it together."""

    def __init__(self, group: dist.ProcessGroup, timeout_s: float):
        if not isinstance(group, dist.ProcessGroup):
            raise ValueError(f"group must be a ProcessGroup that has this rank, but is {group!r}")
        self.group = group
        made = _connections.setdefault(group, {})
        if timeout_s not in made:
            made[timeout_s] = torch.ops.dovetail.moe_ranks(group.boxed(), f"dovetail/moe/{len(made)}", timeout_s)
        self.engine = made[timeout_s]

    def own_experts(self, experts: int) -> range:
        """Numbers of this rank's experts. Counts of two ranks differ by at most 1."""
        return range(*torch.ops.dovetail.moe_ranks_own_experts(self.engine, experts))

    def check_equal(self, description: str) -> None:
        """Raise RuntimeError on all ranks unless they all pass the same text."""
        torch.ops.dovetail.moe_ranks_check_equal(self.engine, description)

    def sum(self, counts: torch.Tensor) -> torch.Tensor:
        """Sums over the ranks, in place."""
        dist.all_reduce(counts, group=self.group)
        return counts

    def __deepcopy__(self, memo) -> "ExpertRanks":
        return self

    def __reduce__(self):
        raise RuntimeError("MoELayer: a layer with a group cannot be pickled; save its state_dict")
