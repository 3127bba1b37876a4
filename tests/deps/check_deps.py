#!/usr/bin/env python3
"""Holds the dependency tree to deny.toml, SPECIFICATION.md and advisories.toml beside it, with Python's own library alone.

Checked over `cargo metadata`, for the musl targets that ship:
licences, banned crates, sources, duplicate versions, the number of crates in bcd,
and yanked versions (cargo itself compares the lock file with the registry's index). Over the lock files,
whatever target a crate is for: published advisories.

Prints one line a check and, last, `N passed, N failed`; exits 1 when one failed.
"""

import json
import os
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import promises  # noqa: E402

TARGETS = ("x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl")
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"


def metadata(target, features):
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    if features:
        command += ["--features", ",".join(features)]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)


def tree(meta, kinds):
    """The packages that bcd reaches over dependencies of the given kinds (None is a normal one)."""
    nodes = {node["id"]: node for node in meta["resolve"]["nodes"]}
    packages = {package["id"]: package for package in meta["packages"]}
    root = next(p["id"] for p in meta["packages"] if p["name"] == "bcd" and p["source"] is None)
    seen, todo = set(), [root]
    while todo:
        for dep in nodes[todo.pop()]["deps"]:
            if dep["pkg"] not in seen and any(kind["kind"] in kinds for kind in dep["dep_kinds"]):
                seen.add(dep["pkg"])
                todo.append(dep["pkg"])
    return sorted((packages[i] for i in seen), key=lambda p: (p["name"], p["version"]))


def is_macro(package):
    return any("proc-macro" in target["kind"] for target in package["targets"])


def shipped(meta, target):
    """What is linked into bcd: its normal tree as cargo builds it, without derive macros. The metadata
    would not do: they unite the features that anything in the workspace asks for."""
    command = ["cargo", "tree", "--locked", "--package", "bcd", "--target", target, "--edges", "normal,no-proc-macro"]
    command += ["--prefix", "none", "--format", "{p}"]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    known = {tuple(line.split()[:2]) for line in text.splitlines()}
    packages = (p for p in meta["packages"] if (p["name"], "v" + p["version"]) in known)
    return [package for package in packages if package["name"] != "bcd"]


def licence_allowed(expression, allowed):
    """A small reader of SPDX expressions: OR needs one side, AND all; `/` is an old form of OR."""
    tokens = expression.replace("/", " OR ").replace("(", " ( ").replace(")", " ) ").split()

    def either(at):
        value, at = both(at)
        while at < len(tokens) and tokens[at] == "OR":
            right, at = both(at + 1)
            value = value or right
        return value, at

    def both(at):
        value, at = one(at)
        while at < len(tokens) and tokens[at] == "AND":
            right, at = one(at + 1)
            value = value and right
        return value, at

    def one(at):
        if tokens[at] == "(":
            value, at = either(at + 1)
            return value, at + 1
        name, at = tokens[at], at + 1
        if at + 1 < len(tokens) and tokens[at] == "WITH":
            name, at = f"{name} WITH {tokens[at + 1]}", at + 2
        return name in allowed, at

    return either(0)[0]


def number(version):
    return tuple(int(part) for part in version.split("+")[0].split("-")[0].split("."))


def locked():
    """Name and version of every crate from a registry in the lock files, whatever target or feature it is for."""
    packages = []
    for lock in ("Cargo.lock", "fuzz/Cargo.lock"):
        packages += tomllib.loads((ROOT / lock).read_text())["package"]
    return sorted({(p["name"], p["version"]) for p in packages if "source" in p})


def duplicates(packages):
    versions = {}
    for package in packages:
        versions.setdefault(package["name"], set()).add(package["version"])
    return {name: sorted(found) for name, found in versions.items() if len(found) > 1}


def yanked():
    """Cargo warns of yanked versions when it installs from a lock file; a dry run compiles nothing."""
    run = subprocess.run(
        ["cargo", "install", "-Zunstable-options", "--dry-run", "--locked", "--path", ".",
         "--features", "control-plane", "--root", "target/index-check"],
        cwd=ROOT, capture_output=True, text=True, env=dict(os.environ, RUSTC_BOOTSTRAP="1"))
    lines = run.stderr.splitlines()
    if run.returncode != 0:
        return ["cargo could not compare the lock file with the index: " + (lines or ["no message"])[-1]]
    return [line for line in lines if "is yanked in registry" in line]


def main():
    policy = tomllib.loads((ROOT / "deny.toml").read_text())
    allowed = set(policy["licenses"]["allow"])
    banned = {entry["crate"]: entry["reason"] for entry in policy["bans"]["deny"]}
    skipped = [entry["crate"].split("@") for entry in policy["bans"]["skip"]]
    results = []

    def check(name, problems):
        results.append(not problems)
        print(f"{'FAILED' if problems else 'ok    '}  {name}")
        for problem in problems:
            print(f"        {problem}")

    everything = {}
    for target in TARGETS:
        plain = metadata(target, [])
        own = tree(plain, {None, "build"})
        full = tree(metadata(target, ["control-plane", "fakehw"]), {None, "build", "dev"})
        everything.update({p["id"]: p for p in full})
        linked = shipped(plain, target)
        arch = target.split("-")[0]
        check(f"{arch}: no crate twice in bcd",
              [f"{name}: {', '.join(v)}" for name, v in duplicates(own).items()])
        unexplained = []
        for name, versions in duplicates(full).items():
            old = [v for v in versions
                   if not any(s[0] == name and (v == s[1] or v.startswith(s[1] + ".")) for s in skipped)]
            if len(old) > 1:
                unexplained.append(f"{name}: {', '.join(versions)} (deny.toml, [bans] skip, names the exceptions)")
        check(f"{arch}: no crate twice in better-compute and the tests, but those deny.toml excuses", unexplained)
        for name, what, crates in (("bcd.crates", "are linked into bcd", linked), ("bcd.crates.build", "build bcd", own)):
            promise = promises.record(name, len(crates))
            check(f"{arch}: {len(crates)} crates {what}, {promise.promise}",
                  [] if promise.kept(len(crates)) else [", ".join(sorted(p["name"] for p in crates))])

    packages = sorted(everything.values(), key=lambda p: (p["name"], p["version"]))
    unused = [f"{name}@{version}: deny.toml excuses a duplicate that is gone" for name, version in skipped
              if not any(p["name"] == name and (p["version"] + ".").startswith(version + ".") for p in packages)]
    check("every excuse in deny.toml is still needed", unused)
    check("licences", [f"{p['name']} {p['version']}: {p['license'] or 'no licence given'}" for p in packages
                       if not p["license"] or not licence_allowed(p["license"], allowed)])
    check("banned crates", [f"{p['name']}: {banned[p['name']]}" for p in packages if p["name"] in banned])
    check("sources", [f"{p['name']}: {p['source']}" for p in packages
                      if p["source"] not in (None, REGISTRY)])
    known = tomllib.loads((ROOT / "tests/deps/advisories.toml").read_text())
    registry = locked()
    check("advisories known to this repository",
          [f"{name} {version}: {a['id']}, {a['what']}; fixed in {a['fixed']}"
           for a in known["advisory"] for name, version in registry
           if name == a["crate"] and number(version) < number(a["fixed"])])
    check("every locked crate was looked up in the advisory database",
          [f"{name}: read crates/{name} of RustSec's database, and add it to tests/deps/advisories.toml"
           for name in sorted({name for name, _ in registry} - set(known["read"]))])
    check("yanked versions", yanked())

    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
