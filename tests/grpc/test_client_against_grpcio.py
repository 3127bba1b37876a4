"""Our client against a server on grpcio."""

import socket
import threading
import time
from concurrent import futures

import grpc
import pytest


class Probe:
    """The probe's service on grpcio."""

    def __init__(self, pb, credentials=None, **options):
        self.pb = pb
        self.cancelled = threading.Event()
        self.remaining = None
        handlers = {
            "Echo": grpc.unary_unary_rpc_method_handler(
                self.echo, pb.Blob.FromString, pb.Blob.SerializeToString),
            "Refuse": grpc.unary_unary_rpc_method_handler(
                self.refuse, pb.RefuseRequest.FromString, pb.Blob.SerializeToString),
            "Hang": grpc.unary_unary_rpc_method_handler(
                self.hang, pb.Blob.FromString, pb.Blob.SerializeToString),
            "Talk": grpc.stream_stream_rpc_method_handler(
                self.talk, pb.Blob.FromString, pb.Blob.SerializeToString),
        }
        self.server = grpc.server(
            futures.ThreadPoolExecutor(8), options=list(options.items()),
            compression=options.pop("compression", None))
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("probe.Probe", handlers),))
        if credentials:
            self.port = self.server.add_secure_port("127.0.0.1:0", credentials)
        else:
            self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def echo(self, request, context):
        return request

    def refuse(self, request, context):
        code = next(code for code in grpc.StatusCode if code.value[0] == request.code)
        context.abort(code, request.message)

    def hang(self, request, context):
        self.remaining = context.time_remaining()
        context.add_callback(self.cancelled.set)
        self.cancelled.wait(10)
        return request

    def talk(self, requests, context):
        context.add_callback(self.cancelled.set)
        for request in requests:
            if request.data == b"end":
                context.abort(grpc.StatusCode.ABORTED, "as asked")
            yield self.pb.Blob(data=request.data[::-1])


@pytest.fixture
def server(pb):
    probe = Probe(pb)
    yield probe
    probe.server.stop(0).wait()


@pytest.mark.parametrize("size", [0, 1, 16_378, 65_535, 100_000, 1_000_000, 1_048_570])
def test_a_unary_call_of_any_size_is_answered(server, ask, size):
    assert ask("call", "127.0.0.1", server.port, "-", "echo", size) == {"ok": "true"}


@pytest.mark.parametrize("message", ["plain", "100 % sure", "Größe 😀", "", "a%41b", "x" * 900])
def test_a_refusal_comes_with_its_message(server, ask, message):
    got = ask("call", "127.0.0.1", server.port, "-", "refuse", 7, message)
    assert (got["code"], got["message"], got["phase"]) == ("PERMISSION_DENIED", message, "answer")


def test_a_message_of_many_lines_is_shown_on_one(server, ask):
    got = ask("call", "127.0.0.1", server.port, "-", "refuse", 5, "a\r\nb\x1b[31m")
    assert (got["code"], got["message"]) == ("NOT_FOUND", "a  b [31m")


@pytest.mark.parametrize("code", [c for c in grpc.StatusCode if c.value[0] != 0], ids=lambda c: c.name)
def test_every_code_is_known(server, ask, code):
    assert ask("call", "127.0.0.1", server.port, "-", "refuse", code.value[0], "x")["code"] == code.name


def test_a_method_that_is_not_there_is_unimplemented(server, ask):
    assert ask("call", "127.0.0.1", server.port, "-", "missing")["code"] == "UNIMPLEMENTED"


def test_a_deadline_is_told_kept_and_cancels(server, ask):
    began = time.monotonic()
    got = ask("call", "127.0.0.1", server.port, "-", "hang", 400)
    assert got["code"] == "DEADLINE_EXCEEDED"
    assert time.monotonic() - began < 5
    assert 0.1 < server.remaining <= 0.4
    assert server.cancelled.wait(5)


@pytest.mark.parametrize("count, size", [(0, 0), (1, 0), (1000, 1), (20, 100_000), (3, 1_000_000)])
def test_a_stream_goes_both_ways(server, ask, count, size):
    assert ask("call", "127.0.0.1", server.port, "-", "talk", count, size) == {"ok": str(count)}


def test_a_stream_ends_with_the_servers_status(server, ask):
    got = ask("call", "127.0.0.1", server.port, "-", "talk-end")
    assert (got["code"], got["message"]) == ("ABORTED", "as asked")


def test_a_stream_that_is_dropped_is_cancelled_at_the_server(server, ask):
    assert ask("call", "127.0.0.1", server.port, "-", "cancel") == {"ok": ""}
    assert server.cancelled.wait(5)


def test_a_compressed_answer_is_refused(pb, ask):
    probe = Probe(pb, compression=grpc.Compression.Gzip)
    got = ask("call", "127.0.0.1", probe.port, "-", "echo", 10_000)
    probe.server.stop(0).wait()
    # grpcio compresses although our request does not say that it can read that.
    assert (got["code"], got["phase"]) == ("UNIMPLEMENTED", "answer")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_tls(pb, ask, tls, host):
    credentials = grpc.ssl_server_credentials([(tls["key"].read_bytes(), tls["chain"].read_bytes())])
    probe = Probe(pb, credentials)
    assert ask("call", host, probe.port, tls["ca"], "echo", 300_000) == {"ok": "true"}
    assert ask("call", host, probe.port, tls["ca"], "talk", 50, 20_000) == {"ok": "50"}
    got = ask("call", host, probe.port, tls["chain"], "echo", 1)
    assert got["phase"] == "TLS handshake", got
    probe.server.stop(0).wait()


def test_a_server_that_hangs_after_accept_names_the_phase(ask, tls):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        got = ask("call", "127.0.0.1", port, "-", "hang", 300)
        assert (got["code"], got["phase"]) == ("DEADLINE_EXCEEDED", "HTTP/2 settings")


def test_a_server_that_is_no_grpc_server(ask):
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        threading.Thread(target=answer, daemon=True).start()
        got = ask("call", "127.0.0.1", server.getsockname()[1], "-", "echo", 1)
        assert got["code"] == "UNAVAILABLE", got
