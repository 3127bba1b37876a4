#!/usr/bin/env python3
"""Durable appends: bcd's journal beside SQLite (WAL, synchronous=FULL), the same producers on the same filesystem.

    python3 benches/journal_vs_sqlite.py [--rounds N] [--dir DIR] [--json PATH]

A commit is an event and a keyed value, as when a command ends; both sides forget events as a gateway acknowledges
them. A producer is a thread that waits for each of its commits to be on the disk. The rounds alternate, who goes first changing
each round, so that both see the same machine; what counts is the median of the rounds. The journal's flushes are counted:
16 producers share them, that is the difference.

Prints a table, writes JSON beside it, and exits 1 when the promise of SPECIFICATION.md is missed.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOAD = ROOT / "target/operator/examples/journal_load"
PRODUCERS, COMMITS, BYTES = 16, 200, 300
PROMISE = 3.0


def once(which, place):
    with tempfile.TemporaryDirectory(prefix="journal-bench-", dir=place) as directory:
        done = subprocess.run([LOAD, which, directory, str(PRODUCERS), str(COMMITS), str(BYTES)],
                              check=True, capture_output=True, text=True, timeout=600)
    return json.loads(done.stdout)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--dir", default=str(ROOT / "target"), help="on the filesystem to measure")
    options.add_argument("--json", type=pathlib.Path, default=ROOT / "target/bench/journal_vs_sqlite.json")
    options = options.parse_args()
    if not LOAD.exists():
        sys.exit(f"{LOAD} is not built: cargo build --profile operator --features control-plane --example journal_load")
    rates, syncs = {"bcd": [], "sqlite": []}, []
    for number in range(options.rounds):
        for which in ("bcd", "sqlite") if number % 2 else ("sqlite", "bcd"):
            done = once(which, options.dir)
            rates[which].append(done["commits"] / done["seconds"])
            if which == "bcd":
                syncs.append(done["syncs"] / done["commits"])
    medians = {which: statistics.median(values) for which, values in rates.items()}
    ratio = medians["bcd"] / medians["sqlite"]
    for which, values in rates.items():
        print(f"{which:8} {medians[which]:9.0f} commits/s   {min(values):9.0f} to {max(values):.0f}")
    print(f"flushes a commit: {statistics.median(syncs):.3f}")
    kept = ratio >= PROMISE
    print(f"ratio {ratio:.1f}, promised at least {PROMISE:.0f}: {'kept' if kept else 'MISSED'}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(
        {"producers": PRODUCERS, "commits": COMMITS, "bytes": BYTES, "rates": rates, "medians": medians,
         "flushes_per_commit": syncs, "ratio": ratio, "kept": kept}, indent=1) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
