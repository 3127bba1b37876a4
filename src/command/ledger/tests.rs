#![allow(clippy::unwrap_used, clippy::panic)]
use super::super::machine::Outcome;
use super::*;
use crate::proto::{
    Envelope, FileSource, LogsCollectParams, LogsCollectParamsSource, RebootParams,
};

const NOW: u64 = 1_796_000_000_000;
const DAY: u64 = 24 * 3600 * 1000;
const BOOT: &str = "c0ffee00-0000-4000-8000-000000000001";
const LATER_BOOT: &str = "c0ffee00-0000-4000-8000-000000000002";

fn at(ms: u64) -> Now {
    Now {
        clock: Duration::from_millis(ms),
        now_ms: NOW + ms,
        signed_ms: NOW + ms,
    }
}

fn terms(acked: u64) -> Terms {
    Terms {
        upgrade_required: false,
        acked,
    }
}

fn id(n: usize) -> Id {
    Id::parse(&format!("cmd_{n:026}")).unwrap()
}

fn logs(n: usize) -> Command {
    let params = LogsCollectParams {
        source: Some(LogsCollectParamsSource::File(FileSource {
            path: "syslog".to_owned(),
        })),
        max_bytes: 0,
    };
    Command {
        id: id(n).to_string(),
        kind: "logs.collect".to_owned(),
        params: params.encode_to_vec(),
        deadline_ms: i64::try_from(NOW + 60_000).unwrap(),
        order: None,
    }
}

fn reboot(n: usize) -> Command {
    Command {
        kind: "node.reboot".to_owned(),
        params: RebootParams::default().encode_to_vec(),
        ..logs(n)
    }
}

/// A journal that is as durable as a map can be: what a restart would find.
#[derive(Default)]
struct Disk {
    records: BTreeMap<String, Vec<u8>>,
    watermark: Option<Vec<u8>>,
    sequence: u64,
    reports: Vec<(String, CommandState, String)>,
}

impl Disk {
    fn write(&mut self, entries: &[Entry]) -> u64 {
        for entry in entries {
            match entry {
                Entry::Put {
                    kind: journal::Kind::Mark,
                    key,
                    value,
                } => {
                    assert_eq!(key, WATERMARK);
                    self.watermark = Some(value.clone());
                }
                Entry::Put { key, value, .. } => {
                    self.records.insert(key.clone(), value.clone());
                }
                Entry::Delete { key, .. } => {
                    assert!(self.records.remove(key).is_some());
                }
                Entry::Event { class, body } => {
                    self.sequence += 1;
                    let event = crate::proto::Event::decode(body).unwrap();
                    let Some(EventBody::CommandUpdate(update)) = event.body else {
                        panic!("{event:?}");
                    };
                    let last =
                        !matches!(update.state, CommandState::PENDING | CommandState::RUNNING);
                    assert_eq!(*class == Class::Result, last, "{update:?}");
                    self.reports.push((update.id, update.state, update.reason));
                }
            }
        }
        self.sequence
    }

    fn restart(&self, boot: &str, now: Now) -> (Ledger, Vec<Plan>) {
        Ledger::restore(
            self.records
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_slice())),
            self.watermark.as_deref(),
            boot.to_owned(),
            self.sequence,
            now,
        )
    }

    fn last(&self) -> (CommandState, &str) {
        let (_, state, reason) = self.reports.last().unwrap();
        (*state, reason)
    }
}

struct Node {
    ledger: Ledger,
    disk: Disk,
    begun: Vec<Id>,
}

impl Node {
    fn new() -> Self {
        let disk = Disk::default();
        let (ledger, _) = disk.restart(BOOT, at(0));
        Self {
            ledger,
            disk,
            begun: Vec::new(),
        }
    }

    fn write(&mut self, plan: Plan, now: Now) {
        let last = self.disk.write(&plan.entries);
        if let Applied::Begin { id, event, .. } = self.ledger.apply(plan, last, now) {
            assert_eq!(event, last);
            self.begun.push(id);
        }
    }

