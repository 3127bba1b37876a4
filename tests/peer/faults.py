"""How the peer misbehaves. All quiet by default; a test sets what it needs, `reset()` undoes it.

Connection faults (`connections`, used up one a connection, before TLS):
  "close"      closed at once            "reset"     a TCP reset at once
  "hang"       held open, never answered "plain"     answers HTTP/1.1 in clear
  "tls-close"  closed after TLS          "tls-hang"  TLS done, then silence
  "tls-garbage" TLS done, then bytes that are no HTTP/2

Reply faults (`replies`, used up one a Join that the service has processed):
  "lost"       dropped before any byte of the answer
  "cut"        closed in the middle of the answer's DATA frame
  "rst"        RST_STREAM in place of the answer     "goaway"    GOAWAY in place of the answer
  "compressed" the message's flag says compressed    "length"    the message's length is 2 GiB
  "no-trailers" END_STREAM on DATA, with no status   "silent"    nothing, the connection stays open
  "garbage"    OK with a message that does not parse "oversize"  OK with a message of 1.5 MiB
  "slow"       the right answer after `slow_s`       "headers"   64 KiB of metadata
"""

import dataclasses
import threading


@dataclasses.dataclass
class Faults:
    connections: list = dataclasses.field(default_factory=list)
    replies: list = dataclasses.field(default_factory=list)
    slow_s: float = 1.0
    statuses: list = dataclasses.field(default_factory=list)  # grpc.StatusCode, one a Join
    status_message: str = "said by the peer"
    deferrals: int = 0
    retry_after_ms: int = 1
    answer: object = None  # one of answers.REFUSED, answers.ACCEPTED
    serving: str = "good"  # one of frontend.SERVING
    # Sessions
    welcome: str = "good"  # "none", "late", "twice", "upgrade", "garbage", "oversize", "not-first", "other-version"
    welcome_delay_s: float = 0.5
    heartbeat_interval_ms: int = 1000
    answer_heartbeats: bool = True
    store_events: bool = True  # and acknowledge them
    resume_position: int | None = None  # in place of what is stored
    reconnect_spread_ms: int = 1000
    signed_ahead_ms: int | None = None  # Welcome.signed_time, this much ahead of the peer's own clock
    session_status: list = dataclasses.field(default_factory=list)  # (grpc.StatusCode, text), one a session

    def __post_init__(self):
        self._lock = threading.Lock()

    def take(self, name: str):
        """The next entry of one of the lists, or None."""
        with self._lock:
            entries = getattr(self, name)
            return entries.pop(0) if entries else None

    def reset(self) -> None:
        self.__dict__.update(Faults().__dict__)
