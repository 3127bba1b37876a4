#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;
use crate::journal::Limits;
use crate::proto::LogSection;
use crate::sys::fs::Dir;
use crate::sys::fs::tests::scratch;

const CONFIGURED: Configured = Configured {
    log_level: Level::Info,
};

fn signed(generation: u64, sections: &[(&str, &[u8])]) -> Signed {
    let section = |(name, body): &(&str, &[u8])| SpecSection {
        name: (*name).to_owned(),
        body: body.to_vec(),
    };
    let spec = NodeSpec {
        node_id: "node_1".to_owned(),
        generation,
        sections: sections.iter().map(section).collect(),
    };
    let envelope = Envelope {
        payload: spec.encode_to_vec(),
        ..Envelope::default()
    };
    Signed { envelope, spec }
}

fn level(name: &str) -> Vec<u8> {
    let level = name.to_owned();
    LogSection { level }.encode_to_vec()
}

/// Sections and states of the events after `after`, and the last sequence.
async fn told(journal: &Journal, after: u64) -> (Vec<(u64, String, SectionState)>, u64) {
    let events = journal.read(after, 1 << 20).await.unwrap();
    let last = events.last().map_or(after, |event| event.sequence);
    let status = |event: &crate::journal::Stored| match crate::proto::Event::decode(&event.body)
        .unwrap()
        .body
    {
        Some(EventBody::SectionStatus(status)) => (status.generation, status.section, status.state),
        other => panic!("{other:?}"),
    };
    (events.iter().map(status).collect(), last)
}

