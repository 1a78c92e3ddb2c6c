"""`foreword generate` with a form: the four options, what --verify and --explain say, replay."""

from __future__ import annotations

import json

import pytest

from foreword.cli.forms import FormOptions, structured_output
from foreword.errors import ConfigError, RequestError

PROMPT = ("--prompt", "hello", "--seed", 1, "--max-tokens", 80)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}}
SCHEMA |= {"required": ["n"], "additionalProperties": False}


def text_of(ran) -> str:
    assert ran.status == 0, ran.err
    return ran.json["outputs"][0]["text"]


def test_each_option_gives_the_text_its_form(cli, tiny_path, tmp_path):
    words = ("generate", tiny_path, *PROMPT, "--raw", "--json")
    schema, grammar = tmp_path / "schema.json", tmp_path / "forms.lark"
    schema.write_text(json.dumps(SCHEMA))
    grammar.write_text('start: "x" /[ab]{2}/')
    for given in (json.dumps(SCHEMA), schema):
        assert list(json.loads(text_of(cli(*words, "--json-schema", given)))) == ["n"]
    assert text_of(cli(*words, "--regex", "[0-9]{3}")).isdigit()
    assert text_of(cli(*words, "--choice", "red", "--choice", "blue")) in ("red", "blue")
    for given in (grammar, grammar.read_text(), 'root ::= "x" [ab] [ab]'):
        assert text_of(cli(*words, "--grammar", given)).startswith("x")


def test_verify_explain_and_replay(cli, tiny_path, tmp_path):
    words = ("generate", tiny_path, *PROMPT, "--raw", "--choice", "a text that is forced")
    ran = cli(*words, "--verify", "--explain")
    assert ran.status == 0, ran.err
    assert "identical: " in ran.out
    assert "grammar" in ran.err
    assert "a text that is forced" in ran.out
    shown = cli(*words, "--explain", "--json")
    rows = {row["source"]: row for row in shown.json["explain"]["sources"]}
    assert rows["grammar"]["accepted"] == rows["grammar"]["drafted"] > 0
    stored = tmp_path / "out.json"
    stored.write_text(shown.out)
    again = cli("audit", tiny_path, "--replay", stored)
    assert again.status == 0, again.out + again.err
    receipt = shown.json["outputs"][0]["receipt"]
    receipt["sampling"]["structured_outputs"]["choice"] = ["another text"]
    stored.write_text(
        json.dumps(shown.json | {"outputs": [shown.json["outputs"][0] | {"receipt": receipt}]})
    )
    assert cli("audit", tiny_path, "--replay", stored).status == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--regex", "["), "regex cannot be compiled: unclosed character class"),
        (("--regex", "a", "--choice", "b"), "one form only, not --regex and --choice"),
        (("--json-schema", "no-such-file.json"), "no-such-file.json: cannot be read"),
        (("--json-schema", "{"), "json is not valid JSON"),
        (("--grammar", "missing.lark"), "missing.lark: cannot be read"),
    ],
    ids=range(5),
)
def test_a_bad_form_is_one_line(cli, tiny_path, words, message):
    ran = cli("generate", tiny_path, *PROMPT, *words)
    assert ran.status == 1
    assert message in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_no_option_is_no_form():
    assert structured_output(FormOptions()) is None
    with pytest.raises(RequestError):
        structured_output(FormOptions(regex="a", grammar="start: b"))
    with pytest.raises(ConfigError):
        structured_output(FormOptions(json_schema="x" * 5000))
