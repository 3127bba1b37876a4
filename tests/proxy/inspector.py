"""What mitmdump runs beside its own work: it writes down all that it can see, and meddles as it is told.

    mitmdump -s inspector.py --set lab=DIRECTORY

DIRECTORY/seen has one JSON object a line; connections are numbered as they are opened. DIRECTORY/orders/NUMBER, when it
is there, is obeyed once and taken away: {"do": WHAT, "way": "up" or "down"} touches the next message of that connection
and direction. DIRECTORY/orders/response holds what a JSON answer is to have in place of something else: {"this": "that"}.

    flip    the last bit of the message is another one
    drop    the message is left out
    twice   the message comes a second time
    swap    this message and the next change places
    inject  "bytes" (in hexadecimal) come behind it, as a message of the proxy's own
    before  the same, in its place and before it
    replay  this and all later messages of the direction are those that the connection "from" had
"""

import json
import pathlib

from mitmproxy import ctx

WAYS = {True: "up", False: "down"}


class Inspector:
    def __init__(self):
        self.connections = []  # each a dict of way to the messages that came
        self.numbers = {}
        self.held = {}
        self.replayed = {}

    def load(self, loader):
        loader.add_option("lab", str, "", "where the record and the orders are")

    def running(self):
        self.note(what="running")

    def note(self, **fields):
        with open(pathlib.Path(ctx.options.lab) / "seen", "a", encoding="utf-8") as record:
            record.write(json.dumps(fields) + "\n")

    def order(self, name, way=None):
        """The order that is due, if any; then it is done with."""
        path = pathlib.Path(ctx.options.lab) / "orders" / str(name)
        if not path.exists():
            return None
        order = json.loads(path.read_text())
        if order.get("way") != way:
            return None
        path.unlink()
        self.note(what="meddled", order=order)
        return order

    def http_connect(self, flow):
        self.note(what="connect", host=flow.request.host, port=flow.request.port, headers=list(flow.request.headers.items()))

    def request(self, flow):
        self.note(what="request", method=flow.request.method, path=flow.request.path,
                  headers=list(flow.request.headers.items()), body=flow.request.content.hex())

    def response(self, flow):
        if flow.response.status_code == 200:
            for this, that in (self.order("response") or {}).items():
                flow.response.text = flow.response.text.replace(this, that)
        self.note(what="response", status=flow.response.status_code, headers=list(flow.response.headers.items()),
                  body=(flow.response.content or b"").hex())

    def websocket_start(self, flow):
        self.numbers[flow.id] = len(self.connections)
        self.connections.append({"up": [], "down": []})
        chain = [certificate.to_pem().decode() for certificate in flow.client_conn.certificate_list]
        self.note(what="websocket", connection=self.numbers[flow.id], certificates_of_the_node=chain)

    def websocket_message(self, flow):
        message = flow.websocket.messages[-1]
        if message.injected:
            return
        way, number = WAYS[message.from_client], self.numbers[flow.id]
        came = self.connections[number][way]
        self.note(what="message", connection=number, way=way, text=message.is_text, bytes=message.content.hex())
        order = self.order(number, way)
        came.append(message.content)
        if replayed := self.replayed.get((number, way)):
            message.content = replayed.pop(0)
            return
        if held := self.held.pop((number, way), None):
            self.put(flow, way, held)
        if order:
            self.meddle(flow, message, way, number, order)

    def meddle(self, flow, message, way, number, order):
        match order["do"]:
            case "flip":
                message.content = message.content[:-1] + bytes([message.content[-1] ^ 1])
            case "drop":
                message.drop()
            case "twice":
                self.put(flow, way, message.content)
            case "swap":
                self.held[number, way] = message.content
                message.drop()
            case "inject":
                self.put(flow, way, bytes.fromhex(order["bytes"]))
            case "before":
                message.content = bytes.fromhex(order["bytes"]) + message.content
            case "replay":
                self.replayed[number, way] = list(self.connections[order["from"]][way])
                message.content = self.replayed[number, way].pop(0)

    def put(self, flow, way, content):
        ctx.master.commands.call("inject.websocket", flow, way == "down", content, False)

    def websocket_end(self, flow):
        self.note(what="end", connection=self.numbers[flow.id], code=flow.websocket.close_code)


addons = [Inspector()]
