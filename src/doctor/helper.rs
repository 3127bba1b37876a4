//! Under `[helper]`: whether the account is there and the state is its.
use std::os::unix::fs::MetadataExt;

use super::{Seen, Verdict, chain, look_again};
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
    Verdict::ok(format!(
        "the account {} is there and the state is its",
        helper.user
    ))
}
