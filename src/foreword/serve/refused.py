"""Fields that clients know and Foreword does not have: refused by name, with what to do instead.

`neutral`: values that ask for nothing, which are accepted; null always is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str
    neutral: tuple[Any, ...] = ()
    source: str = "OpenAI"


_ONE_DEVICE = Refused("it belongs to another engine; drop it", source="vLLM")
_NO_BEAMS = Refused("beams are in the library: LLM.beam_search", (False,), "vLLM")

BOTH: dict[str, Refused] = {
    "guided_decoding_backend": Refused("there is one backend; drop it", source="vLLM"),
    "guided_whitespace_pattern": Refused("blanks are bounded already; drop it", source="vLLM"),
    "spaces_between_special_tokens": Refused(
        "special tokens are shown as they are; drop it", (True,), "vLLM"
    ),
    "truncate_prompt_tokens": Refused("shorten the prompt yourself", source="vLLM"),
    "use_beam_search": _NO_BEAMS,
    "length_penalty": Refused("it is for beams, which are in the library", (1.0,), "vLLM"),
    "logits_processors": Refused("code is taken from the library only", source="vLLM"),
    "acceptance": Refused("approximate modes are in the library only", ("exact",), "Foreword"),
    "acceptance_options": Refused("approximate modes are in the library only", (), "Foreword"),
    "sampler": Refused("it is in the library only", ("gumbel",), "Foreword"),
    "arithmetic_code": Refused("it is in the library only", (), "Foreword"),
    "kv_transfer_params": _ONE_DEVICE,
    "vllm_xargs": _ONE_DEVICE,
}
COMPLETIONS: dict[str, Refused] = {
    **BOTH,
    "suffix": Refused("no model here fills in the middle; write it into the prompt", ("",)),
    "prompt_embeds": Refused("prompts are text or token ids", source="vLLM"),
}
CHAT: dict[str, Refused] = {
    **BOTH,
    "functions": Refused("its successor is: tools"),
    "function_call": Refused("its successor is: tool_choice"),
    "audio": Refused("models here write text"),
    "modalities": Refused("models here write text", (["text"],)),
    "prediction": Refused(
        "drafts come from the prompt; put the text there, drafter input_copy follows it"
    ),
    "moderation": Refused("there is none"),
    "prompt_cache_options": Refused("the prefix cache needs none", ({"mode": "implicit"},)),
    "prompt_cache_retention": Refused("the prefix cache lives in memory", ("in_memory",)),
    "service_tier": Refused("there is one tier; use priority", ("auto", "default")),
    "store": Refused("answers are not kept", (False,)),
    "verbosity": Refused("no template here knows it; say it in a message", ("medium",)),
    "web_search_options": Refused("there is no search; give a tool"),
    "echo": Refused("to go on with a message: continue_final_message", (False,), "vLLM"),
    "mm_processor_kwargs": Refused("models here read text", source="vLLM"),
}
REFUSED = {"completions": COMPLETIONS, "chat/completions": CHAT}
