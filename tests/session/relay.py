"""A TCP relay between a node and its gateway that may cut, hold up or delay what passes."""

import contextlib
import queue
import socket
import struct
import threading
import time


class Relay:
    """Listens on a port of its own. `delay` is one way, in seconds, for each piece that passes."""

    def __init__(self, target, delay=0.0, host="127.0.0.1", port=0):
        name, far = target.rsplit(":", 1)
        self.target, self.delay = (name, int(far)), delay
        self.accepted: list[float] = []  # when each connection came, by time.time()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server((host, port))
        self.host = host
        self.port = self._listener.getsockname()[1]
        self._flow = threading.Event()
        self._flow.set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"https://{self.host}:{self.port}"

    def cut(self):
        """Resets every connection."""
        with self._lock:
            connections, self._open = self._open, set()
        for connection in connections:
            _reset(connection)

    def hold(self):
        """Nothing passes until `release`; the connections stay."""
        self._flow.clear()

    def release(self):
        self._flow.set()

    def close(self):
        self._flow.set()
        self._listener.close()
        self.cut()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.accepted.append(time.time())
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near):
        try:
            far = socket.create_connection(self.target, timeout=5)
        except OSError:
            return _reset(near)
        far.settimeout(None)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {near, far}
        for source, sink in ((near, far), (far, near)):
            pieces = queue.Queue()
            threading.Thread(target=self._read, args=(source, sink, pieces), daemon=True).start()
            threading.Thread(target=self._write, args=(source, sink, pieces), daemon=True).start()

    def _read(self, source, sink, pieces):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                pieces.put((time.monotonic() + self.delay, data))
        pieces.put((time.monotonic() + self.delay, None))

    def _write(self, source, sink, pieces):
        while True:
            due, data = pieces.get()
            time.sleep(max(0.0, due - time.monotonic()))
            self._flow.wait()
            try:
                if data is None:
                    raise OSError
                sink.sendall(data)
            except OSError:
                with self._lock:
                    self._open -= {source, sink}
                for end in (source, sink):
                    _reset(end)
                return


def _reset(connection):
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # Closing alone does not wake a thread that reads.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
