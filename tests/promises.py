"""The promises of SPECIFICATION.md. Their numbers stand in its table and nowhere else: tests and benches read them here.

A test says `hold("bcd.bytes.amd64", size)` and fails when the promise is missed. benches/run.py sets PROMISES_MEASURED to
a file and gets everything that was measured, a line of JSON each; it judges, and no test fails then, so that one miss hides nothing.
Python's own library alone: tools/lint.sh uses it too.
"""

import dataclasses
import json
import os
import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parents[1] / "SPECIFICATION.md"
ROW = re.compile(r"^\| `([\w.-]+)` \|(.*)\|$", re.M)
BOUND = re.compile(r"(at most|at least|below|exactly) ([\d,]+(?:\.\d+)?)(?: (.+))?")
RUNNER = re.compile(r"`((?:tests|benches)/[\w./-]+\.py(?:::\w+)?)`")
COLUMNS = ("what", "promise", "measured_by", "beside", "result")


@dataclasses.dataclass
class Promise:
    name: str
    what: str
    promise: str
    measured_by: str
    beside: str
    result: str
    runners: list

    def __post_init__(self):
        found = BOUND.fullmatch(self.promise)
        if not found:
            raise ValueError(f"{PAGE.name}, {self.name}: {self.promise!r} is no bound such as `at most 2,048 KiB`")
        self.bound, self.limit, self.unit = found[1], float(found[2].replace(",", "")), found[3] or ""

    def kept(self, value, room=1):
        return {"at most": value <= self.limit * room, "below": value < self.limit * room,
                "at least": value * room >= self.limit, "exactly": value == self.limit}[self.bound]

    def worst(self, values):
        """The one of several measurements that is nearest to a miss, or furthest beyond it."""
        by = {"at least": lambda v: -v["value"], "exactly": lambda v: abs(v["value"] - self.limit)}
        return max(values, key=by.get(self.bound, lambda v: v["value"]))

    def text(self, value):
        return f"{number(value)} {self.unit}".strip()


def number(value):
    """As the page writes it: 2,718,024, or three digits that tell something."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def page(text=None):
    """All of them by name, in the page's order."""
    promises, runners = {}, []
    for name, cells in ROW.findall(PAGE.read_text() if text is None else text):
        cells = [cell.strip() for cell in cells.split("|")]
        if len(cells) != len(COLUMNS) or name in promises:
            raise ValueError(f"{PAGE.name}, {name}: twice there, or not {len(COLUMNS)} cells behind the name")
        # "the same": as the row above.
        runners = runners if cells[2].startswith("the same") else RUNNER.findall(cells[2])
        promises[name] = Promise(name, *cells, runners)
    return promises


def record(name, value, spread=None, beside=None):
    """Tells benches/run.py, if it asked, and returns the promise. `spread` is (low, high); `beside` what the peer needed."""
    promise = page()[name]
    if told := os.environ.get("PROMISES_MEASURED"):
        # One write each, at the end: the tests of several processes share the file.
        with open(told, "a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "value": value, "spread": spread, "beside": beside}) + "\n")
    return promise


def hold(name, value, room=1, otherwise=""):
    """Fails when the promise is missed. `room`: so many times the number are let pass where other work on the machine
    shows, which `make bench` does not. `otherwise`: what to do then."""
    promise = record(name, value)
    assert "PROMISES_MEASURED" in os.environ or promise.kept(value, room), (
        f"{name}: {promise.text(value)}, promised are {promise.promise}. "
        f"{otherwise or 'Find what grew.'} The number stands in SPECIFICATION.md; changing it is a decision for docs/decisions.md.")
