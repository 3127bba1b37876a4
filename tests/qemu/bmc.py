"""A BMC for a guest: what stands behind QEMU's ipmi-bmc-extern, written from QEMU's and OpenIPMI's description of that
wire and from IPMI 2.0. QEMU's own ipmi-bmc-sim is on no network, so it has no address to tell."""

import contextlib
import socket
import threading

END, COMMAND, ESCAPE = 0xA0, 0xA1, 0xAA
APP, TRANSPORT = 0x06, 0x0C
BUSY, UNKNOWN, NO_PARAMETER = b"\xc0", b"\xc1", b"\x80"


class Bmc:
    """Answers the kernel's driver, and questions for the LAN parameters of one channel. `asked` holds those."""

    def __init__(self, path, channel=1, parameters=(), busy=0):
        self.channel, self.parameters, self.busy = channel, dict(parameters), busy
        self.asked = []
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self.run, daemon=True).start()

    def arguments(self):
        return ["-chardev", f"socket,id=bmc0,path={self.path},reconnect=1", "-device", "ipmi-bmc-extern,id=bmc,chardev=bmc0",
                "-device", "isa-ipmi-kcs,bmc=bmc"]

    def close(self):
        self.listener.close()

    def run(self):
        with contextlib.suppress(OSError):
            connection, _ = self.listener.accept()
            message, escaped = bytearray(), False
            while data := connection.recv(4096):
                for byte in data:
                    if byte == END:
                        if sum(message) % 256 == 0 and len(message) >= 4:
                            connection.sendall(self.reply(message[0], message[1], message[2], bytes(message[3:-1])))
                        message.clear()
                    elif byte == COMMAND:
                        # QEMU's own: its version, what it can switch.
                        message.clear()
                    elif byte == ESCAPE:
                        escaped = True
                    else:
                        message.append(byte & ~0x10 if escaped else byte)
                        escaped = False

    def reply(self, number, function, command, data):
        answer = bytes([number, function | 4, command]) + self.answer(function >> 2, command, data)
        answer += bytes([-sum(answer) % 256])
        escaped = b"".join(bytes([ESCAPE, byte | 0x10]) if byte in (END, COMMAND, ESCAPE) else bytes([byte]) for byte in answer)
        return escaped + bytes([END])

    def answer(self, function, command, data):
        if function == APP:
            return {
                0x01: bytes([0, 0x20, 1, 1, 0, 2, 0, 0, 0, 0, 0, 0]),  # device id: IPMI 2.0
                0x2E: b"\0", 0x2F: b"\0\0",  # global enables
                0x30: b"\0", 0x31: b"\0\0",  # message flags
            }.get(command, UNKNOWN)
        if (function, command) == (TRANSPORT, 0x02):
            channel, number = data[0] & 15, data[1]
            self.asked.append((channel, number))
            if self.busy > 0:
                self.busy -= 1
                return BUSY
            if channel == self.channel and number in self.parameters:
                return b"\0\x11" + self.parameters[number]
            return NO_PARAMETER
        return UNKNOWN
