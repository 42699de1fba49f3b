"""Rows of an estimator as tensors, and the place of their coordinates in the caller's."""

import warnings
from dataclasses import dataclass

import numpy as np
import torch

_PAIRS = 4096  # pairs of rows to compare for warn_of_merged_values


def rows_of(X: np.ndarray) -> tuple[torch.Tensor, "Place"]:
    place = Place.of(X)
    X = place.shifted(X).astype(np.float32, copy=False)
    return as_tensor(X), place


def warn_of_merged_values(X: np.ndarray, rows: torch.Tensor, stacklevel: int) -> None:
    """Warn if float32 `rows` make different values of X equal. Looks at some pairs of neighbouring rows."""
    if X.dtype != np.float64 or len(X) < 2:
        return
    pairs = np.unique(np.linspace(0, len(X) - 2, _PAIRS).astype(np.int64))
    differ = X[pairs] != X[pairs + 1]
    rounded = rows.numpy()
    merged = (differ & (rounded[pairs] == rounded[pairs + 1])).sum(0)
    columns = np.flatnonzero(100 * merged > differ.sum(0))
    if len(columns) > 0:
        warnings.warn(
            f"float32 makes different values equal in columns {columns.tolist()} of X; scale such a column, or split"
            " it into columns of a smaller range",
            UserWarning,
            stacklevel=stacklevel,
        )


def as_tensor(X: np.ndarray) -> torch.Tensor:
    """Return X as a tensor, without a copy unless X is read-only."""
    return torch.from_numpy(X if X.flags.writeable else X.copy())


@dataclass(frozen=True)
class Place:
    """Rows in float32: value = origin + scale * x. matrix_rounding.h has the rule for `origin`."""

    origin: np.ndarray | None = None
    scale: float = 1.0

    @classmethod
    def of(cls, X: np.ndarray) -> "Place":
        if X.size == 0:
            return cls()
        # Columns matter in float64 alone, and their extremes take several times as long as the table's.
        axis = 0 if X.dtype == np.float64 else None
        least, largest = X.min(axis).astype(np.float64), X.max(axis).astype(np.float64)
        origin = None
        if X.dtype == np.float64:
            with np.errstate(over="ignore"):
                worth = np.maximum(np.abs(least), np.abs(largest)) > 4 * (largest - least)
            for column in np.flatnonzero(worth):
                worth[column] = np.any(X[:, column].astype(np.float32) != X[:, column])
            if worth.any():
                origin = np.where(worth, least + (largest - least) / 2, 0.0)
                least, largest = least - origin, largest - origin
        exponent = int(np.frexp(max(np.abs(least).max(), np.abs(largest).max()))[1])
        return cls(origin, 2.0**exponent if abs(exponent) > 40 else 1.0)

    def shifted(self, X: np.ndarray) -> np.ndarray:
        if self.origin is not None:
            X = X - self.origin
        return X if self.scale == 1 else X / self.scale

    def original(self, points: torch.Tensor) -> torch.Tensor:
        points = points * self.scale
        return points if self.origin is None else points + torch.from_numpy(self.origin)
