"""The peer put together: JoinService, SessionService and the port, and a node's configuration."""

import concurrent.futures
import json
import pathlib
import threading
import time

import grpc

from . import pki, protos
from .faults import Faults
from .frontend import WIRE_FAULTS, Frontend
from .joinservice import JoinService, Refusal
from .sessions import SessionService

MESSAGE = 1024 * 1024


class Peer:
    def __init__(self, directory, names=("localhost", "127.0.0.1", "::1"), listen=("127.0.0.1", 0), trust_domain="better-compute"):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.faults = Faults()
        self.serving_ca = pki.CA("peer serving CA")
        self.join_service = JoinService(self.serving_ca, self.faults, trust_domain)
        self.session_service = SessionService(self)
        self._change = threading.Condition()
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(max_workers=24),
            options=[
                ("grpc.max_receive_message_length", MESSAGE),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", 16 * 1024),
                ("grpc.compression_enabled_algorithms_bitset", 1),
                ("grpc.so_reuseport", 0),
            ],
        )
        join = grpc.method_handlers_generic_handler(
            "bettercompute.v1.JoinService", {"Join": grpc.unary_unary_rpc_method_handler(self._join)}
        )
        session = grpc.method_handlers_generic_handler(
            "bettercompute.v1.SessionService",
            {"Session": grpc.stream_stream_rpc_method_handler(self.session_service.serve)},
        )
        self._server.add_generic_rpc_handlers((join, session))
        inner_port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.frontend = Frontend(
            self.directory, self.serving_ca, self.join_service.node_ca, list(names), inner_port, self.faults, listen
        )
        self.port = self.frontend.port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self) -> None:
        self.frontend.stop()
        self._server.stop(0)

    # ---- Join -----------------------------------------------------------------------------

    def _join(self, request: bytes, context) -> bytes:
        try:
            answer = self.join_service.join(request)
        except Refusal as refusal:
            context.abort(refusal.code, refusal.message)
        finally:
            self.changed()
        fault = self.faults.take("replies")
        if fault in WIRE_FAULTS:
            self.frontend.spoil_next_answer(fault)
        elif fault == "garbage":
            return b"\xff\xff\xff\xff\x07"
        elif fault == "oversize":
            return protos.JoinResponse(deferral=protos.JoinDeferral(reason="x" * (MESSAGE * 3 // 2))).SerializeToString()
        elif fault == "slow":
            time.sleep(self.faults.slow_s)
        elif fault == "headers":
            context.send_initial_metadata([("x-filler", "x" * 65536)])
        return answer

    # ---- for tests ------------------------------------------------------------------------

    def changed(self) -> None:
        with self._change:
            self._change.notify_all()

    def wait_for(self, predicate, timeout: float = 10.0, what: str = "the peer to see it"):
        """The first true value of `predicate()`; AssertionError when it stays false."""
        deadline = time.monotonic() + timeout
        with self._change:
            while not (value := predicate()):
                left = deadline - time.monotonic()
                assert left > 0, f"waited {timeout} s in vain for {what}"
                self._change.wait(min(left, 0.1))
        return value

    @property
    def sessions(self):
        return self.session_service.sessions

    def wait_session(self, count: int = 1, state: str = "connected", timeout: float = 10.0):
        """The newest session, once there are `count` of them and it is in `state`."""
        return self.wait_for(
            lambda: len(self.sessions) >= count and self.sessions[-1].state == state and self.sessions[-1],
            timeout,
            f"session {count} to be {state}",
        )

    def config(self, **changes) -> str:
        """config.toml for a node of this peer; a key with value None is left out."""
        keys = {
            "gateway_url": f"https://localhost:{self.port}",
            "site": "site1",
            "serving_ca_spki_pin": self.serving_ca.pin,
            "join_signing_key_pin": pki.pin(self.join_service.signing_key),
            "join_encryption_key_pin": pki.pin(self.join_service.encryption_key),
        } | changes
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items() if value is not None)

    def jwk(self) -> dict:
        return pki.jwk(self.join_service.encryption_key.public_key())

    def write_node_config(self, directory, **changes) -> pathlib.Path:
        """Writes config.toml and join-encryption.jwk for a node; returns the former's path."""
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        changes.setdefault("data_dir", str(directory / "data"))
        changes.setdefault("socket_path", str(directory / "bcd.sock"))
        (directory / "data").mkdir(mode=0o700, exist_ok=True)
        (directory / "join-encryption.jwk").write_text(json.dumps(self.jwk()))
        config = directory / "config.toml"
        config.write_text(self.config(**changes))
        config.chmod(0o600)
        return config
