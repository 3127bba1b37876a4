"""A join whose cable is cut after any number of bytes, in either direction.

A proxy stands between bcd and the gateway. It lets so many bytes of the first connection pass, and then
ends it, by a FIN or a RST; every later connection passes. The join must finish by itself, as one node,
with the one token: a reply that was lost on the way is the case that everything is bound to the node's key for.
"""

import concurrent.futures
import socket
import struct
import threading

import pytest

from join.test_crash import whole_or_none

# Bytes between two cuts. A prime, so that no field's width hides between them.
STEP = 97


class Scissors:
    """A proxy to `target` that cuts its first connection after `cut` bytes of `direction` ("up" is from the node)."""

    def __init__(self, target, direction=None, cut=None, reset=False):
        host, port = target.rsplit(":", 1)
        self.target, self.direction, self.cut, self.reset = (host, int(port)), direction, cut, reset
        self.passed = {"up": 0, "down": 0}
        self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            far = socket.create_connection(self.target)
            first = self.connections == 1
            for direction, source, sink in (("up", near, far), ("down", far, near)):
                threading.Thread(target=self._pump, args=(direction, source, sink, first), daemon=True).start()

    def _pump(self, direction, source, sink, first):
        try:
            while data := source.recv(65536):
                if first and direction == self.direction:
                    data = data[:self.cut - self.passed[direction]]
                if data:
                    sink.sendall(data)
                if first:
                    self.passed[direction] += len(data)
                    if direction == self.direction and self.passed[direction] >= self.cut:
                        break
            else:
                sink.shutdown(socket.SHUT_WR)
                return
        except OSError:
            pass
        for end in (source, sink):
            try:
                if self.reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
            except OSError:
                pass

    def close(self):
        self.listener.close()


@pytest.fixture(scope="module")
def length(fleet, bcd, tmp_path_factory):
    """How many bytes a whole join sends and gets, over TLS."""
    from lab import Node

    proxy = Scissors(fleet.gateway)
    node = Node([bcd], fleet, tmp_path_factory.mktemp("length") / "whole", gateway_url=f"https://127.0.0.1:{proxy.port}")
    node.join(fleet.token())
    proxy.close()
    assert proxy.connections == 1 and proxy.passed["up"] > 1000 and proxy.passed["down"] > 1000, proxy.passed
    return dict(proxy.passed)


# Some fifty joins, each with a pause before its second try.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_join_cut_after_any_number_of_bytes_finishes_as_one_node(fleet, machine, length, direction, reset):
    # One more at the end, where the answer is whole and only the goodbye is missing.
    cuts = sorted({*range(0, length[direction], STEP), length[direction] - 1})
    before = {node["id"] for node in fleet.nodes()}
    # Node's directory is made by one thread at a time.
    made = []
    for cut in cuts:
        proxy = Scissors(fleet.gateway, direction, cut, reset)
        node = machine(f"{direction}{cut}", gateway_url=f"https://127.0.0.1:{proxy.port}")
        made.append((cut, proxy, node, fleet.token()))

    def join(of):
        cut, proxy, node, token = of
        done = node.run("join", token=token)
        proxy.close()
        where = f"cut {direction} after {cut} bytes: "
        assert done.returncode == 0, where + done.stderr
        assert len(done.stdout.splitlines()) == 1 and done.stdout.startswith("joined as "), where + done.stdout
        # A token is never printed, and every line that tells of a retry is one line with its reason.
        assert token.split(".")[1] not in done.stderr
        for line in done.stderr.splitlines():
            assert line.startswith("bcd join: ") and "trying again in" in line, where + line
        assert proxy.connections <= 3, f"{where}{proxy.connections} connections"
        return whole_or_none(node.data_dir)["node_id"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        joined = list(pool.map(join, made))
    assert len(set(joined)) == len(cuts)
    assert {node["id"] for node in fleet.nodes()} - before == set(joined), "a join that was cut left a second node"
