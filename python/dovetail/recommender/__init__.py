"""Trained recommenders in plain PyTorch: load an export of ``dovetail export RUN --out FOLDER`` and score rows.

>>> model = dovetail.recommender.load("exported")
>>> columns = model.encode({"user": ["u7", "u9"], "item": ["i1", None], "price": [3.5, None]})
>>> probabilities = model(columns).sigmoid()  # (rows, tasks)

This package uses nothing of Dovetail's compiled library. Scores equal ``dovetail eval --predictions`` up to rounding.
"""

from dovetail.recommender.features import Bags
from dovetail.recommender.model import Recommender, load

__all__ = ["Bags", "Recommender", "load"]
