#!/usr/bin/env python3
"""Checks that a module uses only modules on the floors below it.

The order stands in src/lib.rs's head, on the line `//! Floors, lowest first: sys, rt, ...`. In a file
of floor F, each `crate::X` must name F itself or an earlier floor. src/main.rs and src/bin/ stand on top of
all. Prints `N passed, N failed` last; exits 1 on any breach.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARK = "//! Floors, lowest first:"
# Comments, strings and character literals: what looks like a path in them is none.
NOISE = re.compile(r"""//[^\n]*|/\*.*?\*/|r(\#*)".*?"\1|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])'""", re.S)
GROUP = re.compile(r"\bcrate::\{")
PATH = re.compile(r"\bcrate::([a-z_][a-z0-9_]*)")


def order(lib):
    text = " ".join(line[3:].strip() for line in lib.splitlines() if line.startswith("//!"))
    found = re.search(re.escape(MARK[4:]) + r"\s*([a-z_, ]+)\.", text)
    if not found:
        sys.exit(f"src/lib.rs has no line `{MARK} ...`")
    return [name.strip() for name in found[1].split(",")]


def used(source):
    """(line, module) for each module of the crate that the source names."""
    code = NOISE.sub(lambda m: "\n" * m[0].count("\n") or " ", source)
    for m in PATH.finditer(code):
        yield code.count("\n", 0, m.start()) + 1, m[1]
    for m in GROUP.finditer(code):
        depth, start = 1, True
        for word in re.finditer(r"[{}]|,|[a-z_][a-z0-9_]*", code[m.end():]):
            token = word[0]
            if token == "{":
                depth += 1
            elif token == "}":
                depth -= 1
                if depth == 0:
                    break
            elif token == ",":
                start = start or depth == 1
                continue
            elif depth == 1 and start:
                yield code.count("\n", 0, m.end() + word.start()) + 1, token
                start = False


def main():
    lib = (ROOT / "src/lib.rs").read_text()
    floors = order(lib)
    declared = set(re.findall(r"^(?:pub )?mod ([a-z_]+);", lib, re.M))
    problems = [f"src/lib.rs declares {name}, which has no floor" for name in sorted(declared - set(floors))]
    checked = 0
    for path in sorted((ROOT / "src").rglob("*.rs")):
        parts = path.relative_to(ROOT / "src").parts
        floor = parts[0].removesuffix(".rs")
        if floor not in floors:
            continue
        checked += 1
        for line, name in used(path.read_text()):
            if name in floors and floors.index(name) > floors.index(floor):
                problems.append(f"{path.relative_to(ROOT)}:{line}: {floor} stands below {name} and may not use it")
    for problem in problems:
        print(f"FAILED  {problem}")
    print(f"ok      floors: {', '.join(floors)} ({checked} files)" if not problems else "floors are broken")
    print(f"{0 if problems else 1} passed, {1 if problems else 0} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
