#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::identity::record::tests::{certificate_of, identity_of};
use crate::sys::fs::tests::scratch;

/// 2026-09-26T11:42:00Z.
const NOW: u64 = 1_790_422_920_000;

fn store() -> Store {
    Store::open(&scratch("identity")).unwrap()
}

fn write(store: &Store, name: &str, text: &str) {
    std::fs::write(store.dir.join(name), text).unwrap();
}

fn names(store: &Store) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(store.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn damage(store: &Store) -> Damage {
    match store.load().unwrap() {
        State::Damaged(damage) => damage,
        _ => panic!("not damaged"),
    }
}

#[test]
fn a_join_goes_from_nothing_over_a_key_to_an_identity() {
    let store = store();
    assert!(matches!(store.load().unwrap(), State::NotJoined));
    let key = NodeKey::generate().unwrap();
    store.save_key(&key).unwrap();
    let State::PendingKey(pending) = store.load().unwrap() else {
        panic!()
    };
    assert_eq!(pending.pin(), key.pin());
    let identity = identity_of(&key);
    store.save_identity(&identity).unwrap();
    let State::Joined(joined) = store.load().unwrap() else {
        panic!()
    };
    assert_eq!(joined.identity, identity);
    assert_eq!(joined.key.pin(), key.pin());
    for name in [KEY, IDENTITY] {
        let mode = std::fs::metadata(store.dir.join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o600);
    }
}

#[test]
fn every_damage_is_told_apart_and_names_the_files_at_fault() {
    let key = NodeKey::generate().unwrap();
    let good = identity_of(&key).to_json();
    let pem = key.to_pem();
    let other = NodeKey::generate().unwrap().to_pem();
    type Case<'a> = (Option<&'a str>, Option<&'a str>, &'a [&'a str], &'a str);
    let cases: [Case<'_>; 8] = [
        (
            Some(""),
            Some(&pem),
            &[IDENTITY],
            "identity.json is damaged",
        ),
        (
            Some(&good[..40]),
            Some(&pem),
            &[IDENTITY],
            "identity.json is damaged",
        ),
        (
            Some(&good),
            None,
            &[IDENTITY],
            "identity.json is there and node.key is missing",
        ),
        (
            Some(&good),
            Some(&other),
            &[IDENTITY],
            "the certificate in identity.json is not for the key in node.key",
        ),
        (
            Some(&good),
            Some(""),
            &[KEY, IDENTITY],
            "node.key is damaged: it is empty or no text",
        ),
        (
            None,
            Some("-----BEGIN PRIVATE KEY-----\nAA"),
            &[KEY],
            "node.key is damaged",
        ),
        (
            None,
            Some(""),
            &[KEY],
            "node.key is damaged: it is empty or no text",
        ),
        (
            Some("{}"),
            Some("\0"),
            &[IDENTITY, KEY],
            "identity.json is damaged",
        ),
    ];
    for (identity, key, files, text) in cases {
        let store = store();
        for (name, content) in [(IDENTITY, identity), (KEY, key)] {
            if let Some(content) = content {
                write(&store, name, content);
            }
        }
        let damage = damage(&store);
        assert_eq!(damage.files, files, "{text}");
        assert_eq!(damage.to_string(), text);
    }
}

#[test]
fn a_damaged_file_is_set_aside_and_a_good_key_stays() {
    let store = store();
    let key = NodeKey::generate().unwrap();
    store.save_key(&key).unwrap();
    write(&store, IDENTITY, "");
    let moved = store.set_aside(&damage(&store), NOW).unwrap();
    assert_eq!(
        moved,
        [Moved {
            from: IDENTITY,
            to: "identity.json.corrupt-20260926T114200Z".to_owned()
        }]
    );
    assert!(matches!(store.load().unwrap(), State::PendingKey(_)));
    // Another one in the same second takes another name.
    write(&store, IDENTITY, "x");
    store.set_aside(&damage(&store), NOW).unwrap();
    assert_eq!(
        names(&store),
        [
            "identity.json.corrupt-20260926T114200Z",
            "identity.json.corrupt-20260926T114200Z-2",
            "node.key"
        ]
    );
}

#[test]
fn other_things_in_a_files_place_are_set_aside_too() {
    let store = store();
    std::fs::create_dir(store.dir.join(IDENTITY)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", store.dir.join(KEY)).unwrap();
    let damage = damage(&store);
    assert_eq!(damage.files, [IDENTITY, KEY]);
    store.set_aside(&damage, NOW).unwrap();
    assert!(matches!(store.load().unwrap(), State::NotJoined));
}

#[test]
fn files_of_a_newer_bcd_are_refused_and_left_alone() {
    let store = store();
    let key = NodeKey::generate().unwrap();
    store.save_key(&key).unwrap();
    write(
        &store,
        IDENTITY,
        &identity_of(&key)
            .to_json()
            .replace("\"version\": 1", "\"version\": 9"),
    );
    assert!(matches!(
        store.load(),
        Err(StoreError::Newer(RecordError::Newer(9)))
    ));
    write(
        &store,
        KEY,
        &format!("{TPM_KEY}\nAA==\n-----END BCD TPM NODE KEY-----\n"),
    );
    assert!(matches!(store.load(), Err(StoreError::TpmKey)));
}

#[test]
fn a_renewal_cut_short_after_its_certificate_is_finished() {
    let store = store();
    let (old, new) = (NodeKey::generate().unwrap(), NodeKey::generate().unwrap());
    store.save_key(&old).unwrap();
    write(&store, NEXT_KEY, &new.to_pem());
    let mut identity = identity_of(&old);
    store.save_identity(&identity).unwrap();
    assert!(
        matches!(store.load().unwrap(), State::Joined(joined) if joined.key.pin() == old.pin())
    );
    identity.certificate_chain = vec![certificate_of(&new)];
    store.save_identity(&identity).unwrap();
    assert!(
        matches!(store.load().unwrap(), State::Joined(joined) if joined.key.pin() == new.pin())
    );
    assert_eq!(names(&store), [IDENTITY, KEY]);
}

#[test]
fn load_finds_the_identity_in_every_combination_of_files() {
    let (old, new, other) = (
        NodeKey::generate().unwrap(),
        NodeKey::generate().unwrap(),
        NodeKey::generate().unwrap(),
    );
    let pem = |key: &NodeKey| Some(key.to_pem().to_string());
    let of = |key: &NodeKey| Some(identity_of(key).to_json());
    let torn = || Some("-----BEGIN PRIVATE KEY-----\nMII".to_owned());
    let none = || None::<String>;
    let joined = |key: &NodeKey| format!("joined {}", key.pin());
    let damaged = || "damaged".to_owned();
    // identity.json, node.key, node.key.next -> what is found, the files left
    #[rustfmt::skip]
    let table = [
        // Before, during and after a renewal's request.
        (of(&old), pem(&old), none(), joined(&old), "identity.json node.key"),
        (of(&old), pem(&old), pem(&new), joined(&old), "identity.json node.key node.key.next"),
        (of(&old), pem(&old), torn(), joined(&old), "identity.json node.key node.key.next"),
        // The certificate is stored: before, and after the key was promoted.
        (of(&new), pem(&old), pem(&new), joined(&new), "identity.json node.key"),
        (of(&new), pem(&new), none(), joined(&new), "identity.json node.key"),
        // A former key that is gone or torn does not matter then.
        (of(&new), none(), pem(&new), joined(&new), "identity.json node.key"),
        (of(&new), torn(), pem(&new), joined(&new), "identity.json node.key"),
        // No key fits: damaged, and everything stays where it is.
        (of(&new), pem(&old), pem(&other), damaged(), "identity.json node.key node.key.next"),
        (of(&new), pem(&old), torn(), damaged(), "identity.json node.key node.key.next"),
        (of(&new), pem(&old), none(), damaged(), "identity.json node.key"),
        (of(&new), none(), none(), damaged(), "identity.json"),
        (torn(), pem(&old), pem(&new), damaged(), "identity.json node.key node.key.next"),
        // No identity: a next key alone is no join's key.
        (none(), pem(&old), pem(&new), format!("pending {}", old.pin()), "node.key node.key.next"),
        (none(), none(), pem(&new), "not joined".to_owned(), "node.key.next"),
        (none(), none(), torn(), "not joined".to_owned(), "node.key.next"),
    ];
    for (row, (identity, key, next, found, left)) in table.into_iter().enumerate() {
        let store = store();
        let files = [(IDENTITY, &identity), (KEY, &key), (NEXT_KEY, &next)];
        for (name, text) in files {
            if let Some(text) = text {
                write(&store, name, text);
            }
        }
        // A load that promoted a key finds the same again.
        for _ in 0..2 {
            let state = match store.load().unwrap() {
                State::NotJoined => "not joined".to_owned(),
                State::PendingKey(key) => format!("pending {}", key.pin()),
                State::Joined(joined) => format!("joined {}", joined.key.pin()),
                State::Damaged(_) => "damaged".to_owned(),
            };
            assert_eq!(state, found, "row {row}");
            assert_eq!(names(&store).join(" "), left, "row {row}");
        }
        if let (true, Some(text)) = (found != "damaged", &identity) {
            let now = std::fs::read_to_string(store.dir.join(IDENTITY)).unwrap();
            assert_eq!(&now, text, "row {row}");
        }
    }
}

#[test]
fn a_renewal_takes_up_the_key_it_was_cut_off_with_and_sets_a_damaged_one_aside() {
    let store = store();
    let present = NodeKey::generate().unwrap();
    store.save_key(&present).unwrap();
    store.save_identity(&identity_of(&present)).unwrap();
    let next = store.next_key(&present, NOW).unwrap();
    assert_eq!(store.next_key(&present, NOW).unwrap().pin(), next.pin());
    let mode = std::fs::metadata(store.dir.join(NEXT_KEY)).unwrap();
    assert_eq!(mode.permissions().mode() & 0o7777, 0o600);
    // After a refusal, another one.
    let another = store.new_next_key().unwrap();
    assert_ne!(another.pin(), next.pin());
    // Never the present one.
    write(&store, NEXT_KEY, &present.to_pem());
    assert_ne!(store.next_key(&present, NOW).unwrap().pin(), present.pin());
    write(&store, NEXT_KEY, "torn");
    let next = store.next_key(&present, NOW).unwrap();
    assert!(names(&store).contains(&"node.key.next.corrupt-20260926T114200Z".to_owned()));

    store.complete_renewal(&identity_of(&next)).unwrap();
    assert!(
        matches!(store.load().unwrap(), State::Joined(joined) if joined.key.pin() == next.pin())
    );
    assert!(!names(&store).contains(&NEXT_KEY.to_owned()));
}

#[test]
fn a_reset_moves_everything_and_deletes_nothing() {
    let store = store();
    assert!(store.reset(NOW).unwrap().is_empty());
    for name in [IDENTITY, KEY, NEXT_KEY, JOURNAL, "keep"] {
        write(&store, name, name);
    }
    assert_eq!(
        store.resettable().unwrap(),
        [NEXT_KEY, KEY, IDENTITY, JOURNAL]
    );
    let moved = store.reset(NOW).unwrap();
    assert_eq!(moved.len(), 4);
    assert_eq!(
        names(&store),
        [
            "identity.json.reset-20260926T114200Z",
            "journal.db.reset-20260926T114200Z",
            "keep",
            "node.key.next.reset-20260926T114200Z",
            "node.key.reset-20260926T114200Z"
        ]
    );
    assert!(matches!(store.load().unwrap(), State::NotJoined));
}

#[test]
fn an_earlier_journal_is_moved_aside() {
    let store = store();
    assert_eq!(store.move_journal_aside(NOW).unwrap(), None);
    write(&store, JOURNAL, "old");
    let moved = store.move_journal_aside(NOW).unwrap().unwrap();
    assert_eq!(moved.to, "journal.db.old-20260926T114200Z");
    assert_eq!(names(&store), ["journal.db.old-20260926T114200Z"]);
}

#[test]
fn server_time_only_moves_forward_and_is_written_once_an_hour() {
    let store = store();
    let mut identity = identity_of(&NodeKey::generate().unwrap());
    let start = identity.server_time_ms;
    assert!(!store.note_server_time(&mut identity, start - 1).unwrap());
    assert!(!store.note_server_time(&mut identity, start + 1000).unwrap());
    assert!(
        store
            .note_server_time(&mut identity, start + SERVER_TIME_STEP_MS)
            .unwrap()
    );
    assert_eq!(identity.server_time_ms, start + SERVER_TIME_STEP_MS);
    assert_eq!(names(&store), [IDENTITY]);
}

#[test]
fn key_and_identity_are_handed_to_the_helpers_account() {
    use std::os::unix::fs::MetadataExt;
    if crate::sys::user::euid() != 0 {
        return;
    }
    let store = store();
    let account = Account { uid: 990, gid: 991 };
    store.hand_over(account).unwrap();
    let key = NodeKey::generate().unwrap();
    store.save_key(&key).unwrap();
    store.save_identity(&identity_of(&key)).unwrap();
    store.hand_over(account).unwrap();
    for name in [KEY, IDENTITY] {
        let metadata = std::fs::metadata(store.dir.join(name)).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (990, 991));
    }
}
