"""What every bench is made of: rounds in which both sides take turns, what tells of many numbers, and how it ends.

A bench is a module with `measure(rounds, ...)` that tells of its promises with `promise(...)` and returns the numbers for
its JSON. `main` gives it its command line; benches/run.py runs all of them.
"""

import argparse
import json
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import promises  # noqa: E402

missed = []


def take_turns(rounds, sides, warm=0):
    """Runs each side once a round, who goes first changing; what each returned, by its name. `warm` rounds before do not
    count: they fill caches."""
    results = {name: [] for name in sides}
    for number in range(warm + rounds):
        order = list(sides) if number % 2 else list(reversed(sides))
        for name in order:
            result = sides[name](number)
            if number >= warm:
                results[name].append(result)
    return results


def summary(values):
    """Median, quartiles and extremes."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": statistics.median(values), "p25": low, "p75": high, "min": min(values), "max": max(values)}


def show(rows, unit):
    """Prints the summaries of named lists of numbers."""
    width = max(map(len, rows))
    print(f"{'':{width}} {'median':>9} {'p25':>9} {'p75':>9} {'min':>9} {'max':>9}   {unit}")
    for name, values in rows.items():
        print(f"{name:{width}} " + " ".join(f"{value:9.2f}" for value in summary(values).values()))


def promise(name, ours, theirs, by=lambda a, b: a / b, beside=None):
    """Holds the medians of both sides, put together by `by`, against the promise; its spread are the quartiles of the
    rounds, each put together alone."""
    value = by(statistics.median(ours), statistics.median(theirs))
    each = summary([by(a, b) for a, b in zip(ours, theirs)])
    held = promises.record(name, value, (each["p25"], each["p75"]), beside)
    kept = held.kept(value)
    print(f"{name}: {held.text(value)} ({promises.number(each['p25'])} to {promises.number(each['p75'])}), "
          f"promised: {held.promise}: {'kept' if kept else 'MISSED'}")
    if not kept:
        missed.append(name)
    return {"value": value, **each, "kept": kept}


def main(file, measure, rounds, quick, **more):
    """Command line, JSON and exit code of a bench. `more` are further numbers it takes, each with those of --quick:
    `joins=(1000, 200)`."""
    name = pathlib.Path(file).stem
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds, for development: what they tell is no result")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / f"target/bench/{name}.json")
    numbers = {"rounds": (rounds, quick), **more}
    for option, (full, _) in numbers.items():
        parser.add_argument(f"--{option}", type=int, help=f"{full} if not given")
    asked = parser.parse_args()
    given = {option: getattr(asked, option) or both[asked.quick] for option, both in numbers.items()}
    result = {**given, **measure(**given)}
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {asked.json}")
    sys.exit(1 if missed else 0)
