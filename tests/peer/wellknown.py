"""The well-known document (docs/protocol.md 8) over HTTPS, honest or not."""

import http.server
import json
import ssl
import threading
import time

from . import pki

PATH = "/.well-known/better-compute"


class WellKnown:
    """Serves the document of a peer. `change` maps the honest document to what is sent (a dict or
    bytes); `status`, `location` and `delay_s` are for the other ways to go wrong."""

    def __init__(self, peer, directory, newest=None):
        self.peer, self.requests = peer, []
        self.reset()
        self.ca = pki.CA("a public root")
        key = pki.new_key()
        leaf = self.ca.serving_leaf(key.public_key(), ["localhost", "127.0.0.1"])
        chain = directory / "web.pem"
        chain.write_bytes(pki.key_pem(key) + pki.pem(leaf) + pki.pem(self.ca.certificate))
        self.roots = directory / "roots.pem"  # for SSL_CERT_FILE
        self.roots.write_bytes(pki.pem(self.ca.certificate))
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.requests.append(self.path)
                body = outer.change(outer.document())
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                time.sleep(outer.delay_s)
                self.send_response(outer.status if self.path == PATH else 404)
                if outer.location:
                    self.send_header("location", outer.location)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        if newest:
            context.maximum_version = newest
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def reset(self) -> None:
        self.change = lambda document: document
        self.status, self.location, self.delay_s = 200, None, 0
        self.requests.clear()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def document(self) -> dict:
        service = self.peer.join_service
        return {
            "version": 1,
            "gateway": {
                "url": f"https://127.0.0.1:{self.peer.port}",
                "serverName": "localhost",
                "servingCaPin": self.peer.serving_ca.pin,
            },
            "join": {
                "signingKeyPin": pki.pin(service.signing_key),
                "encryptionKeyPin": pki.pin(service.encryption_key),
                "encryptionJwk": self.peer.jwk(),
            },
        }
