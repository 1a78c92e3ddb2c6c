"""Numbers with suffixes, and the table of other engines' option names."""

from __future__ import annotations

import pytest
import typer

from foreword.cli.aliases import ALIASES, UNSUPPORTED, canonical
from foreword.cli.main import app
from foreword.cli.numbers import decimal, size_text, token_ids, whole_number

NUMBERS = {
    "0": 0, "-1": -1, "512": 512, "8k": 8000, "8K": 8192, "32K": 32768, "1.5k": 1500,
    "1.5K": 1536, "2G": 2 << 30, "2g": 2_000_000_000, "512M": 512 << 20, "2GiB": 2 << 30,
    "2gB": 2_000_000_000, "18446744073709551615": 2**64 - 1,
}  # fmt: skip


@pytest.mark.parametrize(("text", "number"), NUMBERS.items())
def test_whole_numbers(text, number):
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["", "k", "1.5", "1e3", "0x10", "8 kk", "1,000", "1.0001k"])
def test_not_whole_numbers(text):
    with pytest.raises(typer.BadParameter, match="whole number"):
        whole_number(text)


def test_decimals():
    assert [decimal(value) for value in ("0.8", "1e-3", 2)] == [0.8, 1e-3, 2.0]
    with pytest.raises(typer.BadParameter, match="is not a number"):
        decimal("half")


def test_token_ids():
    assert token_ids("1,2,3") == token_ids(" [1, 2, 3] ") == token_ids("1 2 3") == [1, 2, 3]
    assert token_ids("") == []
    for text in ("1,-2", "1;2", "one"):
        with pytest.raises(typer.BadParameter, match="token ids"):
            token_ids(text)


def test_sizes():
    assert [size_text(size) for size in (0, 1023, 1536, 3 << 20, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 TiB",
    ]


def test_the_alias_tables_name_real_options_and_do_not_overlap():
    command = typer.main.get_command(app)
    known = {
        flag.lstrip("-")
        for item in command.commands["generate"].params
        for flag in (*item.opts, *item.secondary_opts)
    }
    assert set(ALIASES.values()) <= known
    assert not set(ALIASES) & known
    assert not set(UNSUPPORTED) & (known | set(ALIASES))
    assert canonical("draft_max") == "num-speculative-tokens"
    assert canonical("top_p") == "top-p"
