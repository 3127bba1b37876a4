"""Metrics: parsed by the parsers of others, and held to OpenMetrics' rules for names and units."""

import json
import os
import pathlib
import time

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from lab import wait_for


def connected(node):
    wait_for("the node to be connected", lambda: json.loads(node.run("status", "--json").stdout)["connected"])


def families(text, parse=openmetrics):
    return {family.name: family for family in parse(text)}


def value(found, name):
    family = next(f for f in found.values() if any(s.name == name for s in f.samples))
    (sample,) = [s for s in family.samples if s.name == name]
    return sample.value


def test_what_status_prints_is_openmetrics_with_proper_names_and_units(dev, join, tmp_path):
    node = join()
    node.start()
    connected(node)
    spec = tmp_path / "log.json"
    spec.write_text('{"level": "debug"}')
    dev.run("spec", "set", node.id, "--section", f"log={spec}")
    wait_for("the section", lambda: "bcd_section_applied" in node.run("status", "--metrics").stdout)
    found = families(node.run("status", "--metrics").stdout)
    for name, family in found.items():
        assert name.startswith("bcd_") and name == name.lower()
        assert family.documentation.endswith(".")
        assert family.type in ("gauge", "counter")
        # A base unit, and the name ends in it.
        assert family.unit in ("", "bytes", "seconds")
        assert not family.unit or name.endswith("_" + family.unit)
        for word in ("_ms", "_kib", "_minutes", "_count", "_bucket", "_created"):
            assert not name.endswith(word)
        for sample in family.samples:
            assert sample.name == name + ("_total" if family.type == "counter" else "")
            assert sample.value >= 0 or name == "bcd_clock_offset_seconds"
    assert value(found, "bcd_up") == value(found, "bcd_session_connected") == 1
    assert value(found, "bcd_sessions_opened_total") == 1
    assert value(found, "bcd_spec_generation") == 1
    assert found["bcd_section_applied"].samples[0].labels == {"section": "log"}
    assert abs(value(found, "bcd_start_timestamp_seconds") - time.time()) < 120
    assert value(found, "bcd_identity_not_after_timestamp_seconds") > time.time()


def test_without_a_daemon_the_metrics_say_so(join):
    node = join()
    done = node.run("status", "--metrics")
    assert done.returncode == 1
    found = families(done.stdout)
    assert value(found, "bcd_up") == 0
    assert value(found, "bcd_identity_joined") == 1
    assert "bcd_session_connected" not in found


def with_textfile(node, path):
    with node.config.open("a") as config:
        config.write(f'\n[metrics]\ntextfile = "{path}"\n')


def test_the_textfile_is_for_everybody_whole_and_follows_the_node(dev, join, tmp_path):
    node = join()
    path = tmp_path / "textfile" / "bcd.prom"
    path.parent.mkdir()
    with_textfile(node, path)
    node.start()

    def read(name):
        return value(families(path.read_text(), prometheus), name) if path.exists() else None

    wait_for("a session in the file", lambda: read("bcd_session_connected") == 1)
    assert path.stat().st_mode & 0o777 == 0o644
    assert families(path.read_text(), prometheus)["bcd_sessions_opened"].type == "counter"
    assert "# EOF" not in path.read_text() and "# UNIT" not in path.read_text()
    dev.kill()
    wait_for("the loss in the file", lambda: read("bcd_session_connected") == 0)
    dev.start()
    wait_for("the return in the file", lambda: read("bcd_session_connected") == 1, 40)
    assert read("bcd_sessions_opened_total") == 2
    assert sorted(p.name for p in path.parent.iterdir()) == ["bcd.prom"]
    # The state directory has no part in it.
    assert not list(node.data_dir.glob("*.prom*"))


def test_a_textfile_that_cannot_be_written_is_said_and_the_session_stays(dev, join, tmp_path):
    node = join()
    with_textfile(node, tmp_path / "missing" / "bcd.prom")
    node.start()
    connected(node)
    wait_for("the warning", lambda: "metrics.not_written" in node.process.output())
    line = json.loads(next(x for x in node.process.output().splitlines() if "metrics.not_written" in x))
    assert "ReadWritePaths" in line["do"]
    assert dev.state(node.id) == "connected"


def test_the_textfile_needs_its_ending(join):
    node = join()
    with_textfile(node, "/run/bcd.txt")
    done = node.run("config", "check")
    assert done.returncode == 2 and ".prom" in done.stderr


def test_an_idle_node_writes_its_textfile_at_heartbeats_alone(better_compute, bcd, tmp_path):
    from lab import Node, running
    with running(better_compute, tmp_path / "dev", "--heartbeat", "5s") as dev:
        node = Node([bcd], dev, tmp_path / "node")
        node.join(dev.token())
        path = tmp_path / "bcd.prom"
        with_textfile(node, path)
        node.start()
        try:
            connected(node)
            time.sleep(4)
            seen = set()
            end = time.monotonic() + 16
            while time.monotonic() < end:
                seen.add(os.stat(path).st_ino)
                time.sleep(0.05)
            assert 3 <= len(seen) <= 5, f"{len(seen)} pages in 16 s of heartbeats every 5 s"
            journal = pathlib.Path(node.data_dir / "journal.db").stat().st_mtime
            assert journal < time.time() - 10, "metrics wrote to the state directory"
        finally:
            node.stop()
