"""Mixtures of experts in plain PyTorch.

>>> layer = dovetail.moe.MoELayer(512, 1024, experts=16, k=2)
>>> y, loss = layer(x)  # add the router's loss to the model's

Sizes in shapes: T tokens, C elements a token (the width), E experts, k choices per token. Wrong shapes, dtypes and
option names raise RuntimeError. The C++ contracts are in ``dovetail/moe/routing.h`` (routers) and
``dovetail/moe/experts.h`` (products).
"""

from dovetail.moe._layer import MoELayer, average_gradients, expert_parameters
from dovetail.moe._operators import Routing, combine, dispatch, grouped_linear, route
from dovetail.moe._weights import from_transformers, load_weights, weights_of

__all__ = [
    "MoELayer",
    "Routing",
    "average_gradients",
    "combine",
    "dispatch",
    "expert_parameters",
    "from_transformers",
    "grouped_linear",
    "load_weights",
    "route",
    "weights_of",
]
