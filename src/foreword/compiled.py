"""The compiled loops of drafting, where the extension is built.

They speed up what draft/ and tree/ say in Python: same nodes, same scores. Hints only, so nothing
but speed depends on whether they are there.
"""

from __future__ import annotations

import importlib
from typing import Any


def loops() -> Any | None:
    """The extension (src/foreword/draft/native), or None where it is not built."""
    try:
        native = importlib.import_module("foreword.kernels.cpu._native")
    except ImportError:
        return None
    return native if hasattr(native, "choose_nodes") else None
