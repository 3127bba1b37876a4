"""How often memory is asked for where it happens all the time: SPECIFICATION.md, "alloc"."""

import json
import subprocess

from lab import program
from promises import hold


def test_what_happens_all_the_time_asks_for_little_memory(tmp_path):
    counter = program("ALLOCATIONS", "target/operator/examples/allocations")
    done = subprocess.run([counter, tmp_path], check=True, capture_output=True, text=True, timeout=60)
    counted = json.loads(done.stdout)
    why = "examples/allocations.rs has what is counted; a backtrace in its `alloc` tells who asks."
    hold("alloc.journal", counted["journal"], otherwise=why)
    hold("alloc.session", counted["session"], otherwise=why)
    hold("alloc.ack", counted["ack"], otherwise=why)
    hold("alloc.heartbeat", counted["heartbeat"], otherwise=why)
    hold("alloc.gateway", counted["gateway"], otherwise=why)
