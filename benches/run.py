#!/usr/bin/env python3
"""Measures what SPECIFICATION.md promises, and prints its table with what was found: `make bench`.

    target/venv/bin/python benches/run.py [--only NAME]... [--quick] [--write] [--no-build]

The page says by which bench or test each promise is measured. All of them run, one after the other, and one that fails
stops no other. Exits 1 when a promise is missed or was not measured. Everything is in target/bench/results.json then, each bench's
own rounds beside it.

Times mean something on a machine that does nothing else: how busy it was before all this is said below the table.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from rounds import ROOT, promises

BENCH = ROOT / "target/bench"
# What these measure is our own code's time, which labs do without: what is built for them alone.
BUILDS = {
    "benches/image_vs_curl.py": ["tools/static.sh", "--example", "image_write", "amd64"],
    "benches/joins_vs_crypto.py": ["cargo", "build", "--locked", "--quiet", "--profile", "operator", "--features", "control-plane",
                                   "--bin", "better-compute", "--example", "gateway_load"]}
OPTIMISED = {f"CARGO_PROFILE_OPERATOR_{key}": value for key, value in [
    ("OPT_LEVEL", "2"), ("DEBUG_ASSERTIONS", "false"), ("OVERFLOW_CHECKS", "false")]}
# No bench takes so long, and all that is built does not either.
PATIENCE_SECONDS = 3600


def machine():
    """What the machine is and what it did before; the first thing that is asked."""
    load = os.getloadavg()
    cpu = re.search(r"^model name\s*: (.+)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    now = datetime.datetime.now(datetime.timezone.utc)
    cores = len(os.sched_getaffinity(0))
    return {"time": now.isoformat(timespec="seconds"), "commit": commit, "cores": cores, "cpu": cpu[1] if cpu else os.uname().machine,
            "kernel": os.uname().release, "loadavg": load, "busy": load[0] > cores / 4}


def said(state):
    return (f"{state['time'][:10]}, {state['commit']}, {state['cores']} x {state['cpu']}, Linux {state['kernel']}, load before "
            + ", ".join(f"{load:.2f}" for load in state["loadavg"]) + (": busy, times are not final" if state["busy"] else ": idle"))


def run(command, **env):
    """Runs something to its end, whatever that is; what it prints is shown."""
    print(f"\n== {' '.join(str(part).removeprefix(f'{ROOT}/') for part in command)}", flush=True)
    # A group of its own, so that what hangs ends with all that it started.
    with subprocess.Popen([str(part) for part in command], cwd=ROOT, env={**os.environ, **env}, process_group=0) as child:
        try:
            if code := child.wait(PATIENCE_SECONDS):
                print(f"== ended with {code}", flush=True)
        except subprocess.TimeoutExpired:
            print(f"== killed after {PATIENCE_SECONDS} s", flush=True)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def measure(rows, asked):
    """Everything that the tests and benches of these promises tell, by the promise's name."""
    runners = sorted({runner for row in rows for runner in row.runners})
    tests = [runner for runner in runners if "::" in runner]
    scripts = [runner for runner in runners if "::" not in runner]
    # Last, as an optimised better-compute takes the place of the other.
    scripts.sort(key=lambda script: script in BUILDS)
    if asked.build:
        arm64 = ["arm64"] if any(row.name.endswith(".arm64") for row in rows) else []
        run(["tools/build.sh", "--programs", "amd64", *arm64])
    with tempfile.TemporaryDirectory(prefix="bcd-bench-") as directory:
        told = pathlib.Path(directory) / "measured"
        told.touch()
        if tests:
            # One after the other: some count time.
            run([sys.executable, "-m", "pytest", "-n", "0", "--no-header", *tests], PROMISES_MEASURED=told)
        for script in scripts:
            if asked.build and script in BUILDS:
                run(BUILDS[script], **OPTIMISED)
            quick = ["--quick"] if asked.quick and script.startswith("benches/") else []
            run([sys.executable, script, *quick], PROMISES_MEASURED=told)
        measured = {}
        for line in told.read_text().splitlines():
            one = json.loads(line)
            measured.setdefault(one["name"], []).append(one)
        return measured


def result(row, measured):
    """What is told of a promise."""
    if row.name not in measured:
        return {"kept": False, "text": "not measured", "verdict": "MISSED"}
    worst = row.worst(measured[row.name])
    text = row.text(worst["value"])
    if worst["spread"]:
        text += " ({} to {})".format(*map(promises.number, worst["spread"]))
    if worst["beside"]:
        text += f"; {worst['beside']}"
    kept = row.kept(worst["value"])
    return {**worst, "kept": kept, "text": text, "verdict": "kept" if kept else "MISSED"}


def table(rows, results):
    lines = [("", "what", "promise", "measured: median (quartiles)", "beside", "")]
    lines += [(row.name, row.what, row.promise, results[row.name]["text"], row.beside, results[row.name]["verdict"]) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(f"{cell.replace('`', ''):{width}}" for cell, width in zip(line, widths)).rstrip())


def write(results, state):
    """Puts what was measured into the page, with its day."""
    day = state["time"][:10] + (", busy" if state["busy"] else "")

    def filled(match):
        one = results.get(match[1])
        if not one or "value" not in one:
            return match[0]
        told = f"{one['text']} · {day}" if one["kept"] else f"**missed**: {one['text']} · {day}"
        return f"{match[0][:-1].rsplit('|', 1)[0]}| {told} |"

    promises.PAGE.write_text(promises.ROW.sub(filled, promises.PAGE.read_text()))


def main():
    state = machine()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a promise, or all that begin so: `join`")
    parser.add_argument("--quick", action="store_true", help="a few rounds each, for development: what they tell is no result")
    parser.add_argument("--write", action="store_true", help="put the results into SPECIFICATION.md")
    parser.add_argument("--no-build", dest="build", action="store_false", help="measure the programs that are there")
    asked = parser.parse_args()
    if asked.quick and asked.write:
        parser.error("what --quick measures is no result to write")
    rows = [row for row in promises.page().values()
            if not asked.only or any(row.name == only or row.name.startswith(f"{only}.") for only in asked.only)]
    if not rows:
        parser.error(f"no promise is called {', '.join(asked.only)}; SPECIFICATION.md has their names")
    measured = measure(rows, asked)
    results = {row.name: result(row, measured) for row in rows}
    print()
    table(rows, results)
    missed = [name for name, one in results.items() if not one["kept"]]
    print(f"\n{len(rows) - len(missed)} kept, {len(missed)} missed{': ' + ', '.join(missed) if missed else ''}\n{said(state)}")
    BENCH.mkdir(parents=True, exist_ok=True)
    (BENCH / "results.json").write_text(json.dumps(
        {"machine": state, "quick": asked.quick, "missed": missed, "promises": [
            {"name": row.name, "what": row.what, "promise": row.promise, "measured": measured.get(row.name, []), **results[row.name]}
            for row in rows]}, indent=1) + "\n")
    print(f"written to {BENCH / 'results.json'}")
    if asked.write:
        write(results, state)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
