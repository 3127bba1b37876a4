"""A network of the lab's own making: Ethernet frames over UDP, with DHCP servers that behave as told.

Written from RFC 2131 and 2132, apart from init's client.
"""

import contextlib
import ipaddress
import socket
import struct
import threading
import time

from lab import own_port
from qemu import timeserver

DISCOVER, OFFER, REQUEST, DECLINE, ACK, NAK = 1, 2, 3, 4, 5, 6


def packed(address):
    return ipaddress.IPv4Address(address).packed


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Server:
    """One DHCP server: what it grants, and how it answers."""

    def __init__(self, address, grant, lease=3600, refuse=False, **options):
        self.address, self.grant, self.lease, self.refuse = address, grant, lease, refuse
        self.mac = bytes([2, 0, 0, *packed(address)[1:]])
        # By number, as bytes.
        self.options = {1: packed("255.255.255.0"), 3: packed(address), **options.pop("options", {})}

    def answer(self, kind, asked):
        """The kind of the answer to a message of `kind`, or None for silence."""
        if kind == DISCOVER:
            return OFFER
        chosen = asked.get(54)
        if kind == REQUEST and chosen in (None, packed(self.address)):
            return NAK if self.refuse else ACK
        return None


class Wire:
    """The far end of a guest's NIC. `seen` holds (seconds since the first, kind, options, unicast) of each DHCP message.
    `time` is the address of a time server on it."""

    def __init__(self, servers=(), vlan=None, silent=0.0, time=None):
        self.servers, self.vlan, self.silent, self.time = list(servers), vlan, silent, time
        self.seen = []
        self.untagged = 0
        self.near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.near.bind(("127.0.0.1", 0))
        self.guest = own_port()
        self.port = self.near.getsockname()[1]
        self.began = None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def arguments(self, name, mac, *more):
        """QEMU's arguments for the NIC at the other end."""
        return ["-netdev", f"socket,id={name},udp=127.0.0.1:{self.port},localaddr=127.0.0.1:{self.guest}",
                "-device", ",".join([f"virtio-net-pci,id=d{name},netdev={name},mac={mac},romfile=", *more])]

    def kinds(self):
        return [kind for _, kind, _, _ in self.seen]

    def close(self):
        self.near.close()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                frame = self.near.recv(65536)
                with contextlib.suppress(struct.error, IndexError):
                    self.frame(frame)

    def frame(self, frame):
        source, kind = frame[6:12], struct.unpack("!H", frame[12:14])[0]
        tag, body = None, frame[14:]
        if kind == 0x8100:
            tag, kind = struct.unpack("!HH", body[:4])
            tag, body = tag & 0xFFF, body[4:]
        if tag != self.vlan:
            self.untagged += 1
            return
        if kind == 0x0806:
            self.arp(source, body)
        elif kind == 0x0800 and body[9] == 17:
            header = (body[0] & 15) * 4
            udp = body[header:]
            port, payload = struct.unpack("!H", udp[2:4])[0], udp[8:struct.unpack("!H", udp[4:6])[0]]
            if port == 67:
                self.dhcp(source, frame[:6] != b"\xff" * 6, payload)
            elif port == 123 and self.time and body[16:20] == packed(self.time):
                self.udp(source, frame[:6], body[16:20], body[12:16], 123, struct.unpack("!H", udp[:2])[0],
                         timeserver.answer(payload))

    def send(self, destination, source, kind, body):
        tag = struct.pack("!HH", 0x8100, self.vlan) if self.vlan else b""
        self.near.sendto(destination + source + tag + struct.pack("!H", kind) + body, ("127.0.0.1", self.guest))

    def arp(self, source, body):
        operation, target = struct.unpack("!H", body[6:8])[0], body[24:28]
        macs = {packed(s.address): s.mac for s in self.servers}
        if self.time:
            macs[packed(self.time)] = bytes([2, 0, 0, *packed(self.time)[1:]])
        if operation == 1 and target in macs:
            mac = macs[target]
            self.send(source, mac, 0x0806, body[:6] + struct.pack("!H", 2) + mac + target + source + body[14:18])

    def dhcp(self, source, unicast, message):
        options, at = {}, 240
        while at < len(message) and message[at] != 255:
            if message[at] == 0:
                at += 1
                continue
            length = message[at + 1]
            options[message[at]] = message[at + 2:at + 2 + length]
            at += 2 + length
        # The network's time begins with the first question.
        self.began = self.began or time.monotonic()
        elapsed = time.monotonic() - self.began
        kind = options[53][0]
        self.seen.append((elapsed, kind, options, unicast))
        if elapsed < self.silent:
            return
        for server in self.servers:
            answer = server.answer(kind, options)
            if answer is not None:
                self.reply(server, answer, source, message)

    def reply(self, server, kind, source, question):
        message = bytearray(question[:236])
        message[0] = 2
        message[16:20] = packed(server.grant) if kind != NAK else bytes(4)
        options = {53: bytes([kind]), 54: packed(server.address)}
        if kind != NAK:
            options |= {51: struct.pack("!I", server.lease), **server.options}
        body = bytes(message) + b"\x63\x82\x53\x63"
        for code, value in options.items():
            body += bytes([code, len(value)]) + value
        body += b"\xff"
        self.udp(source, server.mac, packed(server.address), packed(server.grant), 67, 68, body)

    def udp(self, mac, own_mac, address, to, port, to_port, body):
        udp = struct.pack("!HHHH", port, to_port, 8 + len(body), 0) + body
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, address, to)
        ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
        self.send(mac, own_mac, 0x0800, ip + udp)
