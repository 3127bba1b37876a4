#!/usr/bin/env python3
"""`bcd join` beside `curl` posting as many bytes over TLS 1.3 to the same gateway.

    target/venv/bin/python benches/join_vs_curl.py [--rounds N] [--json PATH]

One run, alternating: a round is one curl and one join, so that both see the same machine. Measured
is the whole process, from fork to exit: wall time, and processor time as the kernel counts it for the child.
A relay first counts the bytes that each sends, and curl's body is sized until both send as many.
curl runs with --insecure, so it checks less than bcd does (a pinned chain, a signed answer), and it
writes nothing, while bcd makes a key and writes it and the identity durably: what is left is in curl's favour.

Prints a table, writes JSON beside it, and exits 1 when a promise of SPECIFICATION.md is missed.
"""

import argparse
import json
import os
import pathlib
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import lab  # noqa: E402

PATH = "/bettercompute.v1.JoinService/Join"


class Relay:
    """Passes connections on to the gateway and counts what the client sent."""

    def __init__(self, to):
        self.to = to
        self.sent = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(self.to)
            threading.Thread(target=self.pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client, False), daemon=True).start()

    def pump(self, source, sink, count):
        while data := source.recv(65536):
            if count:
                self.sent += len(data)
            sink.sendall(data)
        sink.close()


def measured(command, env):
    """Wall and processor time of one run, in milliseconds, and its output."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env=env) as child:
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
    return wall * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3, child.returncode, output.decode(errors="replace")


def curl(address, body):
    return ["curl", "--silent", "--show-error", "--insecure", "--http2", "--tlsv1.3", "--output", "/dev/null",
            "--write-out", "%{http_version} %{http_code}",
            "--header", "content-type: application/grpc", "--header", "te: trailers",
            "--data-binary", f"@{body}", f"https://{address}{PATH}"]


def grpc_body(path, size):
    """A gRPC message of `size` bytes with its five-byte prefix."""
    payload = secrets.token_bytes(max(size - 5, 0))
    path.write_bytes(b"\0" + len(payload).to_bytes(4, "big") + payload)


def run_join(node, token):
    wall, cpu, code, output = measured(
        [*node.command, "join", "--config", str(node.config)], lab.clean_env(BCD_JOIN_TOKEN=token))
    if code != 0:
        sys.exit(f"bcd join failed with {code}: {output}")
    return wall, cpu


def run_curl(address, body):
    wall, cpu, code, output = measured(curl(address, body), lab.clean_env())
    if code != 0 or output.split() != ["2", "200"]:
        sys.exit(f"curl did not get an HTTP/2 answer from the gateway: exit {code}, {output!r}")
    return wall, cpu


def summary(values):
    quarters = statistics.quantiles(values, n=4)
    return {"median": statistics.median(values), "p25": quarters[0], "p75": quarters[2],
            "min": min(values), "max": max(values)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "target/bench/join_vs_curl.json")
    options = parser.parse_args()
    bcd = os.environ.get("BCD", ROOT / f"dist/bcd_{lab.version()}_linux_amd64")
    operator = os.environ.get("BETTER_COMPUTE", ROOT / "target/operator/better-compute")

    with tempfile.TemporaryDirectory(prefix="bcd-bench-") as temporary:
        directory = pathlib.Path(temporary)
        (directory / "dev").mkdir()
        plane = lab.ControlPlane(operator, directory / "dev").start()
        try:
            return compare(plane, bcd, directory, options)
        finally:
            plane.kill()


def compare(plane, bcd, directory, options):
    host, port = plane.gateway.rsplit(":", 1)
    made = 0

    def machine(**settings):
        nonlocal made
        made += 1
        return lab.Node([bcd], plane, directory / f"node{made}", **settings)

    relay = Relay((host, int(port)))
    through = f"{host}:{relay.port}"
    run_join(machine(gateway_url=f"https://{through}"), plane.token())
    time.sleep(0.1)
    target = relay.sent
    body = directory / "body"
    size = target
    for _ in range(8):
        grpc_body(body, size)
        before = relay.sent
        run_curl(through, body)
        time.sleep(0.1)
        sent = relay.sent - before
        if sent == target:
            break
        size = max(size + target - sent, 5)

    rows = {"bcd join": ([], []), "curl": ([], [])}
    tokens = [plane.token() for _ in range(options.rounds + 2)]
    for number, token in enumerate(tokens):
        node = machine()
        pair = [("curl", lambda: run_curl(plane.gateway, body)), ("bcd join", lambda n=node, t=token: run_join(n, t))]
        # Who goes first changes each round.
        for name, run in pair if number % 2 else reversed(pair):
            wall, cpu = run()
            if number >= 2:  # the first rounds warm caches
                rows[name][0].append(wall)
                rows[name][1].append(cpu)

    result = {"rounds": options.rounds, "bytes_sent": {"bcd join": target, "curl": sent}, "unit": "ms"}
    for name, (wall, cpu) in rows.items():
        result[name] = {"wall": summary(wall), "cpu": summary(cpu)}
    result["ratio"] = {kind: result["bcd join"][kind]["median"] / result["curl"][kind]["median"]
                       for kind in ("wall", "cpu")}
    missed = [kind for kind, ratio in result["ratio"].items() if ratio > 1]
    result["missed"] = missed
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=2) + "\n")

    print(f"{options.rounds} rounds, alternating; bytes sent: bcd join {target}, curl {sent}")
    print(f"{'':10} {'':6} {'median':>8} {'p25':>8} {'p75':>8} {'min':>8} {'max':>8}   ms")
    for name in rows:
        for kind in ("wall", "cpu"):
            s = result[name][kind]
            print(f"{name:10} {kind:6} " + " ".join(f"{s[k]:8.2f}" for k in ("median", "p25", "p75", "min", "max")))
    for kind, ratio in result["ratio"].items():
        print(f"{'ratio':10} {kind:6} {ratio:8.2f}   promised: at most 1.00   {'MISSED' if kind in missed else 'kept'}")
    print(f"written to {options.json.relative_to(ROOT) if options.json.is_relative_to(ROOT) else options.json}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
