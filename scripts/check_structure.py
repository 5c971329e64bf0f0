"""Checks that imports point downwards and that docs/structure.md names every file."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BASE = {"errors", "types", "config"}
ENGINE = {"engine", "session", "loop", "host", "remote", "parts", "resolve", "roster"} | {
    "steps",
    "trace",
    "turns",
    "watch",
}
PARTS = {"logs", "meters", "schedule", "runtime", "model", "text", "checkpoint", "tables", "audio"}
# What each part of the package may import; itself is understood. The schedule stands alone, so
# that it also runs as a simulator; the edge sees the model only through the engine.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "logs": set(),
    "types": BASE,
    "config": BASE,
    "settings": BASE,
    "flags": BASE | {"settings"},
    "meters": BASE,
    "schedule": BASE,
    "audio": BASE,
    "voices": BASE | {"audio"},
    "kernels": BASE,
    "model": BASE | {"kernels"},
    "text": BASE | {"model"},
    "checkpoint": BASE | {"model", "text"},
    "runtime": BASE | {"meters", "model", "kernels", "schedule", "text"},
    **dict.fromkeys(ENGINE, BASE | ENGINE | PARTS),
    "server": BASE | ENGINE | {"audio", "text", "voices", "meters"},
    "tables": BASE | {"schedule"},
    "simulate": BASE | {"loop", "turns", "session", "schedule", "text", "trace", "tables", "bench"},
    "bench": BASE,  # it measures any server, and knows ours from outside only
    "bench.costs": BASE | ENGINE | {"tables", "bench"},
    "bench.stages": BASE | ENGINE | {"runtime", "bench"},  # but for this, from inside
    "bench.link": BASE | ENGINE | {"schedule", "text", "checkpoint", "simulate", "bench"},
    "bench.profile": BASE | ENGINE | {"runtime", "bench"},
    "bench.kernels": BASE | {"model", "kernels", "bench"},
    "bench.quantize": BASE | {"model", "checkpoint", "bench"},
    "cluster": BASE | ENGINE | {"cluster", "server", "settings", "logs"},
    "__init__": BASE | ENGINE,
    **dict.fromkeys(
        ("say", "keep", "doctor", "cli", "__main__"),
        BASE
        | ENGINE
        | {"logs", "settings", "flags", "server", "audio", "text", "checkpoint", "bench", "tables"}
        | {"voices"}
        | {"say", "keep", "doctor", "cli", "__init__", "schedule", "simulate", "cluster"},
    ),
}
# The scheduler gets the time as an argument and waits for nothing; the shared records stay light.
PURE = {"schedule", "errors", "types", "config"}
IMPURE = {"torch", "asyncio", "time", "threading", "datetime"}

UNTRACKED = {"build", "dist", "site"}


def part_of(module: str) -> str:
    """`vivace.text.clean` belongs to `text`; `vivace` itself is `__init__`."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def module_name(path: Path, package: Path) -> str:
    """The dotted name of a source file."""
    names = ["vivace", *path.relative_to(package).with_suffix("").parts]
    return ".".join(names[:-1] if names[-1] == "__init__" and len(names) > 2 else names)


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that is imported, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")
            above = above[: len(above) - node.level + is_package] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            if origin == "vivace":  # `from vivace import text` names a part
                yield from ((node.lineno, f"vivace.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, origin


def direction_faults(root: Path) -> list[str]:
    """Every import that points upwards or out of a pure part."""
    package = root / "src" / "vivace"
    faults = []
    for path in sorted(package.rglob("*.py")):
        module = module_name(path, package)
        part = part_of(module)
        where = path.relative_to(root)
        if part not in MAY_IMPORT:
            faults.append(f"{where}: '{part}' has no place in scripts/check_structure.py yet")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, name in imports(tree, module, path.name == "__init__.py"):
            top = name.split(".")[0]
            if part in PURE and top in IMPURE:
                faults.append(f"{where}:{line}: {part} must not import {top}")
            if top != "vivace":
                continue
            target = part_of(name)
            target = target if target in MAY_IMPORT else "__init__"
            allowed = MAY_IMPORT.get(module.removeprefix("vivace."), MAY_IMPORT[part])
            if target not in allowed | {part}:
                faults.append(f"{where}:{line}: {part} must not import {target}")
    return faults


def files_to_name(root: Path) -> Iterator[str]:
    """Each source file as structure.md writes it, and each folder at the top."""
    package = root / "src" / "vivace"
    for path in sorted(package.rglob("*")):
        hidden = "__pycache__" in path.parts or (
            path.name == "__init__.py" and path.parent != package
        )
        if path.is_file() and not hidden:
            yield path.relative_to(package).as_posix()
    for path in sorted(root.iterdir()):
        if path.is_dir() and path.name not in UNTRACKED and not path.name.startswith("."):
            yield f"{path.name}/"


def naming_faults(root: Path) -> list[str]:
    """Files that docs/structure.md does not name, and names in it without a file."""
    text = (root / "docs" / "structure.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./]+)`", text))
    faults = [
        f"docs/structure.md does not name `{name}`"
        for name in files_to_name(root)
        if name not in named
    ]
    for name in sorted(named):
        is_file = name.endswith("/") or Path(name).suffix in {".py", ".md", ".sh", ".toml"}
        if is_file and not any((base / name).exists() for base in (root, root / "src" / "vivace")):
            faults.append(f"docs/structure.md names `{name}`, which does not exist")
    return faults


def main() -> int:
    """Print every fault; the exit status is 1 if there is one."""
    faults = direction_faults(ROOT) + naming_faults(ROOT)
    print(*faults, sep="\n", end="\n" if faults else "")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
