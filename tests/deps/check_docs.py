#!/usr/bin/env python3
"""Checks that the documents speak of what is there.

Of every document: each link to a file or heading of the repository leads somewhere. Of docs/security.md: each `path` of the
sources exists, each `path::name` is a function of that file, and the files of what ships that say `unsafe` are those of its
inventory. Of SPECIFICATION.md: each promise is a number that the test or bench it names holds, and no other holds a number
that is not there. Prints `N passed, N failed` last; exits 1 on any breach.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import promises  # noqa: E402

FOLDERS = ("docs", "fuzz", "init", "proto-gen", "ramdisk", "src", "tests", "tools")
FENCE = re.compile(r"^```.*?^```", re.S | re.M)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+)$", re.M)
NAMED = re.compile(r"`((?:src|tests|benches|init|ramdisk|fuzz|tools)/[\w./-]*?)(?:::(\w+))?`")
HELD = re.compile(r'\b(?:hold|record|promise)\(\s*"([\w.-]+)"')
UNSAFE = re.compile(r"\bunsafe\s*(?:\{|fn|impl)")
COMMENT = re.compile(r"//[^\n]*")
# Files that are declared under cfg(test) alone, by their stems.
TESTS_ALONE = re.compile(r"tests|crash$")


def anchors(text):
    """The names that a document's headings are linked by."""
    for heading in HEADING.findall(FENCE.sub("", text)):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def dead_links(document):
    for link in sorted(set(LINK.findall(FENCE.sub("", document.read_text())))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        there = (document.parent / path).resolve() if path else document
        if not there.exists() or not there.is_relative_to(ROOT):
            yield f"{document.relative_to(ROOT)}: {link} leads nowhere"
        elif anchor and anchor not in anchors(there.read_text()):
            yield f"{document.relative_to(ROOT)}: {link}: there is no such heading"


def dangling(text):
    """What a document names and the sources do not have."""
    for path, name in sorted(set(NAMED.findall(text))):
        there = ROOT / path
        if not there.exists():
            yield f"{path} is not there"
        elif name and not re.search(rf"\b(?:fn|def) {name}\b", there.read_text()):
            yield f"{path} has no {name}"


def with_unsafe():
    """The files of what ships in which `unsafe` is said."""
    for folder in ("src", "init/src", "ramdisk/src"):
        for path in (ROOT / folder).rglob("*.rs"):
            if not TESTS_ALONE.search(path.stem) and UNSAFE.search(COMMENT.sub("", path.read_text())):
                yield str(path.relative_to(ROOT))


def loose_promises():
    """Promises that nothing holds, and what is held and not promised."""
    page = promises.page()
    for promise in page.values():
        files = {ROOT / runner.split("::")[0] for runner in promise.runners}
        if not any(path.exists() and f'"{promise.name}"' in path.read_text() for path in files):
            yield f"{promise.name}: what measures it does not name it"
    for folder in ("tests", "benches"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in HELD.findall(path.read_text()):
                if name not in page:
                    yield f"{path.relative_to(ROOT)} holds {name}, which SPECIFICATION.md does not promise"


def main():
    results = []

    def check(name, problems):
        problems = sorted(problems)
        results.append(not problems)
        print(f"{'FAILED' if problems else 'ok    '}  {name}")
        for problem in problems:
            print(f"        {problem}")

    documents = sorted(ROOT.glob("*.md")) + [
        path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))]
    check(f"links of {len(documents)} documents", [dead for document in documents for dead in dead_links(document)])
    text = (ROOT / "docs/security.md").read_text()
    check("docs/security.md: files and tests", dangling(text))
    inventory = text.split("## Where `unsafe` stands")[1].split("\n## ")[0]
    listed = {path for path, _ in NAMED.findall(inventory) if path.endswith(".rs")}
    found = set(with_unsafe())
    check("docs/security.md: files with unsafe",
          [f"{path} says unsafe, and the inventory does not name it" for path in found - listed]
          + [f"{path} says no unsafe any more" for path in listed - found])
    text = promises.PAGE.read_text()
    check("SPECIFICATION.md: files and tests", dangling(text))
    check("SPECIFICATION.md: every promise is held, and no other", loose_promises())
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
