"""Foreword and llama.cpp on the same GGUF file, the same token ids and the same threads, in turns.

Theory: both decode by reading every weight once a step, so at batch 1 neither exceeds read
bandwidth / bytes of the file; a prompt and a batch are bound by arithmetic. Foreword is timed as a
user runs it, sampling and text included; llama.cpp by its decode call alone, on the ids that
Foreword chose, with flash attention off and on, the better one counted. Each round runs every case
of both; figures are medians. Last line: one JSON object.

    scripts/bench llamacpp [--model GGUF] [--repeat 5] [--numerics a8] ...
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from foreword.bench.decode import Runs, batch_prompts, engine_cases, fresh_prompt, prompt_of
from foreword.bench.report import rounded
from foreword.bench.rounds import Case, Samples, interleave
from foreword.bench.scale import Scale
from foreword.bench.session import Session, open_session
from foreword.cli.show import table
from foreword.errors import ForewordError
from foreword.model.weights.open import locate

CONTEXT = 700
WORKER = __file__.replace("llamacpp.py", "llamacpp_worker.py")
FLASH = {"off": False, "on": True}


class Peer:
    """llama.cpp in a process of its own, so that neither's threads are the other's."""

    def __init__(self, python: str, path: str, threads: int, length: int) -> None:
        self._process = subprocess.Popen(
            [python, WORKER, path, str(threads), str(length)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.about = self._answer()
        self.same: dict[bool, int] = {}
        self.compared: dict[bool, int] = {}

    def seconds(
        self,
        prompts: Sequence[Sequence[int]],
        following: Sequence[Sequence[int]] | None,
        flash: bool,
    ) -> float:
        """Of a step after the prompts, or of reading them."""
        assert self._process.stdin is not None
        job = {"prompts": prompts, "next": following, "flash": flash}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if following is not None:
            pairs = sum(len(tokens) - 1 for tokens in following)
            self.same[flash] = self.same.get(flash, 0) + answer["same"]
            self.compared[flash] = self.compared.get(flash, 0) + pairs
        return float(answer["seconds"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"error: llama.cpp ended with status {self._process.wait()}; see above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    options = arguments()
    try:
        path = str(locate(options.model))
        if not path.endswith(".gguf"):
            sys.exit(f"error: {path} is no .gguf file, and llama.cpp reads no other; name one")
        given = ("numerics", "quantization", "backend", "isa", "threads")
        chosen = {name: getattr(options, name) for name in given if getattr(options, name)}
        session = open_session(path, chosen, scale(options.tokens))
    except ForewordError as error:
        sys.exit(f"error: {error}")
    length = -(-session.scale.longest // 256) * 256
    peer = Peer(options.python, path, session.limits.threads, length)
    try:
        samples = interleave(cases(session, peer), options.repeat)
    finally:
        peer.close()
        session.close()
    report(session, peer, samples)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench llamacpp", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--python", required=True, help=argparse.SUPPRESS)  # scripts/bench gives it
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a .gguf file or a name")
    parser.add_argument("--repeat", type=_positive, default=5, help="rounds (5)")
    parser.add_argument("--tokens", type=_plural, default=64, help="decoded after a prompt (64)")
    for name in ("numerics", "quantization", "backend", "isa"):
        parser.add_argument(f"--{name}", help="of Foreword; default: the library's")
    parser.add_argument("--threads", type=_positive, help="of both; default: all usable")
    return parser.parse_args()


def _positive(text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= {least}")
    return int(text)


def _plural(text: str) -> int:
    """The time from the first to the last token needs two."""
    return _positive(text, 2)


def scale(tokens: int) -> Scale:
    return Scale(width_context=0, widths=(1,), contexts=(CONTEXT,), new_tokens=tokens)


def cases(session: Session, peer: Peer) -> dict[str, Case]:
    """Every case of Foreword, followed by the same of llama.cpp with both kinds of attention."""
    runs = Runs(session.llm)
    prompts = {
        "decode 0": [prompt_of(session, 1)],
        f"decode {CONTEXT}": [prompt_of(session, CONTEXT)],
        "batch": batch_prompts(session),
    }
    found: dict[str, Case] = {"read": session.limits.read_seconds}
    for name, case in engine_cases(session, runs).items():
        found[name] = case
        for kind, flash in FLASH.items():
            if name == "prefill":
                assert session.scale.prompt is not None
                prompt = fresh_prompt(session.llm, 0, session.scale.prompt)
                found[f"{name} {kind}"] = partial(peer.seconds, [prompt], None, flash)
            else:
                found[f"{name} {kind}"] = partial(_steps, peer, runs, prompts[name], flash)
    return found


def _steps(peer: Peer, runs: Runs, prompts: list[list[int]], flash: bool) -> float:
    """On the ids that Foreword gave; its case ran before this one."""
    return peer.seconds(prompts, runs.ids(prompts), flash)


def report(session: Session, peer: Peer, samples: dict[str, Samples]) -> None:
    counts = {
        "decode 0": 1,
        f"decode {CONTEXT}": 1,
        "prefill": session.scale.prompt,
        "batch": session.scale.batch,
    }
    keys = dict(zip(counts, ("decode", f"decode_{CONTEXT}", "prefill", "batch8"), strict=True))
    ours: dict[str, float] = {}
    theirs: dict[str, float] = {}
    rows = []
    for name, count in counts.items():
        if count is None or name not in samples:
            continue
        ours[keys[name]] = count / samples[name].median
        each = {kind: count / samples[f"{name} {kind}"].median for kind in FLASH}
        theirs[keys[name]] = max(each.values())
        ratio = ours[keys[name]] / theirs[keys[name]]
        shown = [f"{one:.1f}" for one in (ours[keys[name]], *each.values())]
        rows.append((keys[name], *shown, f"{ratio:.2f}x"))
    bandwidth = session.limits.read_bytes / samples["read"].median
    print(f"tokens/s, {session.limits.threads} threads, reads {bandwidth / 1e9:.1f} GB/s")
    table(("what", "foreword", "llama.cpp flash off", "flash on", "foreword / best"), rows)
    agreement = {kind: peer.same[flash] / peer.compared[flash] for kind, flash in FLASH.items()}
    shown = ", ".join(f"{share:.1%} (flash {kind})" for kind, share in agreement.items())
    print(f"llama.cpp would have chosen Foreword's next token at {shown} of all positions")
    print(f"llama-cpp-python {peer.about['version']}: {peer.about['system']}")
    figures = {
        **session.setting(),
        "read_gb_s": bandwidth / 1e9,
        "ceiling_tokens_per_s": bandwidth / session.demand.weight_bytes,
        "llamacpp_version": peer.about["version"],
        "foreword_tokens_per_s": ours,
        "llamacpp_tokens_per_s": theirs,
        "same_tokens": agreement,
        "ratio": {key: ours[key] / theirs[key] for key in ours},
    }
    print(json.dumps({key: rounded(value) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
