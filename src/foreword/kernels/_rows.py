"""What the doors of row operations refuse, in compiled code and in numpy alike."""

from __future__ import annotations

import numpy as np


def check_top_k(rows: np.ndarray, k: int) -> None:
    check_rows(rows)
    if not 1 <= k <= rows.shape[1]:
        raise ValueError(f"k must be between 1 and the {rows.shape[1]} ids of a row, got {k}")


def check_ids(rows: np.ndarray, ids: np.ndarray) -> None:
    """One id of each row."""
    check_rows(rows)
    inside = ids.shape == (len(rows),) and ids.dtype == np.int64
    if not inside or (len(ids) and not 0 <= ids.min() <= ids.max() < rows.shape[1]):
        raise ValueError(
            f"ids must hold an int64 id in [0, {rows.shape[1]}) for each of {len(rows)} rows"
        )


def check_rows(rows: np.ndarray) -> None:
    if rows.ndim != 2 or rows.dtype != np.float32 or not rows.shape[1]:
        raise ValueError(f"rows must be float32 [rows, ids], got {rows.dtype} {list(rows.shape)}")


def nan_in_row(index: int) -> ValueError:
    return ValueError(f"row {index} holds NaN, which has no place in an order; mask it with -inf")
