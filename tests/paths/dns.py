"""A name server in Python that answers as real ones sometimes do. Runs by itself: dns.py ADDRESS RULES.

RULES is JSON: {name: {"A": [...], "AAAA": [...], "how": ...}}. `how` is "normal"; "truncated", over UDP the records that fit
and the bit that says so; "empty", that bit and no record; "silent"; "nxdomain-aaaa", as some old balancers do. A name that is not listed does
not exist. Each question goes to standard output.
"""

import json
import socket
import struct
import sys
import threading

TYPES = {1: "A", 28: "AAAA"}
LIMIT = 512


def question(packet):
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1:at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    return ".".join(labels).lower(), struct.unpack(">H", packet[at + 1:at + 3])[0], packet[12:at + 5]


def answer(packet, rules, udp):
    name, kind, asked = question(packet)
    print(name, TYPES.get(kind, kind), "udp" if udp else "tcp", flush=True)
    rule = rules.get(name)
    how = rule.get("how", "normal") if rule else "normal"
    if how == "silent":
        return None
    code = 0 if rule else 3
    records = (rule or {}).get(TYPES.get(kind, ""), [])
    if how == "nxdomain-aaaa" and kind == 28:
        code, records = 3, []
    flags = 0x8180 | code
    family = socket.AF_INET if kind == 1 else socket.AF_INET6
    bodies = [b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 60, len(data)) + data
              for data in (socket.inet_pton(family, text) for text in records)]
    if udp and 12 + len(asked) + sum(map(len, bodies)) > LIMIT:
        if how == "empty":
            bodies = []
        while 12 + len(asked) + sum(map(len, bodies)) > LIMIT:
            bodies.pop()
        flags |= 0x0200
    return packet[:2] + struct.pack(">HHHHH", flags, 1, len(bodies), 0, 0) + asked + b"".join(bodies)


def main(address, rules):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    udp = socket.socket(family, socket.SOCK_DGRAM)
    udp.bind((address, 53))
    tcp = socket.create_server((address, 53), family=family)

    def stream():
        while True:
            peer, _ = tcp.accept()
            with peer, peer.makefile("rb") as asking:
                while head := asking.read(2):
                    said = answer(asking.read(struct.unpack(">H", head)[0]), rules, udp=False)
                    if said:
                        peer.sendall(struct.pack(">H", len(said)) + said)

    threading.Thread(target=stream, daemon=True).start()
    while True:
        packet, peer = udp.recvfrom(4096)
        said = answer(packet, rules, udp=True)
        if said:
            udp.sendto(said, peer)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
