"""Our server against a client on grpcio."""

import contextlib
import socket
import threading
import time

import grpc
import pytest


class Client:
    def __init__(self, channel, pb):
        self.channel, self.pb = channel, pb
        self.echo = self.method("Echo", pb.Blob)
        self.refuse = self.method("Refuse", pb.RefuseRequest)
        self.hang = self.method("Hang", pb.Blob)
        self.missing = self.method("Missing", pb.Blob)
        self.talk = channel.stream_stream(
            "/probe.Probe/Talk", request_serializer=pb.Blob.SerializeToString,
            response_deserializer=pb.Blob.FromString)

    def method(self, name, request):
        return self.channel.unary_unary(
            f"/probe.Probe/{name}", request_serializer=request.SerializeToString,
            response_deserializer=self.pb.Blob.FromString)


@pytest.fixture
def client(served, pb):
    with grpc.insecure_channel(f"127.0.0.1:{served.port}") as channel:
        yield Client(channel, pb)


@contextlib.contextmanager
def status(code):
    with pytest.raises(grpc.RpcError) as raised:
        yield raised
    assert raised.value.code() == code, raised.value


@pytest.mark.parametrize("size", [0, 1, 16_378, 65_535, 100_000, 1_048_570])
def test_a_unary_call_of_any_size_is_answered(client, pb, size):
    blob = pb.Blob(data=bytes(n % 251 for n in range(size)))
    assert client.echo(blob, timeout=20) == blob


def test_many_calls_go_over_one_connection(client, pb):
    blob = pb.Blob(data=b"x" * 5000)
    calls = [client.echo.future(blob, timeout=20) for _ in range(500)]
    assert all(call.result() == blob for call in calls)


@pytest.mark.parametrize("message", ["plain", "100 % sure", "Größe 😀", "two\r\nlines", "", "a%41b"])
def test_a_refusal_comes_with_its_message(client, pb, message):
    with status(grpc.StatusCode.PERMISSION_DENIED) as raised:
        client.refuse(pb.RefuseRequest(code=7, message=message), timeout=20)
    assert raised.value.details() == message


def test_a_method_that_is_not_there_is_unimplemented(client, pb):
    with status(grpc.StatusCode.UNIMPLEMENTED):
        client.missing(pb.Blob(), timeout=20)


def test_a_message_above_the_limit_is_refused(client, pb):
    with status(grpc.StatusCode.RESOURCE_EXHAUSTED):
        client.echo(pb.Blob(data=b"x" * (1 << 20)), timeout=20)
    # The connection serves others still.
    client.echo(pb.Blob(), timeout=20)


def test_bytes_that_are_no_message_are_refused(client, pb):
    raw = client.channel.unary_unary("/probe.Probe/Echo")
    with status(grpc.StatusCode.INVALID_ARGUMENT):
        raw(b"\x0a\xff\xff", timeout=20)


def test_a_compressed_request_is_unimplemented(client, pb):
    with status(grpc.StatusCode.UNIMPLEMENTED):
        client.echo(pb.Blob(data=b"x" * 10_000), timeout=20, compression=grpc.Compression.Gzip)


def test_a_deadline_ends_the_call_on_both_sides(served, client, pb):
    with status(grpc.StatusCode.DEADLINE_EXCEEDED):
        client.hang(pb.Blob(), timeout=0.3)
    assert served.line() == {"cancelled": True}


def test_a_cancelled_call_is_dropped(served, client, pb):
    call = client.hang.future(pb.Blob(), timeout=20)
    time.sleep(0.2)
    call.cancel()
    assert served.line() == {"cancelled": True}


@pytest.mark.parametrize("count, size", [(0, 0), (1, 0), (1000, 1), (20, 100_000), (3, 1_000_000)])
def test_a_stream_goes_both_ways(client, pb, count, size):
    blobs = [pb.Blob(data=bytes(n % 251 for n in range(size + i))) for i in range(count)]
    answers = list(client.talk(iter(blobs), timeout=30))
    assert [a.data[::-1] for a in answers] == [b.data for b in blobs]


def test_a_stream_ends_with_the_servers_status(client, pb):
    with status(grpc.StatusCode.ABORTED) as raised:
        list(client.talk(iter([pb.Blob(data=b"ab"), pb.Blob(data=b"end")]), timeout=20))
    assert raised.value.details() == "as asked"


def test_a_reader_that_stops_is_not_buffered_for(client, pb):
    """The client writes 40 MB and reads nothing; flow control must stop it, and the rest still works."""
    sent = 0
    stop = threading.Event()

    def blobs():
        nonlocal sent
        while sent < 400 and not stop.is_set():
            sent += 1
            yield pb.Blob(data=b"x" * 100_000)

    call = client.talk(blobs(), timeout=30)
    time.sleep(1.5)
    stalled = sent
    client.echo(pb.Blob(), timeout=20)
    assert stalled < 200
    stop.set()
    call.cancel()


@pytest.mark.parametrize("served", [True], indirect=True)
def test_tls_with_alpn(served, pb, tls):
    credentials = grpc.ssl_channel_credentials(tls["ca"].read_bytes())
    with grpc.secure_channel(f"localhost:{served.port}", credentials) as channel:
        client = Client(channel, pb)
        blob = pb.Blob(data=b"x" * 500_000)
        assert client.echo(blob, timeout=20) == blob


def test_a_client_that_floods_with_pings_is_cut_off(served):
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.settimeout(10)
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        ping = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"12345678"
        # Answers are read meanwhile, so that only the count of pings can be what ends this.
        threading.Thread(target=drain, args=(connection,), daemon=True).start()
        with pytest.raises(OSError):
            for _ in range(200):
                connection.sendall(ping * 50)
                time.sleep(0.002)
    assert "floods" in served.line()["closed"]


def drain(connection):
    with contextlib.suppress(OSError):
        while connection.recv(65_536):
            pass
