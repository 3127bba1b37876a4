"""`python -m peer --dir DIR`: the peer in the foreground, with a node's files ready in DIR.

Writes DIR/config.toml, DIR/join-encryption.jwk and DIR/token (0600), says how to join, and logs
what nodes do, until Ctrl-C. Nothing is kept: a restart is a new fleet.
"""

import argparse
import pathlib
import sys
import time

from .answers import ACCEPTED, REFUSED
from .frontend import SERVING_REFUSED
from .gateway import Peer


def main() -> int:
    parser = argparse.ArgumentParser(prog="peer", description=__doc__.splitlines()[0])
    parser.add_argument("--dir", required=True, type=pathlib.Path, help="where the node's files are written")
    parser.add_argument("--listen", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes a free one")
    parser.add_argument("--heartbeat-ms", type=int, default=5000, help="heartbeat interval")
    parser.add_argument("--serving", default="good", choices=["good", *SERVING_REFUSED, "tls12", "no-alpn"])
    parser.add_argument("--answer", choices=[*REFUSED, *ACCEPTED], help="answer every join this wrong way")
    arguments = parser.parse_args()
    with Peer(arguments.dir, listen=(arguments.listen, arguments.port)) as peer:
        peer.faults.serving = arguments.serving
        peer.faults.heartbeat_interval_ms = arguments.heartbeat_ms
        peer.faults.answer = {**REFUSED, **ACCEPTED}.get(arguments.answer)
        config = peer.write_node_config(arguments.dir)
        token = arguments.dir / "token"
        token.touch(mode=0o600)
        token.write_text(peer.join_service.create_token(ttl_s=3600) + "\n")
        print(f"listening on {arguments.listen}:{peer.port}")
        print(f"bcd join --config {config} --token-file {token}", flush=True)
        seen = None
        try:
            while True:
                now = [*peer.join_service.outcomes, *(f"{s.node_id} {s.state} {s.ended or ''}" for s in peer.sessions)]
                if now != seen:
                    print("\n".join(now[-5:]), flush=True)
                    seen = now
                time.sleep(0.2)
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    sys.exit(main())
