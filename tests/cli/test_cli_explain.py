"""`generate --explain`: colours on a terminal, braces under NO_COLOR, a table everywhere."""

from __future__ import annotations

import re
import sys

import pytest

from foreword.cli import explain
from foreword.cli.explain import SourceRow, painted, pieces_of
from foreword.outputs import CompletionOutput

COPY = "abcabcabcabcabc"
COMMON = ("--prompt", COPY, "--raw", "--temperature", 0, "--max-tokens", 48, "--ignore-eos")
NGRAM = ("--drafter", "ngram")
TITLES = ["source", "calls", "drafted", "accepted", "tokens", "time"]
ROWS = [SourceRow("b", 3, 9, 4, 4, 0.1), SourceRow("a", 3, 9, 2, 2, 0.1)]
ROWS += [SourceRow("target", 9, 0, 0, 5, 0.2)]


@pytest.fixture
def terminal(monkeypatch):
    """stdout and stderr are a terminal; what is written stays captured."""

    def pretend(**environment):
        for name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        for stream in (sys.stdout, sys.stderr):
            monkeypatch.setattr(stream, "isatty", lambda: True)

    return pretend


def plain_text(cli, tiny_path, *words):
    ran = cli("generate", tiny_path, *COMMON, *words, "--json")
    return ran.json["outputs"][0]["text"]


def table_of(err):
    lines = [line.split("\t") for line in err.splitlines() if "\t" in line]
    assert lines[0] == TITLES
    return {line[0]: dict(zip(TITLES, line, strict=True)) for line in lines[1:]}


def test_in_a_pipe_the_text_is_untouched_and_the_table_adds_up(cli, tiny_path):
    ran = cli("generate", tiny_path, *COMMON, *NGRAM, "--explain")
    assert ran.status == 0
    assert ran.out == plain_text(cli, tiny_path) + "\n"
    rows = table_of(ran.err)
    assert list(rows) == ["ngram", "target"]
    assert int(rows["ngram"]["tokens"]) + int(rows["target"]["tokens"]) == 48
    assert int(rows["ngram"]["tokens"]) > 0
    assert rows["ngram"]["accepted"].split()[0] == rows["ngram"]["tokens"]
    assert int(rows["ngram"]["drafted"]) >= int(rows["ngram"]["tokens"])
    assert 0 < int(rows["ngram"]["calls"]) <= int(rows["target"]["calls"])
    assert all(re.fullmatch(r"\d+\.\d ms", row["time"]) for row in rows.values())
    assert float(rows["target"]["time"].split()[0]) > 0


def test_without_the_option_there_is_no_table(cli, tiny_path):
    ran = cli("generate", tiny_path, *COMMON)
    assert "source\t" not in ran.err


def test_json_has_the_table_and_the_pieces(cli, tiny_path):
    ran = cli("generate", tiny_path, *COMMON, *NGRAM, "--explain", "--json")
    assert ran.err == ""
    (output,) = ran.json["outputs"]
    explained = ran.json["explain"]
    assert [row["source"] for row in explained["sources"]] == ["ngram", "target"]
    assert sum(row["tokens"] for row in explained["sources"]) == len(output["token_ids"])
    (pieces,) = explained["outputs"]
    assert "".join(piece["text"] for piece in pieces) == output["text"]
    guessed = sum(piece["source"] == "ngram" for piece in pieces)
    assert guessed == explained["sources"][0]["accepted"]
    assert "explain" not in cli("generate", tiny_path, *COMMON, "--json").json


def test_a_composite_shows_its_sources_and_the_time_of_its_own(cli, tiny_path):
    ran = cli("generate", tiny_path, *COMMON, "--explain", "--drafter", "hierarchy")
    rows = table_of(ran.err)
    assert (
        {"hierarchy", "ngram", "lookahead", "target"}
        >= set(rows)
        >= {"hierarchy", "ngram", "target"}
    )
    assert rows["hierarchy"]["drafted"] == "0"
    assert int(rows["ngram"]["calls"]) > 0


def test_plain_decoding_is_all_the_targets(cli, tiny_path):
    rows = table_of(cli("generate", tiny_path, *COMMON, "--explain", "--drafter", "none").err)
    assert list(rows) == ["target"]
    assert rows["target"]["tokens"] == rows["target"]["calls"] == "48"


def test_a_batch_explains_each_output(cli, tiny_path):
    words = ("--prompt", "xyzxyzxyz", *COMMON, "--explain")
    ran = cli("generate", tiny_path, *words)
    assert ran.out.count("== prompt") == 2
    rows = table_of(ran.err)
    assert sum(int(row["tokens"]) for row in rows.values()) == 96


def test_a_stop_string_cuts_the_pieces(cli, tiny_path):
    text = plain_text(cli, tiny_path)
    words = ("--stop", text[8:10], "--explain", "--json")
    ran = cli("generate", tiny_path, *COMMON, *words)
    (output,), (pieces,) = ran.json["outputs"], ran.json["explain"]["outputs"]
    assert "".join(piece["text"] for piece in pieces) == output["text"]
    assert len(pieces) == len(output["token_ids"])


def test_colours_on_a_terminal(terminal):
    terminal()
    assert explain.style() == "colours"
    text = painted([("x", ""), ("y", "b"), ("z", "b"), ("w", "a")], ROWS, "colours")
    assert text == "x\x1b[32myz\x1b[0m\x1b[36mw\x1b[0m"


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_braces_where_colours_are_not_wanted(terminal, environment):
    terminal(**environment)
    assert explain.style() == "braces"
    text = painted([("x", ""), ("y", "b"), ("z", "b"), ("", "a"), ("w", "a")], ROWS, "braces")
    assert text == "x{b:yz}{a:w}"


def test_an_empty_no_color_means_colours(terminal):
    terminal(NO_COLOR="")
    assert explain.style() == "colours"


def test_no_terminal_no_marks(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert explain.style() == "plain"
    assert painted([("x", ""), ("y", "b")], ROWS, "plain") == "xy"


def test_more_sources_than_colours_start_again():
    rows = [SourceRow(f"s{number}", 1, 1, 1, 1, 0.0) for number in range(14)]
    assert explain.colour_of("s12", rows) == explain.colour_of("s0", rows)


def test_the_drawn_table_is_the_legend(terminal, capsys):
    terminal()
    explain.show_table(ROWS)
    drawn = capsys.readouterr().err
    for row in ROWS:
        assert row.source in drawn
    assert "44%" in drawn


def test_characters_of_several_tokens_belong_to_their_last(tiny_path):
    from foreword.text.folder import load_folder

    tokenizer = load_folder(tiny_path)
    ids = list("aé!".encode())
    output = CompletionOutput(
        0, "aé!", ids, None, None, "length", None, 1, {}, {}, ["", "a", "b", ""]
    )
    assert pieces_of(tokenizer, [65], output) == [("a", ""), ("", "a"), ("é", "b"), ("!", "")]
