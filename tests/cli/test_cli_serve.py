"""`foreword serve`: what is wrong is said before the model is loaded."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

GONE = "/no/such/model"  # loading it would be another error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--port", 70000), "--port must be 0 .. 65535"),
        (("--max-body-bytes", 0), "--max-body-bytes must be >= 1"),
        (("--drain-timeout", -1), "--drain-timeout must be >= 0"),
        (("--api-key", " "), "--api-key is empty"),
        (("--host", "no.such.host.invalid"), "--host no.such.host.invalid"),
    ],
)
def test_options_that_cannot_work(cli, words: tuple[object, ...], said: str):
    ran = cli("serve", GONE, *words)
    assert (ran.status, ran.out) == (1, "")
    assert said in ran.err


def test_a_port_in_use(cli):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = cli("serve", GONE, "--port", port)
    assert ran.status == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ran.err


def test_a_config_file_counts(cli, tmp_path: Path):
    config = tmp_path / "serve.yaml"
    config.write_text("port: 70000\n")
    assert "got 70000" in cli("serve", GONE, "--config", config).err


def test_parsers_are_checked(cli, tiny_path: Path):
    ran = cli("serve", tiny_path, "--port", 0, "--tool_call_parser", "crystal")
    assert ran.status == 1
    assert "crystal" in ran.err


def test_other_commands_do_not_have_its_options(cli, tiny_path: Path):
    for words in (("--host", "x"), ("--served_model_name", "x"), ("--reasoning-parser", "x")):
        ran = cli("generate", tiny_path, "--prompt", "x", *words)
        assert ran.status == 2
        assert "belongs to foreword serve" in ran.err
