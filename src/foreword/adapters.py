"""The adapters a model has loaded, by name. They come and go while it runs; who may still use one
is the door's to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from foreword.errors import ConfigError, RequestError
from foreword.kv.pool import available_bytes
from foreword.model.llama import Decoder
from foreword.model.weights.adapter import WEIGHTS_FILE, open_adapter
from foreword.model.weights.memory import require_memory


@dataclass(frozen=True, slots=True)
class Loaded:
    """sha256: of the weights and their scales. rank: the largest."""

    name: str
    path: Path
    sha256: str
    rank: int
    num_bytes: int


class Adapters:
    """Of one model, those of `named` (name -> folder) to begin with."""

    def __init__(self, model: Decoder, device: str, named: Mapping[str, str]) -> None:
        self._model = model
        self._device = device
        self._loaded: dict[str, Loaded] = {}
        for name, folder in named.items():
            self.load(name, folder)

    @property
    def loaded(self) -> list[Loaded]:
        """In the order they came."""
        return list(self._loaded.values())

    def load(self, name: str, folder: str | Path) -> Loaded:
        """A PEFT folder under a name of the user's choice. Raises ConfigError for a name in use,
        WeightsError for a folder that does not fit the model."""
        if name in self._loaded:
            raise ConfigError(f"adapter {name!r} is loaded already; unload it or take another name")
        path = Path(folder)
        if (path / WEIGHTS_FILE).is_file():
            size = (path / WEIGHTS_FILE).stat().st_size
            require_memory(2 * size, available_bytes(self._device), f"adapter {name!r}")
        adapter = open_adapter(path, self._model.config)
        self._model.load_adapter(name, adapter.layers)
        found = Loaded(name, path, adapter.sha256, adapter.rank, adapter.num_bytes)
        self._loaded[name] = found
        return found

    def unload(self, name: str) -> None:
        """Raises ConfigError for an unknown name."""
        if name not in self._loaded:
            raise ConfigError(f"adapter {name!r} is not loaded; {self._known()}")
        del self._loaded[name]
        self._model.unload_adapter(name)

    def find(self, name: str | None) -> Loaded | None:
        """What a request names; None for none. Raises RequestError for an unknown name."""
        if name is None:
            return None
        if not isinstance(name, str) or name not in self._loaded:
            raise RequestError(f"there is no adapter {name!r}; {self._known()}", "adapter")
        return self._loaded[name]

    def _known(self) -> str:
        return f"loaded: {', '.join(self._loaded) or 'none'}"
