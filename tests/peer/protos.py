"""The wire contract, compiled from proto-gen/proto by grpcio-tools into target/.

`protos.join`, `protos.session` ... are the generated modules; messages are also reachable flat
(`protos.JoinRequest`). The output is named after the digest of its sources, so that an edited
.proto is never served from a stale compilation, and two test runs at once do not collide.
"""

import hashlib
import importlib
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "proto-gen" / "proto"


def _compile() -> pathlib.Path:
    files = sorted(SOURCES.rglob("*.proto"))
    if not files:
        raise RuntimeError(f"no .proto files under {SOURCES}")
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(SOURCES)).encode() + b"\0" + file.read_bytes())
    home = ROOT / "target" / "peer-protos"
    out = home / digest.hexdigest()[:16]
    if out.is_dir():
        return out
    home.mkdir(parents=True, exist_ok=True)
    from grpc_tools import protoc
    import grpc_tools

    staging = pathlib.Path(tempfile.mkdtemp(dir=home))
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"-I{SOURCES}",
        f"-I{well_known}",
        f"--python_out={staging}",
        f"--grpc_python_out={staging}",
        *map(str, files),
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError(f"protoc refused the files under {SOURCES}")
    try:
        os.rename(staging, out)
    except OSError:
        if not out.is_dir():  # else another run was faster
            raise
    return out


sys.path.insert(0, str(_compile()))


for _file in sorted((SOURCES / "bettercompute" / "v1").glob("*.proto")):
    globals()[_file.stem] = importlib.import_module(f"bettercompute.v1.{_file.stem}_pb2")

Envelope = envelope.Envelope
Signature = envelope.Signature
JoinRequest = join.JoinRequest
JoinResponse = join.JoinResponse
JoinResult = join.JoinResult
JoinDeferral = join.JoinDeferral
SealedToken = join.SealedToken
HardwareClaims = join.HardwareClaims
Role = join.Role
TrustBundle = trust.TrustBundle
NodeFrame = session.NodeFrame
GatewayFrame = session.GatewayFrame
Hello = session.Hello
Welcome = session.Welcome
ServerTime = session.ServerTime
Heartbeat = session.Heartbeat
Drain = session.Drain
Ack = session.Ack
LogSection = spec.LogSection
NodeSpec = spec.NodeSpec
SpecSection = spec.SpecSection
SectionState = spec.SectionState
Command = command.Command
CommandState = command.CommandState
CommandUpdate = command.CommandUpdate
CommandProgress = command.CommandProgress
Event = session.Event
EventsDropped = session.EventsDropped
OutputChunk = session.OutputChunk
SectionStatus = spec.SectionStatus
Facts = facts.Facts

JOIN = "/bettercompute.v1.JoinService/Join"
SESSION = "/bettercompute.v1.SessionService/Session"
ROLES = {Role.Value("ROLE_NODE"): "node", Role.Value("ROLE_SITE"): "site", Role.Value("ROLE_RAMDISK"): "ramdisk"}
