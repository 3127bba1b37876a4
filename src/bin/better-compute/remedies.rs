//! What to do about an event of the control plane, where the event itself does not say it better.

const DISK: &str =
    "look at the disk of this machine: free space, the kernel's log; nodes keep what is not stored";
const FILES: &str = "raise the limit of open files (ulimit -n)";
const KEYS: &str = "look at the PKI bundle: better-compute pki pins; restart the control plane";

pub(crate) static REMEDIES: &[(&str, &str)] = &[
    ("api.accept", FILES),
    (
        "api.request",
        "look at the error; the request was answered with it",
    ),
    (
        "command.unknown",
        "nothing: the node reports a command of another control plane, or of before a restore",
    ),
    ("dev.files", FILES),
    (
        "downloads.store",
        "look at the store: its log, --downloads-blob, the credentials in the environment; who downloads tries again",
    ),
    ("gateway.accept", FILES),
    (
        "gateway.connection",
        "look at the peer: it is no node, or its network fails",
    ),
    (
        "gateway.handshakes",
        "look at who connects without speaking TLS",
    ),
    (
        "join.refused",
        "make a new token where the reason says so: better-compute tokens create",
    ),
    (
        "machine.booted",
        "see what better-compute machines show says of it, and correct the boot order or deploy again",
    ),
    ("order.not_signed", KEYS),
    ("output.damaged", "run the command again"),
    (
        "registry.busy",
        "look at the disk of this machine: it is slower than what is to be stored",
    ),
    ("registry.events", DISK),
    (
        "registry.thread",
        "raise the limit of threads and start the control plane again",
    ),
    ("registry.write", DISK),
    (
        "renewal.refused",
        "see what the reason says; where the node shall stay: bcd join --reset --yes there, then bcd join",
    ),
    ("serving.renewal", KEYS),
    ("session.ended", "look at the node: bcd status, bcd doctor"),
    ("session.registry", DISK),
    ("spec.not_signed", KEYS),
    ("time.not_signed", KEYS),
];
