"""A Tokenizer from a Hugging Face folder.

Reads tokenizer.json (required), tokenizer_config.json, special_tokens_map.json, added_tokens.json,
chat_template.jinja and additional_chat_templates/*.jinja. When tokenizer_config.json states
add_bos_token or add_eos_token, that decides; otherwise the post-processor of tokenizer.json does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from foreword.errors import WeightsError
from foreword.text.tokenizer import Tokenizer

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def load_folder(path: str | Path) -> Tokenizer:
    """Raises WeightsError when tokenizer.json is missing, damaged or contradicts its neighbours."""
    folder = Path(path)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise WeightsError(
            f'{folder} has no tokenizer.json; make one with: python -c "from transformers import '
            f"AutoTokenizer as T; T.from_pretrained('{folder}').save_pretrained('{folder}')\""
        )
    try:
        raw = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust library raises bare Exception
        message = str(error).splitlines()[0] if str(error) else "unreadable"
        raise WeightsError(f"{file} is damaged ({message}); fetch the file again") from None
    config = {
        **_read(folder / "special_tokens_map.json"),
        **_read(folder / "tokenizer_config.json"),
    }
    if templates := _templates(folder, config):
        config["chat_template"] = templates
    _add_tokens(raw, config, _read(folder / "added_tokens.json"), folder)
    set_ends(raw, config)
    return Tokenizer(raw, config)


def set_ends(raw: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
    """Make the post-processor agree with explicit add_bos_token / add_eos_token in `config`.

    Raises WeightsError when a flag asks for a token that is not named or not in the vocabulary.
    """
    wanted = {role: config.get(f"add_{role}") for role in ("bos_token", "eos_token")}
    if all(flag is None for flag in wanted.values()):
        return
    before, after = _ends(raw)
    sides = {"bos_token": before, "eos_token": after}
    changed = False
    for role, flag in wanted.items():
        if flag is None or bool(flag) == bool(sides[role]):
            continue
        sides[role] = [_special(raw, config, role)] if flag else []
        changed = True
    if changed:
        first, last = ([f"{text}:0" for text in sides[role]] for role in wanted)
        names = dict.fromkeys(sides["bos_token"] + sides["eos_token"])
        raw.post_processor = processors.TemplateProcessing(
            single=[*first, "$A:0", *last],
            pair=[*first, "$A:0", *last, "$B:1"],
            special_tokens=[(name, raw.token_to_id(name)) for name in names],
        )


def _ends(raw: tokenizers.Tokenizer) -> tuple[list[str], list[str]]:
    """The special tokens the post-processor puts before and after a text."""
    bare = raw.encode("a", add_special_tokens=False).tokens
    full = raw.encode("a", add_special_tokens=True).tokens
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    raise WeightsError("tokenizer.json: its post-processor changes the text's own tokens")


def _special(raw: tokenizers.Tokenizer, config: dict[str, Any], role: str) -> str:
    value = config.get(role)
    text = value.get("content") if isinstance(value, dict) else value
    if not text or raw.token_to_id(text) is None:
        raise WeightsError(
            f"add_{role} is true but {role} is {text!r}, which is not in the vocabulary; "
            f"correct {role} or set add_{role} to false"
        )
    return str(text)


def _add_tokens(
    raw: tokenizers.Tokenizer, config: dict[str, Any], more: dict[str, Any], folder: Path
) -> None:
    """Add what the side files name and tokenizer.json lacks; ids must come out as the files say."""
    decoder: dict[str, Any] = config.get("added_tokens_decoder") or {}
    entries = {int(token): dict(entry) for token, entry in decoder.items()}
    for content, token in more.items():
        entries.setdefault(int(token), {"content": content})
    known = raw.get_added_tokens_decoder()
    for token, entry in sorted(entries.items()):
        if token in known and known[token].content == entry["content"]:
            continue
        flags = {name: bool(entry[name]) for name in FLAGS if name in entry}
        raw.add_tokens([tokenizers.AddedToken(entry["content"], **flags)])
        if raw.token_to_id(entry["content"]) != token:
            raise WeightsError(
                f"{folder}: added token {entry['content']!r} should have id {token} but "
                f"tokenizer.json gives it {raw.token_to_id(entry['content'])}; the files disagree"
            )
    special = {token.content for token in raw.get_added_tokens_decoder().values() if token.special}
    for role in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(role)
        text = value.get("content") if isinstance(value, dict) else value
        if text and text not in special and raw.token_to_id(text) is not None:
            raw.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False)])


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name; files win over tokenizer_config.json."""
    value = config.get("chat_template")
    if isinstance(value, str):
        templates = {"default": value}
    else:
        templates = {entry["name"]: entry["template"] for entry in value or ()}
    if (main := folder / "chat_template.jinja").is_file():
        templates["default"] = main.read_text(encoding="utf-8")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = file.read_text(encoding="utf-8")
    return templates


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise WeightsError(f"{file} is not valid JSON ({error}); fetch the file again") from None
    if not isinstance(value, dict):
        raise WeightsError(f"{file} must hold a JSON object; fetch the file again")
    return value
