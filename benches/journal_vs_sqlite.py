#!/usr/bin/env python3
"""Durable appends: bcd's journal beside SQLite (WAL, synchronous=FULL), the same producers on the same filesystem.

    target/venv/bin/python benches/journal_vs_sqlite.py [--quick] [--rounds N] [--json PATH]

A commit is an event and a keyed value, as when a command ends; both sides forget events as a gateway acknowledges
them. A producer is a thread that waits for each of its commits to be on the disk. Measured is in JOURNAL_DIR, else in
target/. The journal's flushes are counted: 16 producers share them, that is the difference.
"""

import json
import os
import statistics
import subprocess
import tempfile

from rounds import ROOT, main, promise, show, take_turns

LOAD = ROOT / "target/operator/examples/journal_load"
PRODUCERS, COMMITS, BYTES = 16, 200, 300


def once(which):
    with tempfile.TemporaryDirectory(prefix="journal-bench-", dir=os.environ.get("JOURNAL_DIR", ROOT / "target")) as directory:
        done = subprocess.run([LOAD, which, directory, str(PRODUCERS), str(COMMITS), str(BYTES)],
                              check=True, capture_output=True, text=True, timeout=600)
    return json.loads(done.stdout)


def measure(rounds):
    done = take_turns(rounds, {which: lambda _, which=which: once(which) for which in ("bcd", "sqlite")})
    rates = {which: [one["commits"] / one["seconds"] for one in runs] for which, runs in done.items()}
    flushes = [one["syncs"] / one["commits"] for one in done["bcd"]]
    show({"journal": rates["bcd"], "SQLite": rates["sqlite"]}, "commits a second")
    print(f"flushes a commit: {statistics.median(flushes):.3f}")
    ratio = promise("journal.rate", rates["bcd"], rates["sqlite"], beside=
                    f"{statistics.median(rates['bcd']):,.0f} and {statistics.median(rates['sqlite']):,.0f} commits a second")
    return {"producers": PRODUCERS, "commits": COMMITS, "bytes": BYTES, "rates": rates,
            "flushes_per_commit": flushes, "ratio": ratio}


if __name__ == "__main__":
    main(__file__, measure, rounds=7, quick=3)
