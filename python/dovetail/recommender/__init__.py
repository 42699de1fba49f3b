"""Trained recommenders in plain PyTorch: what `dovetail export RUN --out FOLDER` wrote, loaded to score rows.

>>> model = dovetail.recommender.load("exported")
>>> columns = model.encode({"user": ["u7", "u9"], "item": ["i1", None], "price": [3.5, None]})
>>> probabilities = model(columns).sigmoid()  # (rows, tasks)

Needs nothing of Dovetail's compiled library. Scores are those of `dovetail eval --predictions` but for rounding.
"""

from dovetail.recommender.features import Bags
from dovetail.recommender.model import Recommender, load

__all__ = ["Bags", "Recommender", "load"]
