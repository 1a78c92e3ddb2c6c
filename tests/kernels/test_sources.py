"""What no file of kernels/ may contain: compilers that choose by shape, and global defaults."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import foreword.kernels

ROOT = Path(foreword.kernels.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
FORBIDDEN = {
    "compile": "torch.compile picks code by shape",
    "set_default_dtype": "a default of the host's",
    "set_default_device": "a default of the host's",
    "set_float32_matmul_precision": "a default of the host's",
    "use_deterministic_algorithms": "a default of the host's",
    "manual_seed_all": "the host's random state",
    "set_num_interop_threads": "cannot be put back",
    "scaled_dot_product_attention": "picks a kernel by shape",
    "einsum": "picks an order by shape",
    "matmul": "picks a kernel by the number of rows",
}
ONLY_IN_GUARD = {"set_num_threads": {"guard.py", "workers.py"}, "set_flush_denormal": {"guard.py"}}


def attributes(file: Path) -> set[str]:
    """Names used as `torch....name` or imported from torch."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id == "torch":
                found.add(node.attr)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            found.update(name.name for name in node.names)
    return found


def test_there_are_files_to_read() -> None:
    assert {file.name for file in FILES} >= {"guard.py", "reference.py", "backend.py", "linear.py"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_no_compiler_and_no_global_default(file: Path) -> None:
    used = attributes(file)
    if file.name == "guard.py":
        used -= {"matmul"}  # torch.backends.mkldnn.matmul, the switch
    for name in used & FORBIDDEN.keys():
        pytest.fail(f"{file.name} uses {name}: {FORBIDDEN[name]}")
    for name in used & ONLY_IN_GUARD.keys():
        assert file.name in ONLY_IN_GUARD[name], f"{name} belongs in the guard"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    products = [node for node in ast.walk(tree) if isinstance(node, ast.MatMult)]
    assert not products, "the @ operator picks a kernel by the shapes it meets"
