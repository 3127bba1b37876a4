//! The journal as its users see it.
use super::*;
use crate::rt;
use crate::sys::fs::Dir;
use crate::sys::fs::tests::scratch;

const LIMITS: Limits = Limits {
    max_bytes: 64 << 20,
    max_events: 10_000,
};

pub(super) fn event(class: Class, text: &str) -> Entry {
    Entry::Event {
        class,
        body: text.as_bytes().to_vec(),
    }
}

pub(super) fn put(key: &str, value: &str) -> Entry {
    Entry::Put {
        kind: Kind::Command,
        key: key.to_owned(),
        value: value.as_bytes().to_vec(),
    }
}

fn bodies(stored: &[Stored]) -> Vec<(u64, String)> {
    stored
        .iter()
        .map(|event| {
            (
                event.sequence,
                String::from_utf8_lossy(&event.body).into_owned(),
            )
        })
        .collect()
}

#[test]
fn what_was_committed_is_there_after_a_restart_and_what_was_acknowledged_is_not() {
    let dir = Dir::open(&scratch("journal")).unwrap();
    rt::block_on(async {
        let (journal, recovered) = Journal::open(&dir, "node_a", LIMITS).unwrap();
        assert_eq!((recovered.position, recovered.acked), (0, 0));
        let commit = journal
            .commit(vec![
                put("cmd_1", "running"),
                event(Class::Result, "one"),
                event(Class::Status, "two"),
            ])
            .await;
        assert_eq!(commit.unwrap().last, 2);
        assert_eq!(journal.news(0).await.unwrap(), 2);
        journal.ack(1);
        let last = journal
            .commit(vec![event(Class::Telemetry, "three"), put("cmd_1", "done")])
            .await;
        assert_eq!(last.unwrap().last, 3);
        assert!(matches!(
            Journal::open(&dir, "node_a", LIMITS).err().unwrap(),
            OpenError::Busy(_)
        ));
        let id = recovered.journal_id;
        drop(journal);
        // The thread closes the file when it is through.
        let (journal, recovered) = loop {
            match Journal::open(&dir, "node_a", LIMITS) {
                Err(OpenError::Busy(_)) => std::thread::yield_now(),
                opened => break opened.unwrap(),
            }
        };
        assert_eq!(recovered.journal_id, id);
        assert_eq!((recovered.position, recovered.acked), (3, 1));
        assert_eq!(recovered.tail_cut, 0);
        assert!(recovered.damage.is_none());
        assert_eq!(recovered.entries.len(), 1);
        assert_eq!(recovered.entries[0].value, b"done");
        let stored = journal.read(0, 1 << 20).await.unwrap();
        assert_eq!(bodies(&stored), [(2, "two".into()), (3, "three".into())]);
        assert_eq!(bodies(&journal.read(2, 1).await.unwrap()).len(), 1);
    });
}

#[test]
fn a_journal_begun_again_has_another_id_and_what_was_not_acknowledged() {
    let dir = Dir::open(&scratch("rebase")).unwrap();
    rt::block_on(async {
        let (journal, recovered) = Journal::open(&dir, "node_a", LIMITS).unwrap();
        for text in ["one", "two", "three"] {
            let commit = vec![event(Class::Status, text), put(text, text)];
            journal.commit(commit).await.unwrap();
        }
        journal.ack(2);
        let id = journal.rebase().await.unwrap();
        assert_ne!(id, recovered.journal_id);
        let status = journal.status();
        assert_eq!((status.position, status.acked, status.keys), (1, 0, 3));
        let stored = journal.read(0, 1 << 20).await.unwrap();
        assert_eq!(bodies(&stored), [(1, "three".into())]);
        let last = journal.commit(vec![event(Class::Status, "four")]).await;
        assert_eq!(last.unwrap().last, 2);
    });
}

#[test]
fn the_journal_of_another_node_is_refused_and_left_alone() {
    let dir = Dir::open(&scratch("other")).unwrap();
    drop(Journal::open(&dir, "node_a", LIMITS).unwrap());
    let error = loop {
        match Journal::open(&dir, "node_b", LIMITS).err().unwrap() {
            OpenError::Busy(_) => std::thread::yield_now(),
            error => break error,
        }
    };
    assert_eq!(
        error.to_string(),
        "the journal belongs to node `node_a`, not `node_b`"
    );
    assert!(Journal::open(&dir, "node_a", LIMITS).is_ok());
}
