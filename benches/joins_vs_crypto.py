#!/usr/bin/env python3
"""Joins a second through gateway and JoinService, beside their cryptography alone.

    target/venv/bin/python benches/joins_vs_crypto.py [--quick] [--rounds N] [--joins N] [--json PATH]

A join cannot do without: one TLS key agreement (P-256, as bcd has it) and one signature of the handshake, one check of
the certificate request's signature, one opening of the sealed token (P-256), one signature of the
certificate and one of the answer. One run, alternating: a round is that cryptography alone, by the same
libraries on as many threads as there are cores, and then joins over the wire, each over a connection of
its own with a key, a token and an address of its own.

The clients run on the same machine, so what is compared is processor time: that of the cryptography alone over
that of `better-compute dev` with all its threads, for each join. It says how many of the joins that the
libraries would allow the control plane gets done on the same processors. That it does not wait for
something else instead is told by the share of the processors that nobody used meanwhile.
"""

import concurrent.futures
import http.client
import json
import os
import pathlib
import ssl
import statistics
import subprocess
import sys
import tempfile
import urllib.parse

from rounds import ROOT, main, promise, show, take_turns
import lab

# Joins on the way at once, of all clients.
AT_ONCE = 256


def tokens(plane, count):
    """So many join tokens, by the API."""
    api = urllib.parse.urlsplit(plane.info["apiUrl"])
    secret = pathlib.Path(plane.info["adminTokenFile"]).read_text().strip()
    context = ssl.create_default_context(cafile=plane.info["caFile"])
    body = json.dumps({"pool": "pool_bench", "site": "dev", "role": "node", "ttlSeconds": 86400, "allowReclaim": False})

    def some(share):
        connection = http.client.HTTPSConnection(api.hostname, api.port, context=context, timeout=60)
        made = []
        for _ in range(share):
            connection.request("POST", f"{api.path}/v1/tokens", body, {"Authorization": f"Bearer {secret}"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= 300:
                sys.exit(f"the API made no token: {answer.status} {text.decode(errors='replace')}")
            made.append(json.loads(text)["token"])
        connection.close()
        return made

    shares = [count // 8 + (n < count % 8) for n in range(8)]
    with concurrent.futures.ThreadPoolExecutor(len(shares)) as pool:
        return [token for made in pool.map(some, shares) for token in made]


def processor_us(pid):
    """Processor time of all threads of a process, in microseconds."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1000


def machine():
    """Processor time of the machine since it booted: all, and unused."""
    fields = [int(n) for n in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def run(command, stdin=""):
    done = subprocess.run([str(part) for part in command], input=stdin, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{command[0]}: exit {done.returncode}\n{done.stderr}")
    if done.stderr:
        print(done.stderr, file=sys.stderr, end="")
    return json.loads(done.stdout)


def measure(rounds, joins):
    load = os.environ.get("GATEWAY_LOAD", ROOT / "target/operator/examples/gateway_load")
    operator = os.environ.get("BETTER_COMPUTE", ROOT / "target/operator/better-compute")
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="bcd-bench-") as temporary:
        with lab.running(operator, pathlib.Path(temporary) / "dev") as plane:
            return compare(plane, load, cores, rounds, joins)


def compare(plane, load, cores, rounds, joins):
    jwk = plane.dir / "node/join-encryption.jwk"

    def joined(_):
        made = tokens(plane, joins)
        before, (all_before, idle_before) = processor_us(plane.process.pid), machine()
        done = run([load, "join", plane.gateway, jwk, cores, AT_ONCE], "\n".join(made) + "\n\n")
        used, (all_after, idle_after) = processor_us(plane.process.pid) - before, machine()
        if done["failed"] or done["joins"] != joins:
            sys.exit(f"{done['failed']} of {joins} joins failed")
        return {**done, "server_us": used / joins, "idle": (idle_after - idle_before) / max(1, all_after - all_before)}

    runs = take_turns(rounds, {"crypto": lambda _: run([load, "crypto", 2, cores]), "joins": joined}, warm=1)
    crypto, server = [one["cpu_us"] for one in runs["crypto"]], [one["server_us"] for one in runs["joins"]]
    print(f"{joins} joins a round, {AT_ONCE} at once, {cores} cores; processor time a join, all threads")
    show({"cryptography alone": crypto, "control plane": server, "client": [one["cpu_us"] for one in runs["joins"]]}, "us")
    print(f"of the cryptography: {', '.join(f'{name} {us} us' for name, us in runs['crypto'][-1]['parts_us'].items())}")

    def median(name, of):
        return statistics.median(of(one) for one in runs[name])

    print(f"a second, wall: cryptography alone {median('crypto', lambda one: one['joins'] / one['seconds']):.0f}, joins with their "
          f"clients on this machine {median('joins', lambda one: one['joins'] / one['seconds']):.0f}, "
          f"processors unused meanwhile {median('joins', lambda one: one['idle']):.0%}")
    beside = f"{statistics.median(server):,.0f} and {statistics.median(crypto):,.0f} us"
    return {"cores": cores, "runs": runs, "ratio": promise("joins.rate", crypto, server, beside=beside)}


if __name__ == "__main__":
    main(__file__, measure, rounds=5, quick=2, joins=(1000, 300))