    fn deliver(&mut self, command: Command, now: Now) -> &'static str {
        match self.ledger.deliver(command, terms(self.disk.sequence), now) {
            Delivered::Known => "known",
            Delivered::Dropped(_) => "dropped",
            Delivered::Plan(plan) => {
                self.write(*plan, now);
                "written"
            }
        }
    }

    fn event(&mut self, n: usize, event: Event, now: Now) -> &'static str {
        match self.ledger.event(id(n), event, now) {
            Todo::Nothing => "-",
            Todo::Stop(_) => "stop",
            Todo::Write(plan) => {
                self.write(*plan, now);
                "written"
            }
        }
    }

    fn ended(&mut self, n: usize, outcome: Outcome, now: Now) {
        let kind = Kind::named("logs.collect").unwrap();
        self.ledger.work_ended(kind);
        self.event(n, Event::Ended(outcome), now);
    }

    fn settle(&mut self, now: Now) {
        loop {
            if let Some((id, event)) = self.ledger.due(now) {
                if let Todo::Write(plan) = self.ledger.event(id, event, now) {
                    self.write(*plan, now);
                }
            } else if let Some(plan) = self.ledger.turn() {
                self.write(plan, now);
            } else {
                return;
            }
        }
    }

    fn restart(&mut self, boot: &str, now: Now) {
        let (ledger, lost) = self.disk.restart(boot, now);
        self.ledger = ledger;
        for plan in lost {
            self.write(plan, now);
        }
        for (id, event) in self.ledger.restarts() {
            if let Todo::Write(plan) = self.ledger.event(id, event, now) {
                self.write(*plan, now);
            }
        }
        self.settle(now);
    }
}

#[test]
fn a_command_is_written_as_running_before_it_begins_and_once_however_often_it_comes() {
    let mut node = Node::new();
    assert_eq!(node.deliver(logs(1), at(0)), "written");
    assert_eq!(node.begun, [id(1)]);
    assert_eq!(node.disk.last(), (CommandState::RUNNING, ""));
    assert_eq!(node.deliver(logs(1), at(1)), "known");
    node.ended(1, Outcome::Succeeded(vec![1]), at(2));
    assert_eq!(node.disk.last(), (CommandState::SUCCEEDED, ""));
    assert_eq!(node.deliver(logs(1), at(3)), "known");
    assert_eq!((node.begun.len(), node.disk.reports.len()), (1, 2));
}

#[test]
fn what_cannot_be_taken_is_refused_once_with_its_reason() {
    let bad = |change: fn(&mut Command)| {
        let mut command = logs(1);
        change(&mut command);
        command
    };
    let far = NOW + AHEAD_MS + 1;
    for (command, reason) in [
        (
            bad(|c| c.kind = "disk.wipe".to_owned()),
            "CommandUnsupported",
        ),
        (bad(|c| c.kind = String::new()), "CommandUnsupported"),
        (bad(|c| c.kind = "k".repeat(65)), "InvalidParams"),
        (bad(|c| c.deadline_ms = 0), "InvalidParams"),
        (bad(|c| c.deadline_ms = -1), "InvalidParams"),
        (bad(|c| c.deadline_ms = i64::MAX), "InvalidParams"),
        (
            Command {
                deadline_ms: i64::try_from(far).unwrap(),
                ..logs(1)
            },
            "InvalidParams",
        ),
        (bad(|c| c.deadline_ms = 1), "DeadlineExceeded"),
        (
            Command {
                deadline_ms: i64::try_from(NOW).unwrap(),
                ..logs(1)
            },
            "DeadlineExceeded",
        ),
        (bad(|c| c.params = vec![0xff]), "InvalidParams"),
        (bad(|c| c.params.clear()), "InvalidParams"),
        (bad(|c| c.params = vec![0; PARAMS + 1]), "InvalidParams"),
        (
            bad(|c| {
                let payload = vec![0; ORDER];
                c.order = Some(Envelope {
                    payload,
                    ..Envelope::default()
                });
            }),
            "InvalidParams",
        ),
    ] {
        let mut node = Node::new();
        assert_eq!(node.deliver(command.clone(), at(0)), "written");
        let unsupported = reason == "CommandUnsupported";
        let state = if unsupported {
            CommandState::UNSUPPORTED
        } else {
            CommandState::FAILED
        };
        assert_eq!(node.disk.last(), (state, reason), "{command:?}");
        assert_eq!(node.deliver(command, at(0)), "known");
        assert!(node.begun.is_empty());
        // Not even a good command of that id.
        assert_eq!(node.deliver(logs(1), at(0)), "known");
    }
}

#[test]
fn a_bcd_that_must_be_upgraded_does_nothing_else() {
    let mut node = Node::new();
    let terms = Terms {
        upgrade_required: true,
        acked: 0,
    };
    let Delivered::Plan(plan) = node.ledger.deliver(logs(1), terms, at(0)) else {
        panic!()
    };
    node.write(*plan, at(0));
    assert_eq!(
        node.disk.last(),
        (CommandState::UNSUPPORTED, "UpgradeRequired")
    );
    assert!(node.begun.is_empty());
}

