"""Commands against a gateway that a test holds in its hand: `lab` is a bcd that has joined it."""

import os
import pathlib
import re
import time

import pytest

from lab import ROOT
from peer import pki, protos
from peer.conftest import peer, shared_peer  # noqa: F401
from peer.machine import Machine

FINAL = {number: name.removeprefix("COMMAND_STATE_") for name, number in protos.CommandState.items()
         if name.endswith(("SUCCEEDED", "FAILED", "UNSUPPORTED"))}
RUNNING, PENDING = 1, 5


@pytest.fixture(scope="session")
def fakehw():
    """A bcd that notes a reboot instead of doing it."""
    path = pathlib.Path(os.environ.get("BCD_FAKEHW") or ROOT / "target/fakehw/bcd")
    if not path.exists():
        pytest.fail(f"{path} is not built: run `tools/build.sh --tests amd64`, or set BCD_FAKEHW")
    return path


class Lab(Machine):
    """A machine with a boot id and logs of its own, and the gateway's side of its commands."""

    def __init__(self, bcd, peer, directory):  # noqa: F811
        super().__init__(bcd, peer, directory)
        self.plain = bcd
        self.boot = 1
        self.logs = directory / "log"
        self.logs.mkdir()
        self.wanted = []

    def _env(self, token=None):
        return super()._env(token) | {
            "BCD_FAKEHW_BOOT_ID": f"c0ffee00-0000-4000-8000-{self.boot:012}",
            "BCD_FAKEHW_LOGS": str(self.logs),
        }

    def run(self, *wrapper):
        """`bcd node`, below another program."""
        self.before = set(self.peer.session_service.sessions)
        self.bcd = self.plain
        if wrapper:
            script = self.dir / "bcd-wrapped"
            script.write_text(f"#!/bin/sh\nexec {' '.join(map(str, wrapper))} {self.plain} \"$@\"\n")
            script.chmod(0o755)
            self.bcd = script
        self.start()

    # ---- the gateway's side ---------------------------------------------------------------

    def command(self, kind, params=b"", deadline_s=60, id=None, order=None):
        """A command the gateway wants done; `order` is the envelope that comes with it."""
        params = params if isinstance(params, bytes) else params.SerializeToString()
        deadline_ms = pki.now_ms() + int(deadline_s * 1000)
        command = protos.Command(id=id or pki.ulid("cmd"), kind=kind, params=params, deadline_ms=deadline_ms, order=order)
        self.wanted.append(command)
        return command.id

    def session(self):
        """The session of the daemon that runs now, or None."""
        fresh = [s for s in self.peer.session_service.sessions if s not in self.before]
        sessions = [s for s in fresh if s.node_id == self.node_id and s.ended is None]
        return sessions[-1] if sessions and sessions[-1].heartbeats else None

    def updates(self, id):
        """What was stored of a command, in order."""
        journals = [j for (node, _), j in self.peer.session_service.journals.items() if node == self.node_id]
        events = [e.command_update for j in journals for e in list(j.events) if e.WhichOneof("body") == "command_update"]
        return [u for u in events if u.id == id]

    def states(self, id):
        return [protos_state(u) for u in self.updates(id)]

    def final(self, id):
        return next((u for u in self.updates(id) if u.state in FINAL), None)

    def give(self, session, repeat=1):
        """As a gateway does at the start of a session: what has no event yet, and here all the rest too."""
        for _ in range(repeat):
            for command in self.wanted:
                session.send(protos.GatewayFrame(command=command))

    def until(self, what, question, seconds=20):
        """Gives the commands in each new session until the answer is true."""
        deadline, given = time.monotonic() + seconds, None
        while True:
            session = self.session()
            if session and session is not given:
                self.give(session, repeat=2)
                given = session
            answer = question()
            if answer:
                return answer
            assert time.monotonic() < deadline, f"waited for {what}:\n{self.log.read_text()[-4000:]}"
            time.sleep(0.03)

    def done(self, id, seconds=20):
        return self.until(f"the end of {id}", lambda: self.final(id), seconds)

    def fetch(self, id, step=64 * 1024, release=True):
        """The output of a command, in pieces."""
        session, got, size = self.session(), b"", None
        while size is None or len(got) < size:
            before = len(session.of_kind("output"))
            request = protos.session.OutputRequest(command_id=id, offset=len(got), max_bytes=step)
            session.send(protos.GatewayFrame(output_request=request))
            chunk = self.until("a chunk", lambda: session.of_kind("output")[before:])[0]
            assert chunk.command_id == id and chunk.offset == len(got) and not chunk.gone, chunk
            assert len(chunk.data) <= min(step, 64 * 1024)
            size = chunk.size
            assert chunk.data or not size
            got += chunk.data
            # The rest of this range.
            while len(got) < size and (len(got) - request.offset) < step:
                chunk = self.until("a chunk", lambda: [c for c in session.of_kind("output") if c.offset == len(got)])[-1]
                got += chunk.data
        if release:
            session.send(protos.GatewayFrame(output_request=protos.session.OutputRequest(command_id=id, release=True)))
        return got

    # ---- what it left ---------------------------------------------------------------------

    def reboots(self):
        """The commands that restarted this machine, one entry a time."""
        note = self.data / "fakehw-reboot"
        return [line.split()[0] for line in note.read_text().splitlines()] if note.exists() else []

    def begun(self, id):
        """How often the daemon said that it runs."""
        return len(re.findall(rf'"{id}","state":"RUNNING"|command={id} state=RUNNING', self.log.read_text()))

    def outputs(self):
        directory = self.data / "outputs"
        return sorted(p.name for p in directory.iterdir()) if directory.exists() else []


def protos_state(update):
    name = {RUNNING: "RUNNING", PENDING: "PENDING"} | FINAL
    return (name[update.state], update.reason)


@pytest.fixture
def make_lab(peer, tmp_path):  # noqa: F811
    made = []

    def make(bcd, name=None, role="node"):
        lab = Lab(bcd, peer, tmp_path / (name or f"lab{len(made)}"))
        made.append(lab)
        done = lab.join(peer.join_service.create_token(role=role), "--role", role)
        assert done.returncode == 0, done.stderr
        lab.node_id = lab.check_identity()["node_id"]
        return lab

    yield make
    for lab in made:
        lab.kill()


@pytest.fixture
def lab(make_lab, fakehw):
    """One that runs."""
    lab = make_lab(fakehw)
    lab.run()
    lab.until("a session", lab.session)
    return lab
