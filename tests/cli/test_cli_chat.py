"""`foreword chat` with turns from a pipe."""

from __future__ import annotations

import signal

import pytest

import apparatus

LONG = apparatus.target(max_position=512)
SEEDED = ("--seed", 1, "--max-tokens", 6, "--ignore-eos")


def test_turns_answers_and_statistics(cli):
    ran = cli("chat", LONG, *SEEDED, stdin="hello\nagain\n")
    assert ran.status == 0
    assert ran.err.count("TTFT") == 2
    for word in ("tokens/s", "acceptance length", "answers: 2; drafter auto"):
        assert word in ran.err


def test_the_history_is_part_of_the_next_turn(cli, monkeypatch):
    sizes = prompt_sizes(monkeypatch)
    cli("chat", LONG, *SEEDED, stdin="hello\nhello\n/reset\nhello\n")
    assert sizes[1] > sizes[0]
    assert sizes[2] == sizes[0]


def test_reset_brings_back_the_first_answer_and_keeps_the_system_message(cli, monkeypatch):
    sizes = prompt_sizes(monkeypatch)
    ran = cli("chat", LONG, *SEEDED, "--system", "brief", stdin="hello\n/reset\nhello\n")
    first, second = ran.out.split("\n")[:2]
    assert first == second
    assert "new conversation" in ran.err
    cli("chat", LONG, *SEEDED, stdin="hello\n")
    assert sizes[0] == sizes[1] > sizes[2]


def prompt_sizes(monkeypatch):
    """Tokens of each prompt that is run."""
    from foreword.llm import LLM

    sizes = []
    stream = LLM.stream

    def noted(self, prompt, params, date=None, adapter=None):
        sizes.append(len(prompt))
        return stream(self, prompt, params, date, adapter)

    monkeypatch.setattr(LLM, "stream", noted)
    return sizes


def test_commands(cli):
    ran = cli("chat", LONG, *SEEDED, stdin="/help\n/what\n\n/quit\nnever answered\n")
    assert ran.status == 0
    assert "/reset" in ran.out
    assert "Ctrl-C" in ran.out
    assert "unknown command /what; /help" in ran.err
    assert "TTFT" not in ran.err


def test_streaming_and_generate_agree(cli):
    spoken = cli("chat", LONG, *SEEDED, stdin="hello\n").out
    written = cli("generate", LONG, *SEEDED, "--prompt", "hello").out
    assert spoken == written


def test_an_answer_cut_by_the_context_says_so_and_how_to_go_on(cli, tiny_path):
    ran = cli("chat", tiny_path, "--seed", 1, "--ignore-eos", stdin="hello\nmore\n/reset\nhello\n")
    assert ran.status == 0
    assert "the context of 128 tokens is full, the answer was cut; /reset" in ran.err
    assert "the context is full: " in ran.err, "the second turn does not fit"
    assert ran.err.count("TTFT") == 2, "after /reset it goes on"


def test_a_message_too_long_for_the_context_does_not_end_the_chat(cli, tiny_path):
    ran = cli("chat", tiny_path, *SEEDED, stdin="x" * 300 + "\nhello\n")
    assert ran.status == 0
    assert "128 at most; /reset" in ran.err
    assert ran.err.count("TTFT") == 1


def test_an_error_in_a_turn_does_not_end_the_chat(cli, monkeypatch):
    from foreword.errors import RequestError
    from foreword.llm import LLM

    encode = LLM.encode_chat

    def picky(self, messages, **options):
        if messages[-1]["content"] == "bad":
            raise RequestError("no")
        return encode(self, messages, **options)

    monkeypatch.setattr(LLM, "encode_chat", picky)
    ran = cli("chat", LONG, *SEEDED, stdin="bad\nhello\n")
    assert ran.status == 0
    assert "error: no\n" in ran.err
    assert ran.err.count("TTFT") == 1


def test_ctrl_c_ends_the_answer_only(cli, monkeypatch):
    """The signal arrives inside the third step; the step is finished, the answer is cut there."""
    from foreword.engine import Engine

    step, calls = Engine.step, []

    def interrupted(self):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return step(self)

    monkeypatch.setattr(Engine, "step", interrupted)
    words = ("--seed", 1, "--ignore-eos", "--max-tokens", 20, "--drafter", "none")
    handler = signal.getsignal(signal.SIGINT)
    ran = cli("chat", LONG, *words, stdin="hello\nagain\n")
    assert ran.status == 0
    assert "interrupted; the conversation goes on" in ran.err
    assert "3 tokens" in ran.err
    assert "20 tokens" in ran.err
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_twice_leaves(cli, monkeypatch):
    from foreword.engine import Engine

    def stuck(self):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Engine, "step", stuck)
    ran = cli("chat", LONG, *SEEDED, stdin="hello\n")
    assert ran.status == 130


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_the_drafter_changes_no_answer(cli, drafter):
    turns = "abcabcabc\nabcabc\n"
    plain = cli("chat", LONG, *SEEDED, "--temperature", 0, "--drafter", "none", stdin=turns)
    other = cli("chat", LONG, *SEEDED, "--temperature", 0, "--drafter", drafter, stdin=turns)
    assert plain.out == other.out


def test_date_is_checked(cli):
    assert cli("chat", LONG, *SEEDED, "--date", "2024-02-29", stdin="hello\n").status == 0
