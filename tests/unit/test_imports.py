"""Imports point down, the engine sees no implementation, and most rooms know no torch.

The rules are data (LEVELS, TORCH_ROOMS, ...) over the syntax trees of the package. Imports under
`if TYPE_CHECKING` are words for the reader and are not followed. Every rule is also tried on
planted violations, so that a checker that sees nothing cannot pass.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src"
PACKAGE = SOURCE / "foreword"

# A module may import modules of a lower level and of its own room, nothing else.
LEVELS = {
    "errors": 0, "families": 0, "structured": 0, "params": 0, "types": 0, "protocols": 0,
    "config": 0, "machine": 0, "version": 0, "compiled": 0,
    "text": 1, "scheduler": 1, "kernels": 1,
    "sample": 2, "kv": 2, "model": 2, "chat": 2,
    "draft": 3, "tree": 3, "accept": 3, "verify": 3,
    "engine": 4,
    "adapters": 3, "fit": 3, "cost": 3, "pace": 4, "acceptance": 4, "build": 5,
    "outputs": 6, "prompts": 6, "receipt": 6, "echo": 7, "beam": 7, "asks": 8, "runner": 9,
    "llm": 10,
    "serve": 11, "bench": 11, "audit": 11, "cli": 12,
    "": 13, "__main__": 13,
}  # fmt: skip
WORDS = {room for room, level in LEVELS.items() if level == 0}

# Words too, wherever they are kept: the integers of a pass and the shape of a model.
PLAIN = {"foreword.model.batch", "foreword.model.config"}
FORM = "foreword.model.weights.grouped"  # what a quantised matrix is; kernels take it
TORCH_ROOMS = {"kernels", "model"}
TORCH_FILES = {"foreword.kv.pool", "foreword.audit.host"}  # the latter flips torch's switches

# In these folders a file that defines `make` is a member of the family; members stay strangers.
FAMILIES = {"draft", "tree", "accept", "kv", "sample", "chat"}
BACKENDS = tuple(f"foreword.kernels.{name}" for name in ("reference", "torch", "cpu", "cuda"))

ENGINE_MAY_SEE = PLAIN | {f"foreword.{name}" for name in WORDS | {"scheduler", "verify"}}


class Import(NamedTuple):
    line: int
    target: str  # a module: foreword.kv.pool, torch, numpy, ...


class Module(NamedTuple):
    name: str  # foreword.draft.ngram
    tree: ast.Module

    @property
    def room(self) -> str:
        return room_of(self.name)


def room_of(name: str) -> str:
    """foreword.draft.ngram -> draft; the package itself -> nothing."""
    return name.split(".")[1] if "." in name else ""


def level_of(name: str) -> int:
    return 0 if name in PLAIN | {FORM} else LEVELS[room_of(name)]


def package_modules() -> dict[str, Module]:
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return modules


MODULES = package_modules()


def imports(module: Module, known: set[str]) -> Iterator[Import]:
    """Every import that can run, also inside functions. `from foreword.kv import pool` names the
    module foreword.kv.pool; `from foreword import x` without such a module names the package."""
    for node in _running(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module.name}:{node.lineno}: write imports in full"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield Import(node.lineno, full if full in known else str(node.module))


def _running(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _running(child)


def is_member(module: Module) -> bool:
    names = {node.name for node in module.tree.body if isinstance(node, ast.FunctionDef)}
    return "make" in names


def under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def violations(module: Module, modules: dict[str, Module]) -> list[str]:
    if module.room not in LEVELS:
        return [f"{module.name}: give room {module.room!r} a level in LEVELS"]
    found = []
    for line, target in sorted(set(imports(module, set(modules)))):
        if under(target, "torch") and not torch_allowed(module):
            reason = "torch is for kernels/, model/ and kv/pool.py"
        elif not under(target, "foreword"):
            continue
        else:
            reason = _wrong_direction(module, target, modules)
        if reason:
            found.append(f"{module.name}:{line} imports {target}: {reason}")
    return found


def torch_allowed(module: Module) -> bool:
    return (module.room in TORCH_ROOMS and module.name not in PLAIN) or module.name in TORCH_FILES


def _wrong_direction(module: Module, target: str, modules: dict[str, Module]) -> str | None:
    own, room = module.room, room_of(target)
    if room not in LEVELS:
        return f"room {room!r} has no level in LEVELS"
    if own == "engine" and target not in ENGINE_MAY_SEE:
        return "the engine sees Protocols and words, never an implementation"
    # Words may build on each other (types on errors); Python refuses a circle.
    mine, theirs = level_of(module.name), level_of(target)
    if theirs > mine or (theirs == mine > 0 and own != room):
        return f"level {mine} may not see level {theirs}"
    if own != room:
        return None
    return _strangers(module, target, modules)


def _strangers(module: Module, target: str, modules: dict[str, Module]) -> str | None:
    mine = [backend for backend in BACKENDS if under(module.name, backend)]
    theirs = [backend for backend in BACKENDS if under(target, backend)]
    if mine and theirs and mine != theirs:
        return "kernel backends do not import each other"
    siblings = module.room in FAMILIES and target in modules and module.name != target
    if siblings and is_member(module) and is_member(modules[target]):
        return "siblings of a family do not import each other; build.py hands sources over"
    return None


def test_every_import_points_down():
    found = [line for module in MODULES.values() for line in violations(module, MODULES)]
    assert not found, "\n" + "\n".join(found)


PLANTED = [
    ("foreword.kernels.torch.attention", "from foreword.kv import pool", "may not see level 2"),
    ("foreword.kernels.reference", "import foreword.kernels.torch.linear", "backends"),
    ("foreword.scheduler", "import torch", "torch is for"),
    ("foreword.tree.chain", "def f():\n    from torch import nn", "torch is for"),
    ("foreword.model.batch", "import torch.nn.functional as F", "torch is for"),
    ("foreword.kv.paged", "import torch", "torch is for"),
    ("foreword.engine", "from foreword.accept.exact import Exact", "never an implementation"),
    ("foreword.engine", "from foreword.kv.pool import KVPool", "never an implementation"),
    ("foreword.accept.exact", "import foreword.tree.chain", "level 3 may not see level 3"),
    ("foreword.draft.ngram", "from foreword.engine import Engine", "may not see level 4"),
    ("foreword.draft.ngram", "from foreword.draft import none\ndef make(): ...", "siblings"),
    ("foreword.types", "from foreword.text.tokenizer import Tokenizer", "may not see level 1"),
    ("foreword.surprise", "import json", "a level in LEVELS"),
    ("foreword.llm", "from foreword import LLM", "may not see level 13"),
]  # fmt: skip


def planted(name: str, source: str) -> Module:
    return Module(name, ast.parse(source))


@pytest.mark.parametrize(("name", "source", "complaint"), PLANTED, ids=lambda value: value[:40])
def test_a_planted_wrong_import_is_reported(name, source, complaint):
    member = "def make(): ..."
    around = {
        other: planted(other, member)
        for other in ("foreword.kv.pool", "foreword.draft.none", "foreword.tree.chain", "foreword")
    }
    found = violations(planted(name, source), around)
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("foreword.protocols", "if TYPE_CHECKING:\n    from foreword.model.batch import Batch"),
        ("foreword.types", "from foreword.errors import RequestError"),
        ("foreword.engine", "from foreword.protocols import Drafter\nimport foreword.scheduler"),
        ("foreword.draft.model", "import foreword.draft._context\nimport foreword.model.batch"),
        ("foreword.kernels.ops", "from foreword.model.batch import Batch, Segment"),
        ("foreword.kv.pool", "import torch"),
        ("foreword.kernels.torch.ops", "import torch\nfrom foreword.kernels import ops"),
    ],
)
def test_a_right_import_is_not_reported(name, source):
    assert violations(planted(name, source), MODULES) == []


def torch_free() -> list[str]:
    """Modules that must come up without torch: the integer rooms, and the words."""
    rooms = WORDS | {"scheduler", "tree", "accept", "sample", "text", "chat"}
    return sorted(name for name, module in MODULES.items() if module.room in rooms or name in PLAIN)


def test_integer_rooms_come_up_without_torch():
    names = torch_free()
    assert len(names) >= 8
    script = (
        "import sys, importlib\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, f'{name} brings torch'\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=SOURCE, check=False
    )
    assert run.returncode == 0, run.stderr.strip().splitlines()[-1]