fn open(dir: &Dir) -> (Journal, Vec<Keyed>) {
    let limits = Limits {
        max_bytes: 64 << 20,
        max_events: 10_000,
    };
    // A journal that was dropped a moment ago may still be closing.
    for _ in 0..100 {
        if let Ok((journal, recovered)) = Journal::open(dir, "node_1", limits) {
            return (journal, recovered.entries);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("the journal does not open");
}

#[test]
fn a_spec_is_kept_applied_and_told_of_once_over_restarts_too() {
    let dir = Dir::open(&scratch("converge")).unwrap();
    let mut seen = 0;
    rt::block_on(async {
        let (journal, entries) = open(&dir);
        let converge = Converge::new(journal.clone(), &entries, CONFIGURED);
        assert_eq!(converge.generation(), 0);
        converge.0.round().await.unwrap();
        assert_eq!(told(&journal, 0).await.0, []);
        converge.take(signed(3, &[("log", &level("info")), ("later", b"?")]));
        assert_eq!(converge.generation(), 0, "it is not kept yet");
        converge.0.round().await.unwrap();
        assert_eq!(converge.generation(), 3);
        let (events, last) = told(&journal, 0).await;
        let log = (3, "log".to_owned(), SectionState::APPLIED);
        let later = (3, "later".to_owned(), SectionState::UNSUPPORTED);
        assert_eq!(events, [log, later]);
        seen = last;
        // Applied again, and taken again: nothing new.
        converge.0.round().await.unwrap();
        converge.take(signed(3, &[("log", &level("info")), ("later", b"?")]));
        converge.0.round().await.unwrap();
        assert_eq!(told(&journal, seen).await.0, []);
    });
    rt::block_on(async {
        let (journal, entries) = open(&dir);
        let converge = Converge::new(journal.clone(), &entries, CONFIGURED);
        assert_eq!(converge.generation(), 3);
        converge.0.round().await.unwrap();
        assert_eq!(told(&journal, seen).await.0, [], "a restart repeats none");
        // What changes is told, and only that; what is gone is forgotten.
        converge.take(signed(3, &[("log", &level("loud"))]));
        converge.0.round().await.unwrap();
        let (events, last) = told(&journal, seen).await;
        assert_eq!(events, [(3, "log".to_owned(), SectionState::FAILED)]);
        converge.take(signed(3, &[("log", &level("loud")), ("later", b"?")]));
        converge.0.round().await.unwrap();
        let (events, _) = told(&journal, last).await;
        assert_eq!(events, [(3, "later".to_owned(), SectionState::UNSUPPORTED)]);
    });
}

#[test]
fn of_specs_in_a_row_the_newest_is_applied() {
    let dir = Dir::open(&scratch("converge-newest")).unwrap();
    rt::block_on(async {
        let (journal, entries) = open(&dir);
        let converge = Converge::new(journal.clone(), &entries, CONFIGURED);
        for generation in [4, 6, 5] {
            converge.take(signed(generation, &[("later", b"")]));
        }
        converge.0.round().await.unwrap();
        assert_eq!(converge.generation(), 6);
        let (events, _) = told(&journal, 0).await;
        assert_eq!(events, [(6, "later".to_owned(), SectionState::UNSUPPORTED)]);
    });
}

#[test]
fn a_journal_that_takes_nothing_leaves_the_spec_waiting() {
    let dir = Dir::open(&scratch("converge-full")).unwrap();
    rt::block_on(async {
        let (journal, entries) = open(&dir);
        let converge = Converge::new(journal.clone(), &entries, CONFIGURED);
        let huge = vec![0; 8 << 20];
        converge.take(signed(2, &[("later", &huge)]));
        assert!(converge.0.round().await.is_err());
        assert_eq!(converge.generation(), 0, "what is not kept is not acted on");
        assert_eq!(told(&journal, 0).await.0, []);
        converge.take(signed(3, &[("later", b"")]));
        converge.0.round().await.unwrap();
        assert_eq!(converge.generation(), 3);
    });
}

#[test]
fn entries_of_others_or_unreadable_ones_are_passed_over() {
    let dir = Dir::open(&scratch("converge-odd")).unwrap();
    rt::block_on(async {
        let (journal, _) = open(&dir);
        let entry = |kind, key: &str, value: &[u8]| Keyed {
            kind,
            key: key.to_owned(),
            value: value.to_vec(),
        };
        let entries = [
            entry(Kind::Spec, SPEC, &[0xff; 9]),
            entry(Kind::Mark, "section/log", &[0xff; 9]),
            entry(Kind::Mark, "watermark", &[1]),
        ];
        let converge = Converge::new(journal, &entries, CONFIGURED);
        assert_eq!(converge.generation(), 0);
        converge.0.round().await.unwrap();
    });
}

/// A section whose application lasts.
pub(super) const SLOW: &str = "slow";

/// Its body is a span in milliseconds.
pub(super) fn apply_slowly(body: &[u8]) -> Result<(), Failed> {
    let span = std::str::from_utf8(body).unwrap().parse().unwrap();
    std::thread::sleep(Duration::from_millis(span));
    Ok(())
}

#[test]
fn a_section_that_lasts_is_told_as_pending_until_it_is_applied() {
    let dir = Dir::open(&scratch("converge-slow")).unwrap();
    let of = |generation, state| (generation, SLOW.to_owned(), state);
    rt::block_on(async {
        let (journal, entries) = open(&dir);
        let converge = Converge::new(journal.clone(), &entries, CONFIGURED);
        converge.take(signed(1, &[("first", b""), (SLOW, b"1400"), ("log", b"")]));
        let engine = converge.0.clone();
        let round = rt::spawn(async move { engine.round().await });
        rt::sleep(Duration::from_millis(1200)).await;
        let (meanwhile, _) = told(&journal, 0).await;
        round.await.unwrap().unwrap();
        let first = (1, "first".to_owned(), SectionState::UNSUPPORTED);
        assert_eq!(meanwhile, [first, of(1, SectionState::PENDING)]);
        let (events, last) = told(&journal, 2).await;
        let log = (1, "log".to_owned(), SectionState::APPLIED);
        assert_eq!(events, [of(1, SectionState::APPLIED), log.clone()]);
        // One that is quick is never pending; of one that is applied again nothing is told.
        converge.take(signed(2, &[(SLOW, b"1")]));
        converge.0.round().await.unwrap();
        let (events, last) = told(&journal, last).await;
        assert_eq!(events, [of(2, SectionState::APPLIED)]);
        converge.take(signed(2, &[(SLOW, b"1100")]));
        converge.0.round().await.unwrap();
        assert_eq!(told(&journal, last).await.0, []);
    });
}
