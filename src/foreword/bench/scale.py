"""How large the measured things are, and which of them a model has room for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foreword.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes in tokens or rows. `prompt` or `batch` None: does not fit, is not measured."""

    width_context: int = 256
    widths: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    contexts: tuple[int, ...] = (700, 4096)
    prompt: int | None = 1000
    batch: int | None = 8
    batch_context: int = 150
    new_tokens: int = 64

    @property
    def longest(self) -> int:
        """Positions a model needs for everything."""
        return max(
            *(context + self.new_tokens for context in self.contexts or (0,)),
            self.width_context + max(self.widths),
            (self.prompt or 0) + 1,
        )

    def fitted(self, room: int) -> tuple[Scale, list[str]]:
        """What a model with `room` positions can do, and what it cannot, in words. ConfigError when
        not even plain decoding fits."""
        if room < self.new_tokens + 1:
            raise ConfigError(
                f"the model's context of {room} has no room for the {self.new_tokens} tokens that "
                "are timed; take a model with a longer one"
            )
        widths = tuple(width for width in self.widths if self.width_context + width <= room)
        contexts = tuple(one for one in self.contexts if one + self.new_tokens <= room)
        left_out = [f"context {one}" for one in self.contexts if one not in contexts]
        left_out += [f"width {one}" for one in self.widths if one not in widths]
        prompt, batch = self.prompt, self.batch
        if prompt is not None and prompt >= room:
            left_out.append(f"a prompt of {prompt}")
            prompt = None
        if batch is not None and self.batch_context + self.new_tokens > room:
            left_out.append(f"{batch} sequences at context {self.batch_context}")
            batch = None
        made = replace(self, widths=widths, contexts=contexts, prompt=prompt, batch=batch)
        return made, left_out
