"""Print lines per source file, per room, the median and the largest. Information, not a gate."""

from __future__ import annotations

from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "foreword"


def count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def main() -> None:
    sizes = {path.relative_to(PACKAGE): count(path) for path in sorted(PACKAGE.rglob("*.py"))}
    rooms: dict[str, list[int]] = {}
    for path, lines in sizes.items():
        print(f"{lines:6d}  {path.as_posix()}")
        rooms.setdefault(path.parts[0] if len(path.parts) > 1 else ".", []).append(lines)
    print(f"\n{'room':12s} files  lines  median  largest")
    for room, lines in sorted(rooms.items()):
        print(f"{room:12s} {len(lines):5d} {sum(lines):6d} {median(lines):7.0f} {max(lines):8d}")
    # An empty __init__ would make the median look better than the files people read.
    read = [lines for path, lines in sizes.items() if path.name != "__init__.py"]
    tests = sum(count(path) for path in (ROOT / "tests").rglob("*.py"))
    print(
        f"\nsrc: {sum(sizes.values())} lines in {len(sizes)} files; without __init__: "
        f"median {median(read):.0f}, largest {max(read)}; tests: {tests} lines"
    )


if __name__ == "__main__":
    main()
