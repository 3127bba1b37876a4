//! What to do about an event, where the event itself does not say it better.

const DISK: &str =
    "look at this machine's disk: free space, mount, the kernel's log; it is tried again by itself";
const LOAD: &str =
    "look at this machine's memory and limits (threads, open files); restart bcd node";
const TELL: &str = "tell whoever runs the control plane";
const NOTHING: &str = "nothing: it goes on by itself";

/// By an event's name: of everything that bcd says as a warning or an error.
pub static REMEDIES: &[(&str, &str)] = &[
    ("command.dropped", TELL),
    ("command.not_stored", DISK),
    ("command.output_failed", DISK),
    ("facts.failed", LOAD),
    (
        "facts.hang",
        "look for a program or a disk that hangs: bcd facts, the kernel's log",
    ),
    ("facts.not_told", DISK),
    (
        "identity.open_to_others",
        "close that path to others: chmod go= it as the account that owns it",
    ),
    (
        "identity.renewal_failed",
        "see that the control plane runs and is reached: bcd doctor; it is asked again by itself",
    ),
    ("identity.renewal_not_told", DISK),
    ("identity.time_not_kept", DISK),
    ("identity.tls", "restart bcd node"),
    (
        "journal.damaged",
        "nothing: what could be read is carried over; look at the file that was set aside, then remove it",
    ),
    (
        "journal.deleted",
        "nothing: it was written anew; find out who deletes it",
    ),
    (
        "journal.events_dropped",
        "see that the control plane stores events; they wait here up to the caps of [journal]",
    ),
    (
        "join.deferred",
        "nothing: the control plane has not decided yet; it is asked again by itself",
    ),
    (
        "join.failed",
        "check that this machine reaches the gateway: address, route, name servers; it is tried again by itself",
    ),
    ("journal.fault", DISK),
    (
        "journal.mode_corrected",
        "nothing: find out who changed the journal's mode",
    ),
    ("journal.not_read", DISK),
    ("journal.not_rebased", DISK),
    (
        "journal.tail_cut",
        "nothing: the machine went down within a write",
    ),
    ("machine.boot", "nothing: the control plane asked for it"),
    (
        "machine.kexec_failed",
        "nothing: the machine is restarted instead",
    ),
    ("node.config_open_to_others", "run the chmod that it names"),
    ("node.reboot", "nothing: the control plane asked for it"),
    (
        "section.failed",
        "correct the section in the spec; why says what is wrong with it",
    ),
    (
        "session.upgrade_required",
        "install a newer bcd: until then no spec is applied and no command run",
    ),
    ("spec.dropped", TELL),
    ("spec.not_applied", "install a newer bcd"),
    ("spec.not_kept", DISK),
    (
        "spec.unreadable",
        "nothing: the control plane sends it again",
    ),
    ("trust.not_stored", DISK),
    ("trust.refused", TELL),
    ("trust.tls", "restart bcd node"),
    (
        "status.not_served",
        "restart bcd node; the session goes on without",
    ),
    ("metrics.not_written", NOTHING),
];
