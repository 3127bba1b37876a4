#!/usr/bin/env python3
"""`bcd join` beside `curl` posting as many bytes over TLS 1.3 to the same gateway.

    target/venv/bin/python benches/join_vs_curl.py [--quick] [--rounds N] [--json PATH]

A round is one curl and one join, who goes first changing. Measured is the whole process, from fork to exit: wall time, and
processor time as the kernel counts it for the child. A relay first counts the bytes that each sends, and curl's body is sized until both send as many.
curl runs with --insecure, so it checks less than bcd does (a pinned chain, a signed answer), and it
writes nothing, while bcd makes a key and writes it and the identity durably: what is left is in curl's favour.
"""

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

from rounds import ROOT, main, promise, show, take_turns
import lab

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


def measure(rounds):
    bcd = os.environ.get("BCD", ROOT / f"dist/bcd_{lab.version()}_linux_amd64")
    operator = os.environ.get("BETTER_COMPUTE", ROOT / "target/operator/better-compute")
    with tempfile.TemporaryDirectory(prefix="bcd-bench-") as temporary:
        directory = pathlib.Path(temporary)
        with lab.running(operator, directory / "dev") as plane:
            return compare(plane, bcd, directory, rounds)


def compare(plane, bcd, directory, rounds):
    host, port = plane.gateway.rsplit(":", 1)

    def machine(name, **settings):
        return lab.Node([bcd], plane, directory / name, **settings)

    relay = Relay((host, int(port)))
    through = f"{host}:{relay.port}"
    run_join(machine("sized", gateway_url=f"https://{through}"), plane.token())
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

    warm = 2
    ready = [(machine(f"node{n}"), plane.token()) for n in range(warm + rounds)]
    runs = take_turns(rounds, {"bcd join": lambda n: run_join(*ready[n]), "curl": lambda _: run_curl(plane.gateway, body)}, warm)
    (ours, our_cpu), (theirs, their_cpu) = (map(list, zip(*runs[name])) for name in ("bcd join", "curl"))
    print(f"bytes sent: bcd join {target}, curl {sent}")
    show({"bcd join, wall": ours, "curl, wall": theirs, "bcd join, processor": our_cpu, "curl, processor": their_cpu}, "ms")

    def told(a, b):
        return f"{statistics.median(a):.1f} and {statistics.median(b):.1f} ms"

    return {"bytes_sent": {"bcd join": target, "curl": sent}, "unit": "ms",
            "bcd join": {"wall": ours, "cpu": our_cpu}, "curl": {"wall": theirs, "cpu": their_cpu},
            "ratio": {"wall": promise("join.wall", ours, theirs, beside=told(ours, theirs)),
                      "cpu": promise("join.cpu", our_cpu, their_cpu, beside=told(our_cpu, their_cpu))}}


if __name__ == "__main__":
    main(__file__, measure, rounds=40, quick=8)
