"""Someone at the helper's socket, run as a program of its own: does what its arguments say, in order, and prints
each line that the helper says.
"""

import array
import json
import os
import socket
import sys
import time

SOCKET, *ACTIONS = sys.argv[1:]


class Peer:
    def __init__(self):
        self.line, self.socket = {}, None

    def connect(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(SOCKET)
        self.socket.set_inheritable(True)

    def inherit(self, fd):
        """The socket that this program was started with."""
        self.socket = socket.socket(fileno=int(fd))

    def hear(self):
        said = b""
        while not said.endswith(b"\n"):
            part = self.socket.recv(1)
            if not part:
                break
            said += part
        self.line = json.loads(said) if said else {"end": True}
        print(json.dumps(self.line), flush=True)

    def request(self, operation):
        return json.dumps({"protocol": 1, "nonce": self.line.get("nonce", "0" * 32), "operation": operation, "for": "test"},
                          separators=(",", ":"))

    def ask(self, operation):
        self.socket.sendall(self.request(operation).encode() + b"\n")

    def say(self, text):
        """Bytes as they are; NONCE is the greeting's."""
        self.socket.sendall(text.replace("NONCE", self.line.get("nonce", "")).encode())

    def fill(self, count):
        self.socket.sendall(b"x" * int(count))

    def dribble(self, seconds):
        """A byte now and then, for so long or until the helper has had enough."""
        end = time.monotonic() + float(seconds)
        try:
            while time.monotonic() < end:
                self.socket.sendall(b" ")
                time.sleep(0.2)
        except OSError:
            pass

    def hand(self):
        """A descriptor, along with a request."""
        fds = array.array("i", [0])
        self.socket.sendmsg([self.request("sshd.reload").encode() + b"\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])

    def flood(self, seconds):
        """Connects and goes, without pause."""
        end = time.monotonic() + float(seconds)
        count = 0
        while time.monotonic() < end:
            with socket.socket(socket.AF_UNIX) as one:
                one.setblocking(False)
                try:
                    one.connect(SOCKET)
                    count += 1
                except BlockingIOError:
                    pass
        print(json.dumps({"connected": count}), flush=True)

    def fork(self, actions):
        """A child that goes on with the socket by other actions, separated by /."""
        if os.fork() == 0:
            do(self, actions.split("/"))
            os._exit(0)

    def execute(self, program, actions):
        """Becomes another program, which has the socket."""
        os.execv(program, [program, __file__, SOCKET, f"inherit={self.socket.fileno()}", *actions.split("/")])

    def ready(self):
        print(json.dumps({"ready": os.getpid()}), flush=True)

    def wait(self, seconds):
        time.sleep(float(seconds))


def do(peer, actions):
    for action in actions:
        name, _, arguments = action.partition("=")
        getattr(peer, name)(*(arguments.split("|") if arguments else []))


do(Peer(), ACTIONS)