#[test]
fn one_without_a_proper_id_gets_no_answer() {
    let mut node = Node::new();
    for text in ["", "cmd_1", "job_00000000000000000000000001"] {
        let command = Command {
            id: text.to_owned(),
            ..logs(1)
        };
        assert_eq!(node.deliver(command, at(0)), "dropped");
    }
    assert!(node.disk.reports.is_empty());
}

#[test]
fn those_that_find_no_room_wait_in_the_order_they_came() {
    let mut node = Node::new();
    for n in [5, 4, 3, 2] {
        node.deliver(logs(n), at(0));
    }
    assert_eq!(node.begun, [id(5), id(4)]);
    assert_eq!(node.disk.last(), (CommandState::PENDING, ""));
    node.settle(at(1));
    assert_eq!(node.begun.len(), 2);
    node.ended(4, Outcome::Succeeded(vec![]), at(2));
    node.settle(at(2));
    assert_eq!(node.begun, [id(5), id(4), id(3)]);
    assert_eq!(node.disk.last(), (CommandState::RUNNING, ""));
    // The last one's deadline passes while it waits.
    assert_eq!(node.ledger.rest(at(2)), Some(Duration::from_millis(59_998)));
    node.settle(at(60_000));
    assert_eq!(node.disk.last(), (CommandState::FAILED, "DeadlineExceeded"));
    node.ended(5, Outcome::Succeeded(vec![]), at(60_001));
    node.settle(at(60_001));
    assert_eq!(node.begun.len(), 3);
}

#[test]
fn a_second_reboot_is_refused_while_one_is_under_way() {
    let mut node = Node::new();
    node.deliver(reboot(1), at(0));
    node.deliver(reboot(2), at(0));
    assert_eq!(node.disk.last(), (CommandState::FAILED, "Busy"));
    assert_eq!(node.begun, [id(1)]);
}

#[test]
fn no_more_than_a_bounded_number_wait() {
    let mut node = Node::new();
    for n in 1..=ACTIVE {
        node.deliver(logs(n), at(0));
    }
    assert_eq!(node.disk.last(), (CommandState::PENDING, ""));
    node.deliver(logs(ACTIVE + 1), at(0));
    assert_eq!(node.disk.last(), (CommandState::FAILED, "TooManyCommands"));
}

#[test]
fn one_that_waits_is_cancelled_at_once_and_one_that_runs_is_told_to_stop() {
    let mut node = Node::new();
    for n in 1..=3 {
        node.deliver(logs(n), at(0));
    }
    assert_eq!(node.event(3, Event::Cancel, at(1)), "written");
    assert_eq!(node.disk.last(), (CommandState::FAILED, "Cancelled"));
    assert_eq!(node.event(1, Event::Cancel, at(1)), "stop");
    assert_eq!(node.event(1, Event::Cancel, at(2)), "-");
    node.ended(1, Outcome::Stopped, at(3));
    assert_eq!(node.disk.last(), (CommandState::FAILED, "Cancelled"));
    // One that came to its end, or never came.
    assert_eq!(node.event(1, Event::Cancel, at(4)), "-");
    assert_eq!(node.event(9, Event::Cancel, at(4)), "-");
}

#[test]
fn what_takes_too_long_is_stopped_and_given_up_and_keeps_its_place_until_it_ends() {
    let mut node = Node::new();
    for n in 1..=3 {
        node.deliver(
            Command {
                deadline_ms: i64::try_from(NOW + DAY).unwrap(),
                ..logs(n)
            },
            at(0),
        );
    }
    let limit = Kind::named("logs.collect").unwrap().limit;
    assert_eq!(node.ledger.rest(at(0)), Some(limit));
    let over = at(u64::try_from(limit.as_millis()).unwrap());
    assert_eq!(node.ledger.due(over), Some((id(1), Event::TimeUp)));
    assert_eq!(node.event(1, Event::TimeUp, over), "stop");
    assert_eq!(node.event(2, Event::TimeUp, over), "stop");
    let given_up = at(over.clock.as_millis() as u64 + GRACE.as_millis() as u64);
    node.settle(given_up);
    assert_eq!(node.disk.last(), (CommandState::FAILED, "TimedOut"));
    assert_eq!(node.begun.len(), 2, "both threads are still there");
    node.ended(1, Outcome::Succeeded(vec![]), given_up);
    node.settle(given_up);
    assert_eq!(node.begun.len(), 3);
    assert_eq!(node.disk.reports.len(), 6, "one end for each of two");
}

