"""Dovetail's operations in PyTorch. Importing this package registers ``torch.ops.dovetail.*``.

>>> import torch, dovetail
>>> x = torch.randn(4, 64, requires_grad=True)
>>> dovetail.rms_norm(x, torch.ones(64)).sum().backward()

Functions take and return plain tensors. All but ``gemm`` are differentiable.
"""

import importlib

from dovetail import embedding, moe, mx, plan, recommender
from dovetail._library import load, version
from dovetail.embedding import _operators as _embedding_operators
from dovetail.functional import (
    attention,
    gelu,
    gemm,
    layer_norm,
    linear,
    linear_cross_entropy,
    rms_norm,
    squared_relu,
    swiglu,
)
from dovetail.moe import _experts as _moe_experts
from dovetail.moe import _operators as _moe_operators

load()
_embedding_operators.register_shapes()
_moe_operators.register_shapes()
_moe_calls = _moe_experts.register_calls()

__version__ = version()


_ESTIMATORS = {
    "GaussianMixture": "mixture",
    "KMeans": "cluster",
    "LinearRegression": "linear_model",
    "LogisticRegression": "linear_model",
    "MiniBatchKMeans": "cluster",
    "PCA": "decomposition",
}


def __getattr__(name: str):
    """Import an estimator on first use, since it needs scikit-learn."""
    if name not in _ESTIMATORS:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"dovetail.{_ESTIMATORS[name]}")
    except ModuleNotFoundError as error:
        raise ImportError(f"dovetail.{name} needs {error.name}: pip install scikit-learn") from error
    return getattr(module, name)


__all__ = [
    "__version__",
    "attention",
    "embedding",
    "gelu",
    "gemm",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "moe",
    "mx",
    "plan",
    "recommender",
    "rms_norm",
    "squared_relu",
    "swiglu",
]
