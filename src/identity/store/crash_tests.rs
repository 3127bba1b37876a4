//! Key and identity in every state that a crash can leave them in, through a join, a rotation and two renewals.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use super::*;
use crate::identity::record::tests::identity_of;
use crate::sys::fs::replay::{Crash, replay, room, snapshot};
use crate::sys::fs::{tape, tests::scratch};

/// 2026-09-26T11:42:00Z.
const NOW: u64 = 1_790_422_920_000;

/// What was promised, in order.
enum Promised {
    Nothing,
    /// A certificate was asked for with this key.
    Asked(NodeKey),
    /// The machine has this identity.
    Joined(Box<Identity>),
    /// A renewal was asked for with this key; the identity is still the one before.
    Renewing(NodeKey),
}

fn check(promises: &[Promised], crash: &Crash<'_>) {
    let store = Store::open(crash.dir).unwrap();
    // What a promise under way may have put there is as good as what was promised before.
    let possible = &promises[crash.promised..=crash.next];
    let renewing = possible.iter().find_map(|promise| match promise {
        Promised::Renewing(key) => Some(key),
        _ => None,
    });
    match store.load().unwrap() {
        State::NotJoined => assert!(matches!(promises[crash.promised], Promised::Nothing)),
        State::PendingKey(key) => assert!(
            possible.iter().any(
                |promise| matches!(promise, Promised::Asked(asked) if asked.pin() == key.pin())
            ),
            "another key than was asked with"
        ),
        State::Joined(joined) => {
            let leaf = joined.identity.leaf().unwrap();
            assert_eq!(
                leaf.spki,
                joined.key.spki_der(),
                "the key is not the identity's"
            );
            // While it renews, the identity is the last one before.
            let before = promises[..=crash.next].iter().rev();
            let mut identities = before.filter_map(|promise| match promise {
                Promised::Joined(identity) => Some(identity),
                _ => None,
            });
            let newest = identities.next();
            let former = identities.next();
            let is = |identity: Option<&Box<Identity>>| {
                identity.is_some_and(|identity| **identity == joined.identity)
            };
            let may_be_former = !matches!(promises[crash.promised], Promised::Joined(_))
                || crash.next > crash.promised;
            assert!(is(newest) || may_be_former && is(former));
        }
        State::Damaged(damage) => panic!("{damage}"),
    }
    if let (Promised::Renewing(asked), Some(_)) = (&promises[crash.promised], renewing) {
        let State::Joined(joined) = store.load().unwrap() else {
            panic!("the identity is gone")
        };
        // Asked for again with the same key, a renewal brings the same certificate; or it has ended.
        let next = store.next_key(&joined.key, NOW).unwrap();
        assert!(next.pin() == asked.pin() || joined.key.pin() == asked.pin());
    }
}

#[test]
fn a_crash_while_joining_or_renewing_never_costs_the_identity() {
    let store = Store::open(&scratch("identity-crash")).unwrap();
    let before = snapshot(store.dir());
    let mut promises = vec![Promised::Nothing];
    tape::start();
    let mut promise = |promised: Promised| {
        promises.push(promised);
        tape::promise(promises.len() - 1);
    };
    let key = NodeKey::generate().unwrap();
    store.save_key(&key).unwrap();
    let mut identity = identity_of(&key);
    promise(Promised::Asked(key));
    store.save_identity(&identity).unwrap();
    promise(Promised::Joined(Box::new(identity.clone())));
    assert!(
        store
            .note_server_time(&mut identity, NOW + 100 * 86_400_000)
            .unwrap()
    );
    promise(Promised::Joined(Box::new(identity.clone())));
    // The fleet's roots are rotated.
    identity
        .trust_chain
        .push("{\"payload\":\"Ag==\"}".to_owned());
    store.save_identity(&identity).unwrap();
    promise(Promised::Joined(Box::new(identity)));
    for _ in 0..2 {
        let State::Joined(joined) = store.load().unwrap() else {
            panic!()
        };
        let next = store.next_key(&joined.key, NOW).unwrap();
        let identity = identity_of(&next);
        promise(Promised::Renewing(next));
        store.complete_renewal(&identity).unwrap();
        promise(Promised::Joined(Box::new(identity)));
    }
    let ops = tape::stop();
    let tried = replay(&before, &ops, &room("identity"), &mut |crash| {
        check(&promises, crash)
    });
    println!(
        "join, rotation and renewals: {} steps, {} states",
        tried.points, tried.states
    );
    assert!(tried.states > 100, "{tried:?}");
}
