use super::super::nodes::tests::joined;
use super::super::tests::TempDir;
use super::*;

fn store() -> (TempDir, Store) {
    let dir = TempDir::new();
    let store = Store::open(&dir.0.join("state.db")).unwrap();
    store.put_node(&joined("node_a"), &[]).unwrap();
    (dir, store)
}

fn new(id: &str) -> NewCommand {
    NewCommand {
        id: id.to_owned(),
        node_id: "node_a".to_owned(),
        kind: "node.facts".to_owned(),
        params: vec![1],
        deadline_ms: 1_000,
        created_ms: 10,
    }
}

fn update(id: &str, state: CommandState) -> CommandUpdate {
    CommandUpdate {
        id: id.to_owned(),
        state,
        reason: "Word".to_owned(),
        message: "ä".repeat(MESSAGE_MAX),
        result: vec![9],
    }
}

fn ids(due: &Due) -> Vec<&str> {
    due.commands.iter().map(|c| c.id.as_str()).collect()
}

#[test]
fn a_state_only_moves_forward_and_a_final_one_stays() {
    use CommandState as C;
    let reports = [
        C::PENDING,
        C::RUNNING,
        C::SUCCEEDED,
        C::FAILED,
        C::UNSUPPORTED,
    ];
    let (p, r) = (Some(Stage::Pending), Some(Stage::Running));
    let (s, f, u) = (
        Some(Stage::Succeeded),
        Some(Stage::Failed),
        Some(Stage::Unsupported),
    );
    for (from, wanted) in [
        (Stage::Queued, [p, r, s, f, u]),
        (Stage::Pending, [None, r, s, f, u]),
        (Stage::Running, [None, None, s, f, u]),
        (Stage::Succeeded, [None; 5]),
        (Stage::Failed, [None; 5]),
        (Stage::Unsupported, [None; 5]),
    ] {
        assert_eq!(reports.map(|report| from.after(report)), wanted, "{from:?}");
        assert_eq!(from.after(C::UNSPECIFIED), None);
        assert_eq!(from.after(CommandState(77)), None);
        assert_eq!(Stage::parse(from.name()), Some(from));
    }
}

#[test]
fn a_command_is_due_until_its_node_reports_on_it() {
    let (_dir, store) = store();
    for id in ["cmd_1", "cmd_2"] {
        assert_eq!(store.add_command(&new(id)).unwrap(), Added::Made);
    }
    let due = store.due("node_a", (0, 0), None, 10, 20).unwrap();
    assert_eq!(ids(&due), ["cmd_1", "cmd_2"]);
    assert!(!due.more);
    let after = (due.commands[1].number, 0);
    assert_eq!(
        ids(&store.due("node_a", after, None, 10, 20).unwrap()),
        [""; 0]
    );
    assert_eq!(
        ids(&store.due("node_b", (0, 0), None, 10, 20).unwrap()),
        [""; 0]
    );
    assert!(store.due("node_a", (0, 0), None, 1, 20).unwrap().more);
    assert_eq!(
        ids(&store
            .due("node_a", (0, 0), Some("daemon.upgrade"), 9, 20)
            .unwrap()),
        [""; 0]
    );
    let sent = store.command("cmd_1").unwrap().unwrap();
    assert_eq!((sent.sent_ms, sent.state(20)), (Some(20), "sent"));

    assert!(
        store
            .note_update("node_a", &update("cmd_1", CommandState::PENDING), 30)
            .unwrap()
    );
    assert_eq!(
        ids(&store.due("node_a", (0, 0), None, 10, 40).unwrap()),
        ["cmd_2"]
    );
    assert_eq!(
        ids(&store.due("node_a", (0, 0), None, 10, 1_000).unwrap()),
        [""; 0],
        "past its deadline"
    );

    store
        .note_update("node_a", &update("cmd_1", CommandState::SUCCEEDED), 50)
        .unwrap();
    let done = store.command("cmd_1").unwrap().unwrap();
    assert_eq!((done.state(60), done.finished_ms), ("succeeded", Some(50)));
    assert_eq!(
        (done.reason.as_str(), done.result.as_slice()),
        ("Word", &[9][..])
    );
    assert_eq!(done.message.len(), MESSAGE_MAX, "bounded");
    store
        .note_update("node_a", &update("cmd_1", CommandState::FAILED), 60)
        .unwrap();
    assert_eq!(store.command("cmd_1").unwrap().unwrap(), done);
}

#[test]
fn a_node_reports_on_its_own_commands_alone() {
    let (_dir, store) = store();
    store.add_command(&new("cmd_1")).unwrap();
    let report = update("cmd_1", CommandState::SUCCEEDED);
    assert!(!store.note_update("node_b", &report, 30).unwrap());
    assert!(
        !store
            .note_update("node_a", &update("cmd_9", CommandState::FAILED), 30)
            .unwrap()
    );
    assert_eq!(
        store.command("cmd_1").unwrap().unwrap().stage,
        Stage::Queued
    );
}

