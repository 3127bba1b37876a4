#!/usr/bin/env python3
"""Joins a second through gateway and JoinService, beside their cryptography alone.

    target/venv/bin/python benches/joins_vs_crypto.py [--rounds N] [--joins N] [--json PATH]

A join cannot do without: one TLS key agreement (P-256, as bcd has it) and one signature of the handshake, one check of
the certificate request's signature, one opening of the sealed token (P-256), one signature of the
certificate and one of the answer. One run, alternating: a round is that cryptography alone, by the same
libraries on as many threads as there are cores, and then joins over the wire, each over a connection of
its own with a key, a token and an address of its own.

The clients run on the same machine, so what is compared is processor time: that of the cryptography alone over
that of `better-compute dev` with all its threads, for each join. It says how many of the joins that the
libraries would allow the control plane gets done on the same processors. That it does not wait for
something else instead is told by the share of the processors that nobody used meanwhile.

Prints a table, writes JSON beside it, and exits 1 when a promise of SPECIFICATION.md is missed.
"""

import argparse
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

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import lab  # noqa: E402

PROMISED = 0.4
AIMED_AT = 0.6
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--joins", type=int, default=1000, help="in each round")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "target/bench/joins_vs_crypto.json")
    options = parser.parse_args()
    load = os.environ.get("GATEWAY_LOAD", ROOT / "target/operator/examples/gateway_load")
    operator = os.environ.get("BETTER_COMPUTE", ROOT / "target/operator/better-compute")
    cores = len(os.sched_getaffinity(0))

    with tempfile.TemporaryDirectory(prefix="bcd-bench-") as temporary:
        directory = pathlib.Path(temporary) / "dev"
        directory.mkdir()
        plane = lab.ControlPlane(operator, directory).start()
        try:
            return compare(plane, load, cores, options)
        finally:
            plane.kill()


def compare(plane, load, cores, options):
    jwk = plane.dir / "node/join-encryption.jwk"
    rounds = []
    for number in range(options.rounds + 1):
        made = tokens(plane, options.joins)
        crypto = run([load, "crypto", 2, cores])
        before, (all_before, idle_before) = processor_us(plane.process.pid), machine()
        joins = run([load, "join", plane.gateway, jwk, cores, AT_ONCE], "\n".join(made) + "\n\n")
        used, (all_after, idle_after) = processor_us(plane.process.pid) - before, machine()
        if joins["failed"] or joins["joins"] != options.joins:
            sys.exit(f"{joins['failed']} of {options.joins} joins failed")
        if number == 0:
            continue  # warms caches
        rounds.append({
            "crypto_us": crypto["cpu_us"],
            "crypto_a_second": crypto["joins"] / crypto["seconds"],
            "parts_us": crypto["parts_us"],
            "server_us": used / options.joins,
            "client_us": joins["cpu_us"],
            "joins_a_second": joins["joins"] / joins["seconds"],
            "idle": (idle_after - idle_before) / max(1, all_after - all_before),
        })

    def median(name):
        return statistics.median(r[name] for r in rounds)

    ratio = statistics.median(r["crypto_us"] / r["server_us"] for r in rounds)
    missed = ratio < PROMISED
    result = {"rounds": rounds, "cores": cores, "joins": options.joins, "ratio": ratio, "missed": missed}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=2) + "\n")

    print(f"{options.rounds} rounds of {options.joins} joins, {AT_ONCE} at once, {cores} cores; medians")
    print(f"processor time a join: cryptography alone {median('crypto_us'):.0f} us "
          f"({', '.join(f'{name} {us}' for name, us in rounds[-1]['parts_us'].items())}), "
          f"control plane {median('server_us'):.0f} us, client {median('client_us'):.0f} us")
    print(f"a second, wall: cryptography alone {median('crypto_a_second'):.0f}, joins with their clients on this machine "
          f"{median('joins_a_second'):.0f}, processors unused meanwhile {median('idle'):.0%}")
    print(f"ratio {ratio:.2f}   promised: at least {PROMISED:.2f}   {'MISSED' if missed else 'kept'}; aimed at {AIMED_AT:.2f}")
    print(f"written to {options.json.relative_to(ROOT) if options.json.is_relative_to(ROOT) else options.json}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
