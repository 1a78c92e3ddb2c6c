"""`generate --beam-width`: what is shown, verified, replayed and refused."""

from __future__ import annotations

import pytest

BEAMS = ("--raw", "--prompt", "one two", "--prompt", "abc", "--beam-width", 3, "--max-tokens", 5)


def test_outputs_scores_and_a_comparison_with_searches_alone(cli, tiny_path):
    ran = cli("generate", tiny_path, *BEAMS, "--n", 2, "--verify")
    assert ran.status == 0, ran.err
    assert ran.out.count("== prompt") == 4
    assert "beam width 3: scores -" in ran.err
    assert "identical: 20 tokens and 20 logprobs (outputs: 4)" in ran.out


def test_a_length_penalty_of_zero_compares_sums(cli, tiny_path):
    """0 is a value, not the absence of one."""
    ran = cli("generate", tiny_path, *BEAMS, "--length-penalty", 0, "--json")
    for one in ran.json["outputs"]:
        searched = one["receipt"]["beam_search"]
        assert searched["length_penalty"] == 0.0
        assert searched["score"] == searched["cumulative_logprob"]


def test_a_search_is_replayed_by_its_score_and_its_tokens(cli, tiny_path, tmp_path):
    file = tmp_path / "beams.json"
    words = ("--early-stopping", "never", "--best-first", "--length-penalty", "0.5", "--n", 3)
    ran = cli("generate", tiny_path, *BEAMS, *words, "--json")
    searched = [one["receipt"]["beam_search"] for one in ran.json["outputs"]]
    assert [one["index"] for one in searched] == [0, 1, 2] * 2
    assert searched[0]["length_penalty"] == 0.5
    assert searched[0]["best_first"] is True
    file.write_text(ran.out)
    assert cli("audit", tiny_path, "--replay", file).status == 0
    score = f'"cumulative_logprob": {searched[0]["cumulative_logprob"]!r}'
    assert score in ran.out
    file.write_text(ran.out.replace(score, '"cumulative_logprob": -1.0'))
    changed = cli("audit", tiny_path, "--replay", file)
    assert changed.status == 1
    assert "the score is -1.0 in the receipt" in changed.out
    file.write_text(ran.out.replace('"beam_width": 3', '"beam_width": 1'))
    assert cli("audit", tiny_path, "--replay", file).status == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--top-p", "0.9"), "--top-p"),
        (("--seed", 3), "--seed"),
        (("--stop", "x"), "--stop"),
        (("--temperature", "0.5"), "temperature"),
        (("--logprobs", 2), "--logprobs"),
        (("--explain",), "--explain"),
        (("--early-stopping", "often"), "--early-stopping"),
        (("--n", 4), "n must be"),
        (("--best-first",), "early_stopping"),
    ],
    ids=str,
)
def test_what_does_not_go_with_beams_is_refused_by_name(cli, tiny_path, words, named):
    ran = cli("generate", tiny_path, *BEAMS, *words)
    assert ran.status == 1
    assert named in ran.err


def test_options_of_a_search_without_one_are_refused(cli, tiny_path):
    ran = cli("generate", tiny_path, "--prompt", "x", "--length-penalty", 2)
    assert ran.status == 1
    assert "--beam-width" in ran.err
