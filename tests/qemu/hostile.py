"""A network whose every program lies: frames of all the kinds that init reads, each broken in its own way, before the one
good answer comes. Written from RFC 2131, 4861, 8106, 8415, 4330 and IEEE 802.1AB."""

import ipaddress
import random
import struct

from qemu.network import ACK, NAK, OFFER, Server, Wire, checksum, packed

LIAR = bytes.fromhex("020000000666")
EVERYBODY = bytes.fromhex("333300000001")
SWITCH, GROUP, LLDP = bytes.fromhex("001c73010203"), bytes.fromhex("0180c200000e"), 0x88CC
LONG = 0xFFFFFFFF


def address(text):
    return ipaddress.IPv6Address(text).packed


def option6(code, value):
    return struct.pack("!HH", code, len(value)) + value


def tlv(kind, value, length=None):
    return struct.pack("!H", kind << 9 | (len(value) if length is None else length) & 0x1FF) + value


def rdnss(servers, lifetime=LONG):
    return struct.pack("!BBHI", 25, 1 + 2 * len(servers), 0, lifetime) + b"".join(map(address, servers))


class Hostile(Wire):
    """`time` answers for the time, `fd99::1` as router and by DHCPv6; `asked6` counts what DHCPv6 was asked."""

    def __init__(self, good, time):
        # Another server offers as quickly as the good one, and then never grants.
        super().__init__([Server("10.9.0.66", "10.9.0.166"), good], time=time)
        self.good, self.dice, self.asked6, self.guest_mac = good, random.Random(6), 0, None
        self.advertised = 0

    def frame(self, frame):
        source, kind = frame[6:12], struct.unpack("!H", frame[12:14])[0]
        if source not in (LIAR, SWITCH):
            self.guest_mac = source
        if kind == 0x86DD and frame[20] == 17 and struct.unpack("!H", frame[56:58])[0] == 547:
            self.asked6 += 1
            self.dhcpv6(source, frame[22:38], frame[62:])
        elif kind == 0x86DD and frame[20] == 58 and frame[54] == 133:
            self.advertise()
        super().frame(frame)

    # DHCP

    def reply(self, server, kind, source, question):
        if server is not self.good:
            if kind == OFFER:
                super().reply(server, OFFER, source, question)
            return
        for broken in self.broken(kind, question):
            self.udp(source, LIAR, packed("10.9.0.66"), packed("255.255.255.255"), 67, 68, broken)
        self.rubbish(source)
        super().reply(server, kind, source, question)

    def broken(self, kind, question):
        head = bytearray(question[:236])
        head[0] = 2
        head[16:20] = packed("10.9.0.200")
        cookie = b"\x63\x82\x53\x63"
        one = bytes([53, 1, kind, 54, 4, 10, 9, 0, 66, 51, 4, 0, 0, 14, 16])

        def with_head(at, value):
            other = bytearray(head)
            other[at:at + len(value)] = value
            return bytes(other)

        yield bytes(head) + cookie + one[:-4] + bytes(4) + b"\xff"  # a lease of no time
        yield bytes(head) + cookie + one[:3] + one[9:] + b"\xff"  # no server
        yield bytes(head) + cookie + one + bytes([1, 4, 255, 0, 255, 0]) + b"\xff"  # a mask with holes
        yield bytes(head) + cookie + one + bytes([1, 4, 0, 0, 0, 0]) + b"\xff"
        yield bytes(head) + b"\x63\x82\x53\x64" + one + b"\xff"
        yield bytes(head)[:100]
        yield bytes(head) + cookie
        yield bytes(head) + cookie + one[:-1]
        yield bytes(head) + cookie + bytes([53, 255]) + one
        yield with_head(4, b"\0\0\0\0") + cookie + one + b"\xff"  # another transaction
        yield with_head(28, LIAR) + cookie + one + b"\xff"  # another machine
        for wrong in ("0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.9", "255.255.255.255"):
            yield with_head(16, packed(wrong)) + cookie + one + b"\xff"
        # The name fields hold options, which hold name fields.
        yield with_head(44, bytes([52, 1, 3] * 64)) + cookie + bytes([52, 1, 3]) + one[:3] + b"\xff"
        yield bytes(head) + cookie + one[:3] + bytes([0] * 1400)
        yield bytes(head) + cookie + one + bytes([121, 255]) + bytes([33] * 255) + b"\xff" * 1300
        for _ in range(40):
            yield bytes(head) + cookie + self.dice.randbytes(self.dice.randrange(1200))
        # Somebody else's refusal, and a grant of what was not asked for.
        yield bytes(head) + cookie + bytes([53, 1, NAK, 54, 4, 10, 9, 0, 67, 255])
        yield with_head(16, packed("10.9.0.201")) + cookie + bytes([53, 1, ACK, 54, 4, 10, 9, 0, 67, 51, 4, 0, 0, 1, 0, 255])

    def rubbish(self, source):
        """What is no datagram at all."""
        for _ in range(40):
            self.send(source, LIAR, 0x0800, b"\x45" + self.dice.randbytes(self.dice.randrange(1, 400)))
            self.send(source, LIAR, 0x86DD, b"\x60" + self.dice.randbytes(self.dice.randrange(1, 400)))
        ip = struct.pack("!BBHHHBBH4s4s", 0x4F, 0, 60, 0, 0, 64, 17, 0, packed("10.9.0.66"), packed("10.9.0.50"))
        self.send(source, LIAR, 0x0800, ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:])
        for said in self.switches():
            self.send(GROUP, SWITCH, LLDP, said)

    def switches(self):
        three = tlv(1, b"\x04" + SWITCH) + tlv(2, b"\x05swp1") + tlv(3, b"\0\x78")
        yield b""
        yield tlv(1, b"", 511)
        yield tlv(2, b"\x05x") + three
        yield three[:-1]
        yield tlv(1, b"\x04" + SWITCH) + tlv(2, b"\x05swp1") + tlv(3, b"\0\0") + tlv(0, b"")
        yield self.dice.randbytes(900)
        yield three + tlv(5, b"\x1b]0;owned\x07\x1b[2Jleaf\r\n\xe2\x80\xae\xff" + b"x" * 400) + tlv(127, b"\xff" * 500) * 2

    def udp(self, mac, own_mac, own, to, port, to_port, body):
        if port == 123:
            right = body
            for broken in (b"", right[:40], bytes(48), b"\x24\x00" + right[2:], b"\xe4" + right[1:],
                           right[:24] + bytes(8) + right[32:], right[:40] + bytes(8),
                           right[:40] + struct.pack("!II", 2_208_988_800 + 86_400, 0)):
                if broken != right:
                    super().udp(mac, own_mac, own, to, port, to_port, broken)
        super().udp(mac, own_mac, own, to, port, to_port, body)

    # IPv6

    def ipv6(self, to, source, target, following, body):
        total = checksum(source + target + struct.pack("!II", len(body), following) + body)
        at = 6 if following == 17 else 2
        body = body[:at] + struct.pack("!H", total or 0xFFFF) + body[at + 2:]
        head = struct.pack("!IHBB", 6 << 28, len(body), following, 255) + source + target
        self.send(to, LIAR, 0x86DD, head + body)

    def advertise(self):
        """Routers, all of one address, that contradict each other; the last one is good."""
        self.advertised += 1
        prefix = struct.pack("!BBBBIII", 3, 4, 64, 0xC0, 3600, 1800, 0) + address("fd99::")
        for flags, life, options in [
            (0xC0, 0xFFFF, rdnss([]) + b"\x19\x00" + bytes(6)),
            (0xFF, 0, rdnss(["::", "::1", "ff02::1", "fe80::1"])),
            (0xC0, 1800, struct.pack("!BBHI", 5, 1, 0, 0) + struct.pack("!BBHI", 5, 1, 0, LONG)),  # an MTU of 0
            (0xC0, 1800, b"".join(rdnss([f"fd99:{n:x}::53"], 0) for n in range(40))),
            (0xC0, 1800, struct.pack("!BBBBIII", 3, 4, 255, 0xC0, LONG, LONG, 0) + address("ff00::")),
            (0xC0, 1800, bytes([31, 2, 0, 0, 255, 255, 255, 255]) + b"\x3fx\n\0\xff\xff\xff\xff"),
            (0x40, 1800, prefix + rdnss(["fd99::53"])),
        ]:
            body = struct.pack("!BBHBBHII", 134, 0, 0, 64, flags, life, 0, 0) + options
            self.ipv6(EVERYBODY, address("fe80::666"), address("ff02::1"), 58, body)

    def dhcpv6(self, source, to, question):
        transaction, options, at = question[1:4], {}, 4
        while at + 4 <= len(question):
            code, length = struct.unpack("!HH", question[at:at + 4])
            options[code] = question[at + 4:at + 4 + length]
            at += 4 + length
        whole = option6(1, options[1]) + option6(2, b"\0\x03\0\x01" + LIAR)
        names = option6(23, address("fd99::54")) + option6(24, b"\x03lab\x07example\0")
        for kind, number, body in [
            (2, transaction, whole + names), (7, b"\0\0\0", whole + names), (7, transaction, names),
            (7, transaction, option6(1, b"another") + whole[14:] + names), (7, transaction, whole + option6(13, b"\0\x02") + names),
            (7, transaction, whole + option6(23, b"x") + struct.pack("!HH", 23, 0xFFFF) + b"x"),
            (7, transaction, whole + option6(32, b"\0")), (7, transaction, whole[:-3]), (7, b"", b""), (255, transaction, whole),
            (7, transaction, whole + option6(56, option6(1, b"x" * 15)) * 100 + names),
            (7, transaction, whole + names + option6(24, b"\x09a b\nc d e\0") + option6(23, address("ff02::9") + address("fe80::9"))
             + option6(32, bytes(4))),
        ]:
            body = bytes([kind]) + number + body
            self.ipv6(source, address("fe80::666"), to, 17, struct.pack("!HHHH", 547, 546, 8 + len(body), 0) + body)
