//! An identity and its keys in memory: what a simulated node has instead of a `data_dir`.
use std::sync::{Mutex, MutexGuard, PoisonError};

use zeroize::Zeroizing;

use crate::attest::member::{Keep, KeepError};
use crate::crypto::key::{Error, NodeKey};
use crate::identity::record::Identity;
use crate::identity::store::{Joined, StoreError};

pub struct Kept(Mutex<Files>);

struct Files {
    identity: Identity,
    key: Zeroizing<String>,
    next: Option<Zeroizing<String>>,
}

impl Kept {
    pub fn new(identity: Identity, key: &NodeKey) -> Self {
        Self(Mutex::new(Files {
            identity,
            key: key.to_pem(),
            next: None,
        }))
    }

    /// What a daemon finds that is started now.
    pub fn load(&self) -> Result<Joined, Error> {
        let files = self.files();
        Ok(Joined {
            key: NodeKey::from_pem(&files.key)?,
            identity: files.identity.clone(),
        })
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keep for Kept {
    fn next_key(&self, _present: NodeKey, refused: bool) -> Result<NodeKey, StoreError> {
        let mut files = self.files();
        if let Some(next) = files.next.as_ref().filter(|_| !refused) {
            return NodeKey::from_pem(next).map_err(StoreError::Key);
        }
        let key = NodeKey::generate().map_err(StoreError::Key)?;
        files.next = Some(key.to_pem());
        Ok(key)
    }

    fn change(
        &self,
        own: &[Vec<u8>],
        renewed: bool,
        change: &mut dyn FnMut(&mut Identity),
    ) -> Result<Identity, KeepError> {
        let mut files = self.files();
        if files.identity.certificate_chain != own {
            return Err(KeepError::NotOurs);
        }
        change(&mut files.identity);
        if renewed && let Some(next) = files.next.take() {
            files.key = next;
        }
        Ok(files.identity.clone())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_renewals_key_is_the_nodes_own_once_its_certificate_is_kept() {
        let key = NodeKey::generate().unwrap();
        let mut identity = Identity::default();
        identity.certificate_chain = vec![vec![1]];
        let kept = Kept::new(identity, &key);
        let present = || NodeKey::from_pem(&key.to_pem()).unwrap();
        let next = kept.next_key(present(), false).unwrap();
        // One that was cut off is taken up, one that was refused is not.
        assert!(kept.next_key(present(), false).unwrap().pin() == next.pin());
        let other = kept.next_key(present(), true).unwrap();
        assert!(other.pin() != next.pin());
        assert!(kept.load().unwrap().key.pin() == key.pin());
        let mut change = |identity: &mut Identity| identity.certificate_chain = vec![vec![2]];
        let not_ours = kept.change(&[vec![9]], true, &mut change);
        assert!(matches!(not_ours, Err(KeepError::NotOurs)));
        let changed = kept.change(&[vec![1]], true, &mut change).unwrap();
        let joined = kept.load().unwrap();
        assert_eq!(joined.identity, changed);
        assert!(joined.key.pin() == other.pin());
    }
}
