"""How promises are read from SPECIFICATION.md and judged, and what `make bench` makes of what it was told."""

import json
import sys

import pytest

import promises
from lab import ROOT

sys.path.insert(0, str(ROOT / "benches"))
import run  # noqa: E402

TABLE = """
| `a.size` | the size | at most 2,048 KiB | `tests/a.py::test_a`: by hand | | |
| `a.rate` | … the rate | at least 3 times | the same | SQLite | 9 · 2026-01-01 |
| `b` | none | exactly 0 | `benches/b.py` | | old |
| `c` | few | below 3 a minute | `tests/a.py::test_c`, `tests/a.py::test_d` | | |
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    (tmp_path / "SPECIFICATION.md").write_text(TABLE)
    monkeypatch.setattr(promises, "PAGE", tmp_path / "SPECIFICATION.md")
    monkeypatch.delenv("PROMISES_MEASURED", raising=False)
    return promises.page()


@pytest.mark.parametrize("name, good, bad", [("a.size", 2048, 2048.1), ("a.rate", 3, 2.99), ("b", 0, 1), ("c", 2.9, 3)])
def test_a_bound_is_kept_to_its_edge_and_missed_beyond_it(page, name, good, bad):
    assert page[name].kept(good) and not page[name].kept(bad)
    promises.hold(name, good)
    with pytest.raises(AssertionError, match="Ask the cook"):
        promises.hold(name, bad, otherwise="Ask the cook.")


def test_what_measures_a_promise_is_its_own_or_that_of_the_row_above(page):
    assert page["a.rate"].runners == page["a.size"].runners == ["tests/a.py::test_a"]
    assert page["b"].runners == ["benches/b.py"] and page["c"].runners == ["tests/a.py::test_c", "tests/a.py::test_d"]


@pytest.mark.parametrize("row", ["| `d` | what | small | x | | |", "| `d` | what | at most 3 | x | |", "| `b` | what | at most 3 | x | | |"])
def test_a_row_that_promises_nothing_or_something_twice_is_refused(row):
    with pytest.raises(ValueError):
        promises.page(f"{TABLE}{row}\n")


def test_told_to_a_bench_a_miss_fails_no_test_and_the_worst_of_several_is_judged(page, tmp_path, monkeypatch):
    told = tmp_path / "told"
    monkeypatch.setenv("PROMISES_MEASURED", str(told))
    for value in (100, 4000, 200):
        promises.hold(page["a.size"].name, value)
    for value in (9, 2, 5):
        promises.record(page["a.rate"].name, value, (value - 0.5, value + 0.5), "2 and 1 a second")
    measured = {}
    for line in told.read_text().splitlines():
        one = json.loads(line)
        measured.setdefault(one["name"], []).append(one)
    results = {row.name: run.result(row, measured) for row in page.values()}
    assert results["a.size"]["text"] == "4,000 KiB" and results["a.size"]["verdict"] == "MISSED"
    assert results["a.rate"]["text"] == "2 times (1.5 to 2.5); 2 and 1 a second" and not results["a.rate"]["kept"]
    assert results["b"]["text"] == "not measured" and results["b"]["verdict"] == "MISSED"

    run.write(results, {"time": "2026-02-03T04:05:06+00:00", "busy": True})
    written = promises.PAGE.read_text().splitlines()
    assert written[1].endswith("by hand | | **missed**: 4,000 KiB · 2026-02-03, busy |")
    assert written[2].endswith("| SQLite | **missed**: 2 times (1.5 to 2.5); 2 and 1 a second · 2026-02-03, busy |")
    # What was not measured keeps what it had.
    assert written[3:] == TABLE.splitlines()[3:]
