"""What the log says of failures: each line with a remedy, and none more than once a minute."""

import json
import time

import pytest

from lab import wait_for


def lines(node):
    return [json.loads(line) for line in node.process.output().splitlines() if line.startswith("{")]


def test_every_warning_and_error_says_what_to_do(dev, join):
    node = join()
    node.start()
    wait_for("the session", lambda: any(line["event"] == "session.welcome" for line in lines(node)))
    dev.kill()
    wait_for("the loss", lambda: any(line["event"] == "session.lost" for line in lines(node)))
    bad = [line for line in lines(node) if line["level"] in ("warn", "error")]
    assert bad
    for line in bad:
        assert line.get("do"), line


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_line_that_repeats_is_counted_not_written(dev, join):
    node = join()
    node.start()
    wait_for("the session", lambda: any(line["event"] == "session.welcome" for line in lines(node)))
    dev.kill()
    # Tries follow each other from half a second on: several within these seconds, with one reason.
    time.sleep(25)
    lost = [line for line in lines(node) if line["event"] == "session.lost"]
    assert len({line["error"] for line in lost}) == len(lost), "a reason was written twice within a minute"
    failed = json.loads(node.run("status", "--json").stdout)["session"]["failed"]
    assert failed > len(lost), "nothing repeated, and this test shows nothing"
    # The minute is over, and the next line of any kind brings the count: tries are at most 60 s apart.
    told = wait_for("the count", lambda: [line for line in lines(node) if "repeated" in line], 140)
    assert all(line["repeated"] > 0 for line in told)
