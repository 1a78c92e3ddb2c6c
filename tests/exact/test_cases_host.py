"""Cases V113-V115 on `foreword generate`: old processors, few processors, shared processors.

Each run is a process of its own, as a user starts it.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import apparatus
from foreword.errors import KernelUnavailable
from foreword.kernels.cpu.backend import ISAS, load_native

try:
    HERE = [isa for isa in ISAS if load_native().has_isa(isa)]
except KernelUnavailable:
    HERE = []
needs_native = pytest.mark.skipif(not HERE, reason="the cpu extension is not built")
needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system has no affinity calls"
)
WORDS = ("--prompt", "one two three", "--max-tokens", "20", "--seed", "3", "--json")

# Runs the command line in this process, and counts threads of our pools while it does.
COUNTING = """
import sys, threading, time
from pathlib import Path
most, done = 0, threading.Event()
def watch():
    global most
    while not done.is_set():
        names = []
        for task in Path("/proc/self/task").iterdir():
            try:
                names.append((task / "comm").read_text())
            except OSError:
                pass  # a thread that ended
        most = max(most, sum(name.startswith("foreword-") for name in names))
        time.sleep(0.002)
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
from foreword.cli.main import run
status = run(sys.argv[1:])
done.set()
watcher.join()
print(most + 1, file=sys.stderr)
sys.exit(status)
"""


def start(*words: str, program: str = "", cpus: int | None = None, **variables: str) -> Any:
    """`foreword generate` on the tiny model; cpus: how many it is bound to."""
    command = ["-c", program] if program else ["-m", "foreword"]
    bound = sorted(os.sched_getaffinity(0))[:cpus] if cpus else None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    if "OMP_NUM_THREADS" not in variables:
        environment.pop("OMP_NUM_THREADS", None)
    return subprocess.Popen(
        [sys.executable, *command, "generate", str(model()), *WORDS, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=functools.partial(os.sched_setaffinity, 0, bound) if bound else None,
    )


def finish(process: Any) -> tuple[dict[str, Any], str]:
    """The one output and stderr."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    (result,) = json.loads(out)["outputs"]
    return result, err


@functools.cache
def model() -> Path:
    return apparatus.target(dtype="bfloat16")


@functools.cache
def alone() -> list[int]:
    token_ids: list[int] = finish(start())[0]["token_ids"]
    return token_ids


@needs_native
@pytest.mark.parametrize(
    ("isa", "numerics"),
    [(isa, None) for isa in HERE if isa != "portable"] + [("portable", "bfloat16")],
)
def test_v113_half_precision_on_every_instruction_set(isa: str, numerics: str | None) -> None:
    """V113: whatever the processor has, the run ends (no illegal instruction), its receipt names
    the arithmetic, and a line says when bfloat16 is not native."""
    words = ["--isa", isa, *(["--numerics", numerics] if numerics else [])]
    result, err = finish(start(*words))
    told = result["receipt"]["numerics"]
    native = isa in ("amx", "avx512")
    assert told["isa"] == isa
    assert told["mode"] == (numerics or ("bfloat16" if native else "float32"))
    assert (told["arithmetic"] is None) == (native or told["mode"] == "float32")
    assert ("no bfloat16" in err or "for want of bfloat16" in err) == (not native)


@needs_native
@needs_affinity
@pytest.mark.parametrize("cpus", [1, 2])
def test_v114_no_more_threads_than_processors_allowed(cpus: int) -> None:
    """V114: bound to some processors (taskset, a cpuset), it computes on so many threads, says
    nothing about it, and gives the same tokens. No call that needs privileges is made."""
    if len(os.sched_getaffinity(0)) < cpus:
        pytest.skip(f"only {len(os.sched_getaffinity(0))} processors here")
    result, err = finish(start(program=COUNTING, cpus=cpus))
    assert result["token_ids"] == alone()
    *said, threads = err.split()
    assert int(threads) == cpus, err
    assert "error" not in said


@needs_native
@pytest.mark.parametrize(("asked", "threads"), [("1", 1), ("3", 3)])
def test_v115_the_users_number_of_threads_wins(asked: str, threads: int) -> None:
    """V115: OMP_NUM_THREADS, also above the number of processors."""
    result, err = finish(start(program=COUNTING, OMP_NUM_THREADS=asked))
    assert int(err.split()[-1]) == threads
    assert result["token_ids"] == alone()


@needs_native
def test_v115_two_processes_at_once() -> None:
    """V115: more threads than processors: both end, with the tokens of one alone."""
    expected = alone()
    both = [start("--threads", "2"), start("--threads", "2")]
    for process in both:
        assert finish(process)[0]["token_ids"] == expected


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_v115_a_fork_after_the_pools_have_started() -> None:
    """V115: torch has computed in parallel and our pool has run; the child generates all the same,
    on the model it inherited and on one of its own."""
    program = """
import os, signal, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of forks with threads
import torch
from foreword import LLM, SamplingParams
(torch.ones(600, 600) @ torch.ones(600, 600)).sum()
make = lambda: LLM(sys.argv[1], threads=2, max_model_len=64)
params = SamplingParams(temperature=0.0, max_tokens=8)
run = lambda llm: llm.generate([[1, 2, 3]], params)[0].outputs[0].token_ids
llm = make()
wanted = run(llm)
child = os.fork()
if child == 0:
    signal.alarm(120)
    same = run(llm) == wanted
    other = make()
    same = same and run(other) == wanted
    other.close(); llm.close()
    os._exit(0 if same else 3)
assert os.waitpid(child, 0)[1] == 0
assert run(llm) == wanted
llm.close()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(model())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
