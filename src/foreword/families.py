"""Names that are files: what a folder of interchangeable parts holds, the module of a name."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from foreword.errors import ConfigError


def names(family: str) -> list[str]:
    """The members of a folder (draft, tree, kv, accept, kernels), by file name."""
    package = importlib.import_module(f"foreword.{family}")
    found = [item.name for item in pkgutil.iter_modules(package.__path__)]
    helpers = {"kernels": {"ops", "guard"}, "kv": {"pool", "prefix"}}.get(family, set())
    return sorted(name for name in found if not name.startswith("_") and name not in helpers)


def member(family: str, name: str) -> Any:
    """The module behind a name; ConfigError lists what there is."""
    if name not in names(family):
        raise ConfigError(f"no {family}/{name}; there is: {', '.join(names(family))}")
    return importlib.import_module(f"foreword.{family}.{name}")
