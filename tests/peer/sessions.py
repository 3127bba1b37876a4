"""The SessionService (docs/protocol.md 6), and a record of everything a node said in it."""

import queue
import threading
import time

import grpc
from cryptography import x509
from google.protobuf.message import DecodeError

from . import dsse, pki, protos

VERSIONS = [1]
HELLO_S = 10


class End(Exception):
    def __init__(self, code: grpc.StatusCode, message: str = ""):
        super().__init__(message)
        self.code, self.message = code, message


class Session:
    """One session as the gateway sees it. A test reads `frames` and may `send` what it likes."""

    def __init__(self, gateway, node_id: str, hello, certificate):
        self.gateway, self.node_id, self.hello, self.certificate = gateway, node_id, hello, certificate
        self.id = pki.ulid("sess")
        self.frames: list = []  # every NodeFrame after Hello, with its time in `times`
        self.times: list[float] = []
        self.state = "adopting"
        self.ended: str | None = None  # the status it ended with, or "cancelled"
        self.half_closed = False
        self.opened = time.monotonic()
        self.heard = self.opened
        self._out: queue.Queue = queue.Queue()

    def send(self, frame) -> None:
        """A GatewayFrame, or raw bytes in its place."""
        self._out.put(frame if isinstance(frame, bytes) else frame.SerializeToString())

    def send_spec(self, sections, generation=1, node_id=None, key=None, purpose="node-spec") -> None:
        spec = protos.NodeSpec(node_id=node_id or self.node_id, generation=generation)
        for name in sections:
            spec.sections.add(name=name, body=b"")
        envelope = dsse.sign(spec.SerializeToString(), purpose, key or self.gateway.join_service.signing_key)
        self.send(protos.GatewayFrame(spec=envelope))

    def send_command(self, kind: str) -> str:
        command = protos.Command(id=pki.ulid("cmd"), kind=kind, deadline_ms=pki.now_ms() + 60_000)
        self.send(protos.GatewayFrame(command=command))
        return command.id

    def drain(self, after_ms: int = 1, reason: str = "moving") -> None:
        self.send(protos.GatewayFrame(drain=protos.Drain(reconnect_after_ms=after_ms, reason=reason)))

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, message: str = "") -> None:
        self._out.put(End(code, message))

    def ack(self, position: int) -> None:
        self.send(protos.GatewayFrame(ack=protos.Ack(position=position)))

    def of_kind(self, kind: str) -> list:
        return [getattr(f, kind) for f in list(self.frames) if f.WhichOneof("kind") == kind]

    def told(self, body: str) -> list:
        """What the node told by events: told("section_status")."""
        return [getattr(e, body) for e in self.of_kind("event") if e.WhichOneof("body") == body]

    @property
    def heartbeats(self) -> list:
        return self.of_kind("heartbeat")


class Journal:
    """What is stored of a node's journal."""

    def __init__(self):
        self.position = 0
        self.events: list = []

    def store(self, event) -> None:
        if event.sequence > self.position:
            dropped = event.events_dropped if event.WhichOneof("body") == "events_dropped" else None
            first = dropped.first if dropped else event.sequence
            assert not self.events or first <= self.position + 1, f"a gap before event {event.sequence}"
            self.events.append(event)
            self.position = event.sequence