#[test]
fn what_ran_when_the_daemon_died_is_interrupted_and_what_waited_goes_on() {
    let mut node = Node::new();
    for n in 1..=4 {
        node.deliver(logs(n), at(0));
    }
    node.restart(BOOT, at(1));
    assert_eq!(
        node.begun,
        [id(1), id(2), id(3), id(4)],
        "1 and 2 not again"
    );
    let interrupted = node
        .disk
        .reports
        .iter()
        .filter(|(_, _, reason)| reason == "Interrupted");
    let interrupted: Vec<_> = interrupted.map(|(id, _, _)| id.clone()).collect();
    assert_eq!(interrupted, [id(1).to_string(), id(2).to_string()]);
    for n in 1..=4 {
        assert_eq!(node.deliver(logs(n), at(2)), "known");
    }
    // Too late for those that wait: they end unrun.
    let mut node = Node::new();
    for n in 1..=3 {
        node.deliver(logs(n), at(0));
    }
    node.restart(BOOT, at(60_000));
    assert_eq!(node.disk.last(), (CommandState::FAILED, "DeadlineExceeded"));
    assert_eq!(node.begun.len(), 2);
}

#[test]
fn a_reboot_is_decided_by_the_boot_id() {
    let mut node = Node::new();
    node.deliver(reboot(1), at(0));
    node.restart(LATER_BOOT, at(1000));
    assert_eq!(node.disk.last(), (CommandState::SUCCEEDED, ""));
    assert_eq!(node.begun.len(), 1);

    // The daemon alone came back: the machine may be going down, so it is waited for.
    let mut node = Node::new();
    node.deliver(reboot(1), at(0));
    node.restart(BOOT, at(1000));
    assert_eq!(node.disk.last(), (CommandState::RUNNING, ""));
    assert_eq!(node.ledger.rest(at(1000)), Some(LEAVING));
    node.deliver(reboot(2), at(1000));
    assert_eq!(node.disk.last(), (CommandState::FAILED, "Busy"));
    node.settle(at(1000 + u64::try_from(LEAVING.as_millis()).unwrap()));
    assert_eq!(node.disk.last(), (CommandState::FAILED, "NotRestarted"));
    assert_eq!(node.begun.len(), 1);
}