#[test]
fn one_that_nobody_was_sent_in_time_has_failed_at_once_in_every_view() {
    let (_dir, store) = store();
    store.add_command(&new("cmd_1")).unwrap();
    store.add_command(&new("cmd_2")).unwrap();
    store.due("node_a", (1, 0), None, 10, 20).unwrap();
    let show = |store: &Store, id: &str| {
        let command = store.command(id).unwrap().unwrap();
        (
            command.state(1_000),
            command.reason(1_000).to_owned(),
            command.is_over(1_000),
        )
    };
    assert_eq!(
        show(&store, "cmd_1"),
        ("failed", "DeadlineExceeded".to_owned(), true)
    );
    assert_eq!(
        show(&store, "cmd_2"),
        ("sent", String::new(), false),
        "only its node knows"
    );
    let listed = |store: &Store, state: &str, now_ms| {
        let asked = CommandsAsked {
            state: Some(state.to_owned()),
            limit: 10,
            ..CommandsAsked::default()
        };
        store.commands(&asked, now_ms).unwrap().len()
    };
    assert_eq!(
        [listed(&store, "failed", 999), listed(&store, "queued", 999)],
        [0, 1]
    );
    assert_eq!(
        [
            listed(&store, "failed", 1_000),
            listed(&store, "queued", 1_000)
        ],
        [1, 0]
    );
    assert_eq!(listed(&store, "sent", 1_000), 1);
    assert_eq!(store.expire_commands(1_000, 10).unwrap(), 1);
    assert_eq!(store.expire_commands(1_000, 10).unwrap(), 0);
    assert_eq!(
        show(&store, "cmd_1"),
        ("failed", "DeadlineExceeded".to_owned(), true)
    );
    assert_eq!(listed(&store, "failed", 1_000), 1);
}

#[test]
fn a_cancelled_command_is_not_sent_and_its_node_is_asked_until_it_is_over() {
    let (_dir, store) = store();
    for id in ["cmd_1", "cmd_2", "cmd_3"] {
        store.add_command(&new(id)).unwrap();
    }
    assert_eq!(store.cancel_command("cmd_1", 15).unwrap(), Cancelled::Ended);
    assert_eq!(
        store.command("cmd_1").unwrap().unwrap().reason(15),
        "Cancelled"
    );
    store.due("node_a", (0, 0), None, 10, 20).unwrap();
    assert_eq!(store.cancel_command("cmd_3", 25).unwrap(), Cancelled::Asked);
    assert_eq!(store.cancel_command("cmd_2", 25).unwrap(), Cancelled::Asked);
    assert_eq!(store.cancel_command("cmd_2", 25).unwrap(), Cancelled::Asked);
    let due = store.due("node_a", (0, 0), None, 10, 30).unwrap();
    assert_eq!(ids(&due), [""; 0]);
    let asked: Vec<_> = due.cancels.iter().map(|(_, id)| id.as_str()).collect();
    assert_eq!(asked, ["cmd_3", "cmd_2"]);
    assert_eq!(
        store
            .due("node_a", (0, due.cancels[0].0), None, 10, 30)
            .unwrap()
            .cancels
            .len(),
        1
    );
    store
        .note_update("node_a", &update("cmd_3", CommandState::FAILED), 40)
        .unwrap();
    assert_eq!(
        store
            .due("node_a", (0, 0), None, 10, 50)
            .unwrap()
            .cancels
            .len(),
        1
    );
    assert_eq!(store.cancel_command("cmd_3", 60).unwrap(), Cancelled::Over);
    assert_eq!(
        store.cancel_command("cmd_9", 60).unwrap(),
        Cancelled::NoCommand
    );
}

#[test]
fn the_same_command_twice_is_one_and_a_node_has_a_bounded_number() {
    let (_dir, store) = store();
    store.add_command(&new("cmd_1")).unwrap();
    assert_eq!(store.add_command(&new("cmd_1")).unwrap(), Added::Again);
    let other = NewCommand {
        params: vec![],
        ..new("cmd_1")
    };
    assert_eq!(store.add_command(&other).unwrap(), Added::OtherHasId);
    let nobody = NewCommand {
        node_id: "node_b".to_owned(),
        ..new("cmd_2")
    };
    assert_eq!(store.add_command(&nobody).unwrap(), Added::NoNode);
    for number in 1..OPEN_MAX {
        assert_eq!(
            store.add_command(&new(&format!("cmd_x{number}"))).unwrap(),
            Added::Made
        );
    }
    assert_eq!(store.add_command(&new("cmd_more")).unwrap(), Added::TooMany);
    let later = NewCommand {
        created_ms: 1_000,
        deadline_ms: 2_000,
        ..new("cmd_more")
    };
    assert_eq!(
        store.add_command(&later).unwrap(),
        Added::Made,
        "the others are past their deadline"
    );
}