class SessionService:
    def __init__(self, gateway):
        self.gateway = gateway
        self.journals: dict[tuple[str, bytes], Journal] = {}
        self.sessions: list[Session] = []  # all, the newest last
        self.refused: list[tuple[str, str]] = []  # (code, message) of calls that became no session

    def serve(self, requests, context):
        session = None
        try:
            session = self._open(requests, context)
            yield from self._run(session, requests, context)
        except End as end:
            if session is None:
                self.refused.append((end.code.name, end.message))
            else:
                session.ended = end.code.name
                session.state = "disconnected"
            self.gateway.changed()
            if end.code != grpc.StatusCode.OK:
                context.abort(end.code, end.message)
        finally:
            if session is not None:
                session.ended = session.ended or "cancelled"
                session.state = "disconnected"
            self.gateway.changed()

    def _open(self, requests, context) -> Session:
        certificate = self.gateway.frontend.certificate_of(context.peer())
        if certificate is None:
            raise End(grpc.StatusCode.UNAUTHENTICATED, "a session needs the node's client certificate")
        status = self.gateway.faults.take("session_status")
        if status is not None:
            raise End(*status)
        names = pki.uri_names(x509.load_der_x509_certificate(certificate))
        first: queue.Queue = queue.Queue()
        threading.Thread(target=lambda: first.put(_next(requests)), daemon=True).start()
        try:
            data = first.get(timeout=HELLO_S)
        except queue.Empty:
            raise End(grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello within 10 s") from None
        frame = _parse(data)
        if frame is None or frame.WhichOneof("kind") != "hello":
            raise End(grpc.StatusCode.INVALID_ARGUMENT, "the first frame of a session is Hello")
        hello = frame.hello
        if len(names) != 1 or names[0].rsplit("/", 1)[-1] != hello.node_id:
            raise End(grpc.StatusCode.PERMISSION_DENIED, f"the certificate is not the one of {hello.node_id}")
        node = self.gateway.join_service.nodes.get(hello.node_id)
        if node is None or node.deleted:
            raise End(grpc.StatusCode.PERMISSION_DENIED, f"{hello.node_id} is not a node of this fleet")
        session = Session(self.gateway, hello.node_id, hello, certificate)
        for other in self.sessions:
            if other.node_id == session.node_id and other.ended is None:
                other.end(grpc.StatusCode.ABORTED, "replaced by a newer session")
        self.sessions.append(session)
        self.gateway.changed()
        return session

    def _run(self, session: Session, requests, context):
        context.add_callback(lambda: session.end(grpc.StatusCode.CANCELLED, "the node went away"))
        threading.Thread(target=self._read, args=(session, requests), daemon=True).start()
        interval = (self.gateway.faults.heartbeat_interval_ms or 45_000) / 1000
        yield from self._welcome(session)
        while True:
            wait = session.heard + 2 * interval - time.monotonic()
            try:
                out = session._out.get(timeout=max(wait, 0.01))
            except queue.Empty:
                if time.monotonic() - session.heard >= 2 * interval:
                    raise End(grpc.StatusCode.DEADLINE_EXCEEDED, "nothing heard for two intervals") from None
                continue
            if isinstance(out, End):
                raise out
            yield out

    def journal(self, session: Session) -> Journal:
        return self.journals.setdefault((session.node_id, session.hello.journal_id), Journal())

    def _welcome(self, session: Session):
        faults = self.gateway.faults
        common = set(VERSIONS) & set(session.hello.protocol_versions)
        welcome = protos.Welcome(
            protocol_version=max(common, default=0),
            server_time_ms=pki.now_ms(),
            resume_position=faults.resume_position if faults.resume_position is not None
            else self.journal(session).position,
            reconnect_spread_ms=faults.reconnect_spread_ms,
            upgrade_required=not common,
            heartbeat_interval_ms=faults.heartbeat_interval_ms,
            session_id=session.id,
        )
        if faults.signed_ahead_ms is not None:
            signed = protos.ServerTime(time_ms=pki.now_ms() + faults.signed_ahead_ms)
            key = self.gateway.join_service.signing_key
            welcome.signed_time.CopyFrom(dsse.sign(signed.SerializeToString(), "server-time", key))
        how = faults.welcome
        if how == "none":
            return
        if how == "late":
            time.sleep(faults.welcome_delay_s)
        if how == "upgrade":
            welcome.protocol_version, welcome.upgrade_required = 0, True
        if how == "other-version":
            welcome.protocol_version = 7
        if how == "not-first":
            yield protos.GatewayFrame(heartbeat=protos.Heartbeat(sequence=1)).SerializeToString()
        if how == "garbage":
            yield b"\xff" * 50
            return
        if how == "oversize":
            welcome.session_id = "x" * (1536 * 1024)
        frame = protos.GatewayFrame(welcome=welcome).SerializeToString()
        yield frame
        if how == "twice":
            yield frame

    def _read(self, session: Session, requests) -> None:
        while True:
            data = _next(requests)
            if data is None:
                session.half_closed = True
                session.end()
                return
            if isinstance(data, Exception):
                return  # cancelled: the context's callback ends it
            frame = _parse(data)
            if frame is None:
                session.end(grpc.StatusCode.INVALID_ARGUMENT, "a frame that does not parse")
                return
            session.heard = time.monotonic()
            session.frames.append(frame)
            session.times.append(session.heard)
            if frame.WhichOneof("kind") == "heartbeat":
                session.state = "connected"
                if self.gateway.faults.answer_heartbeats:
                    answer = protos.Heartbeat(sequence=frame.heartbeat.sequence, time_ms=pki.now_ms())
                    session.send(protos.GatewayFrame(heartbeat=answer))
            if frame.WhichOneof("kind") == "event" and self.gateway.faults.store_events:
                journal = self.journal(session)
                journal.store(frame.event)
                session.ack(journal.position)
            self.gateway.changed()


def _next(requests):
    """The next message, None at the end of the stream, or the exception that ended it."""
    try:
        return next(requests, None)
    except Exception as error:  # grpcio raises bare exceptions for a cancelled stream
        return error


def _parse(data):
    if not isinstance(data, bytes):
        return None
    try:
        return protos.NodeFrame.FromString(data)
    except DecodeError:
        return None