#[test]
fn records_that_cannot_be_read_fail_and_are_never_run() {
    let mut node = Node::new();
    for n in 1..=3 {
        node.deliver(logs(n), at(0));
    }
    node.disk.records.insert(id(1).to_string(), vec![9, 9]);
    let unknown = Record::Pending(Command {
        kind: "daemon.upgrade".to_owned(),
        ..logs(3)
    });
    node.disk
        .records
        .insert(id(3).to_string(), unknown.encode());
    node.disk.records.insert("cmd_nonsense".to_owned(), vec![1]);
    node.restart(BOOT, at(1));
    let reasons = |n: usize| {
        let id = id(n).to_string();
        let of = node.disk.reports.iter().filter(|(of, ..)| *of == id);
        of.map(|(.., reason)| reason.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(reasons(1), ["", "StorageFault"]);
    assert_eq!(reasons(2), ["", "Interrupted"]);
    assert_eq!(reasons(3), ["", "Interrupted"]);
    let before = node.disk.reports.len();
    for n in 1..=3 {
        assert_eq!(node.deliver(logs(n), at(2)), "known");
    }
    assert_eq!((node.begun.len(), node.disk.reports.len()), (2, before));
}

#[test]
fn an_id_is_forgotten_only_when_nothing_of_that_age_is_taken_any_more() {
    let mut node = Node::new();
    node.deliver(
        Command {
            params: vec![0xff],
            ..logs(1)
        },
        at(0),
    );
    let unacked = node.disk.sequence - 1;
    // The host's clock jumped; what a server signed did not.
    let jumped = Now {
        now_ms: NOW + 300 * DAY,
        ..at(0)
    };
    let later = at(70_000);
    for (acked, now) in [(node.disk.sequence, jumped), (unacked, later)] {
        let Delivered::Plan(plan) = node.ledger.deliver(reboot(7), terms(acked), now) else {
            panic!()
        };
        assert!(plan.forgotten().is_empty());
    }
    node.deliver(
        Command {
            kind: "x".to_owned(),
            ..logs(2)
        },
        later,
    );
    assert!(
        !node.disk.records.contains_key(&id(1).to_string()),
        "forgotten"
    );
    // It comes again, by a gateway of long memory and with a clock that jumped back.
    let back = at(10_000);
    assert_eq!(node.deliver(logs(1), back), "written");
    assert_eq!(node.disk.last(), (CommandState::FAILED, "DeadlineExceeded"));
    node.restart(BOOT, back);
    let (mut ledger, _) = node.disk.restart(BOOT, back);
    ledger.done.clear();
    let Delivered::Plan(plan) = ledger.deliver(logs(1), terms(0), back) else {
        panic!()
    };
    assert_eq!(
        plan.report.reason, "DeadlineExceeded",
        "the watermark is on the disk"
    );
    assert!(node.begun.is_empty());
}

#[test]
fn ids_are_remembered_in_a_bounded_number_and_past_it_nothing_is_taken() {
    let mut node = Node::new();
    for n in 0..DONE {
        let command = Command {
            kind: "x".to_owned(),
            ..logs(n)
        };
        assert_eq!(node.deliver(command, at(0)), "written");
    }
    assert_eq!(node.deliver(logs(DONE), at(0)), "dropped");
    assert_eq!(node.deliver(logs(0), at(0)), "known");
    // Past their deadline there is room again.
    let later = Command {
        deadline_ms: i64::try_from(NOW + DAY).unwrap(),
        ..logs(DONE)
    };
    assert_eq!(node.deliver(later, at(60_000)), "written");
    assert_eq!(node.ledger.done.len(), DONE - FORGET);
    assert_eq!(node.begun, [id(DONE)]);
}

#[test]
fn a_result_stays_with_its_output_for_a_week() {
    let mut node = Node::new();
    node.deliver(logs(1), at(0));
    node.ended(1, Outcome::Succeeded(vec![]), at(5));
    for (ms, forgotten) in [(6 * DAY, 0), (7 * DAY + 5, 1)] {
        let now = at(ms);
        let delivered = node
            .ledger
            .deliver(reboot(2), terms(node.disk.sequence), now);
        let Delivered::Plan(plan) = delivered else {
            panic!()
        };
        assert_eq!(plan.forgotten().len(), forgotten);
    }
}

#[test]
fn on_a_disk_that_does_not_write_nothing_is_taken_and_no_end_is_lost() {
    let mut node = Node::new();
    node.deliver(logs(1), at(0));
    node.deliver(logs(2), at(0));
    node.deliver(logs(3), at(0));
    let Delivered::Plan(plan) = node.ledger.deliver(logs(4), terms(0), at(1)) else {
        panic!()
    };
    assert!(!node.ledger.not_stored(*plan), "it is sent again");
    assert_eq!(node.deliver(logs(4), at(1)), "written");

    let ended = Event::Ended(Outcome::Succeeded(vec![3]));
    node.ledger.work_ended(Kind::named("logs.collect").unwrap());
    let Todo::Write(plan) = node.ledger.event(id(1), ended, at(2)) else {
        panic!()
    };
    assert!(node.ledger.not_stored(*plan));
    assert_eq!(node.event(1, Event::Cancel, at(3)), "-");
    assert_eq!(node.deliver(logs(1), at(3)), "known");
    // One that waits goes on waiting.
    let plan = node.ledger.turn().unwrap();
    assert_eq!(plan.id, id(3));
    assert!(node.ledger.not_stored(plan));
    assert_eq!(node.ledger.turn().unwrap().id, id(3));
    // Space is back.
    let plan = node.ledger.unstored(at(4)).unwrap();
    node.write(plan, at(4));
    assert_eq!(node.disk.last(), (CommandState::SUCCEEDED, ""));
    assert!(node.ledger.unstored(at(4)).is_none());
}

#[test]
fn messages_and_results_have_bounds() {
    let mut node = Node::new();
    node.deliver(logs(1), at(0));
    let failure = Failure::new("CollectFailed", "ä".repeat(2000));
    let Todo::Write(plan) = node
        .ledger
        .event(id(1), Event::Ended(Outcome::Failed(failure)), at(1))
    else {
        panic!()
    };
    assert_eq!(plan.report.message.len(), MESSAGE);
    let large = Outcome::Succeeded(vec![0; RESULT + 1]);
    let Todo::Write(plan) = node.ledger.event(id(1), Event::Ended(large), at(1)) else {
        panic!()
    };
    assert_eq!(plan.report.reason, "ResultTooLarge");
}
