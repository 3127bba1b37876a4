//! Under `[helper]`: whether the account is there, the state is its, what root goes by is root's, and the helper answers.
use std::io::ErrorKind::PermissionDenied;
use std::os::unix::fs::MetadataExt;

use super::{Seen, Verdict, chain, look_again};
use crate::helper::client::{AskError, Client};
use crate::helper::places;
use crate::identity::store::{IDENTITY, KEY};
use crate::sys::user;

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let Ok(config) = seen.config else {
        return Verdict::no_config();
    };
    let Some(helper) = &config.helper else {
        return Verdict::ok("not used: bcd node runs with its own rights");
    };
    let account = match user::lookup(&helper.user) {
        Ok(account) => account,
        Err(error) => {
            let whereabouts = config.whereabouts("helper", "user");
            let remedy = format!("make the account, or correct {whereabouts}");
            return Verdict::fail(chain(&error), remedy);
        }
    };
    for name in ["", IDENTITY, KEY] {
        let path = match name {
            "" => seen.data_dir.clone(),
            name => seen.data_dir.join(name),
        };
        match std::fs::symlink_metadata(&path) {
            Ok(there) if there.uid() != account.uid => {
                let user = &helper.user;
                let (path, dir) = (path.display(), seen.data_dir.display());
                return Verdict::fail(
                    format!("{path} is of user {}, not of {user}", there.uid()),
                    format!("run chown -R {user}: {dir}, and restart bcd.service"),
                );
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let why = format!("{}: {error}", path.display());
                return Verdict::unseen(&why, look_again(&error));
            }
        }
    }
    let (mut whats, mut remedies) = (Vec::new(), Vec::new());
    for problem in places::problems(config) {
        if !problem.is_missing {
            whats.push(problem.what);
            remedies.push(problem.remedy);
        }
    }
    if !whats.is_empty() {
        return Verdict::fail(whats.join("; "), remedies.join("; "));
    }
    let mine = format!("the account {} is there and the state is its", helper.user);
    match Client::new(&helper.socket).look() {
        Ok(greeting) => {
            let same = greeting.version == env!("CARGO_PKG_VERSION");
            let evidence = format!("{mine}; bcd helper {} answers", greeting.version);
            match same {
                true => Verdict::ok(evidence),
                false => Verdict::warn(
                    format!("{evidence}, and this is bcd {}", env!("CARGO_PKG_VERSION")),
                    "run systemctl restart bcd-helper.service bcd.service",
                ),
            }
        }
        Err(AskError::NotReached(_, error)) if error.kind() != PermissionDenied && !seen.joined => {
            Verdict::ok(mine + "; bcd helper does not run: this machine has not joined")
        }
        Err(error @ AskError::Refused { .. }) => Verdict::unseen(&chain(&error), error.remedy()),
        Err(AskError::NotReached(path, error)) if error.kind() == PermissionDenied => {
            let why = format!("{}: {error}", path.display());
            Verdict::unseen(&why, look_again(&error))
        }
        Err(error) => Verdict::fail(chain(&error), error.remedy()),
    }
}
