"""Adapters on the command line: generate, chat, audit and replay."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import apparatus
from adapter_files import factors, folder_of
from foreword.model.weights.open import open_checkpoint

WORDS = ("--max-tokens", 10, "--ignore-eos", "--temperature", 0, "--raw")
CHAT = ("--max-tokens", 4, "--ignore-eos", "--temperature", 0)


@cache
def folder(name: str, seed: int) -> Path:
    config = open_checkpoint(str(apparatus.target())).config
    path = apparatus.scratch() / f"cli-{name}-{seed}"
    return folder_of(path, factors(config, seed, 4, size=0.25))


def named(name: str, seed: int = 1) -> tuple[Any, ...]:
    return "--lora-modules", f"{name}={folder(name, seed)}"


def test_an_adapter_by_name_verified_and_replayed(cli: Any, tiny_path: Any, tmp_path: Path) -> None:
    plain = cli("generate", tiny_path, "--prompt", "hello", *WORDS, "--json").json
    twice = (
        *named("red"),
        "--lora-modules",
        json.dumps({"name": "b", "path": str(folder("b", 2))}),
    )
    given = ("generate", tiny_path, "--prompt", "hello", *WORDS, *twice, "--adapter", "red")
    ran = cli(*given, "--verify", "--json")
    assert ran.status == 0, ran.err
    assert ran.json["verify"]["identical"] is True
    (one,), (without,) = ran.json["outputs"], plain["outputs"]
    assert one["token_ids"] != without["token_ids"]
    assert one["receipt"]["adapter"]["name"] == "red"
    assert without["receipt"]["adapter"] is None
    streamed = cli(*given, "--enable-lora")
    assert streamed.out == one["text"] + "\n"
    assert "--enable-lora is not needed" in streamed.err

    file = tmp_path / "result.json"
    file.write_text(ran.out)
    again = cli("audit", tiny_path, "--replay", file, *named("another", 1), *named("b", 2))
    assert again.status == 0, again.out
    assert again.out.splitlines()[-1].startswith("identical: 1 results")
    missing = cli("audit", tiny_path, "--replay", file)
    assert missing.status == 1
    assert "adapter 'red' is needed; give it with --lora-modules red=FOLDER" in missing.out
    wrong = cli("audit", tiny_path, "--replay", file, *named("red", 3))
    assert wrong.status == 1
    sha256 = one["receipt"]["adapter"]["sha256"]
    assert f"adapter 'red' sha256 is {sha256} in the receipt" in wrong.out


def test_chat_with_an_adapter(cli: Any, tiny_path: Any) -> None:
    ran = cli("chat", tiny_path, *CHAT, *named("red"), "--adapter", "red", stdin="hi\n")
    assert ran.status == 0, ran.err
    plain = cli("chat", tiny_path, *CHAT, stdin="hi\n")
    assert plain.status == 0
    assert ran.out != plain.out


def test_an_audit_covers_the_adapters_it_is_given(cli: Any) -> None:
    path = apparatus.target(num_layers=1)
    config = open_checkpoint(str(path)).config
    own = folder_of(apparatus.scratch() / "audited", factors(config, 4, 4, size=0.25))
    words = ("--drafters", "noisy", "--backend", "torch", "--numerics", "float32", "--threads", 1)
    ran = cli("audit", path, "--quick", *words, "--lora-modules", f"mine={own}", "--json")
    assert ran.status == 0, ran.out
    assert ran.json["identical"] is True
    assert set(ran.json["adapters"]) == {"mine"}
    bare = 12 + 4  # cases of --quick, and those that end half way
    assert ran.json["num_cases"] > bare


BAD = [
    (("--adapter", "red"), ("there is no adapter 'red'; loaded: none",)),
    ((*named("red"), "--adapter", "blue"), ("there is no adapter 'blue'; loaded: red",)),
    ((*named("red"), *named("red")), ("--lora-modules names 'red' twice",)),
    (("--lora-modules", "red=/nowhere"), ("/nowhere: has no adapter_config.json",)),
]


@pytest.mark.parametrize(("words", "named_words"), BAD)
def test_what_is_wrong_is_named(cli: Any, tiny_path: Any, words: Any, named_words: Any) -> None:
    ran = cli("generate", tiny_path, "--prompt", "hello", *WORDS, *words)
    assert ran.status == 1
    assert ran.out == ""
    assert ran.err.splitlines()[-1].startswith("error: ")
    for word in named_words:
        assert word in ran.err
