//! What an operator wants of a node, under the signature that tells it from a gateway's own wish: orders, and specs, which
//! are signed anew when the signing keys are others. An order ends within a day, and then another one is made.

use bcd::crypto::envelope::Purpose;
use bcd::proto::Envelope;
use proto_gen::codec::Message;

use super::{JoinService, Refusal};

/// Specs that are looked at in one transaction.
const AT_ONCE: u32 = 200;

impl JoinService {
    /// Signs what the operator wants of a node: an encoded `NodeSpec`.
    ///
    /// # Errors
    /// It could not be signed.
    pub fn sign_spec(&self, spec: Vec<u8>) -> Result<Envelope, Refusal> {
        self.keys.sign(spec, Purpose::NodeSpec)
    }

    /// Signs that a node shall do something, once: an encoded `Order`.
    ///
    /// # Errors
    /// It could not be signed.
    pub fn sign_order(&self, order: Vec<u8>) -> Result<Envelope, Refusal> {
        self.keys.sign(order, Purpose::Order)
    }

    /// Signs every spec anew that is not signed by exactly the keys in force, and says how many: in a
    /// rotation some nodes trust only the next key already, or no longer the former one.
    ///
    /// # Errors
    /// The database failed, or one could not be signed.
    pub fn sign_specs_anew(&mut self) -> Result<usize, Refusal> {
        let keys = &self.keys;
        let mut own: Vec<String> = keys
            .signing
            .iter()
            .map(|key| key.pin().to_string())
            .collect();
        own.sort();
        let mut after = String::new();
        let mut signed = 0;
        loop {
            let stale = |bytes: &[u8]| {
                let envelope = Envelope::decode(bytes).ok()?;
                let mut by: Vec<_> = envelope.signatures.into_iter().map(|s| s.keyid).collect();
                by.sort();
                (by != own).then_some(envelope.payload)
            };
            let outcome = self.store.together(|store| {
                let page = store.envelopes(&after, AT_ONCE)?;
                let mut anew = 0;
                for (node_id, generation, envelope) in &page {
                    let Some(payload) = stale(envelope) else {
                        continue;
                    };
                    match keys.sign(payload, Purpose::NodeSpec) {
                        Ok(envelope) => {
                            store.set_envelope(node_id, *generation, &envelope.encode_to_vec())?;
                            anew += 1;
                        }
                        Err(refusal) => return Ok(Err(refusal)),
                    }
                }
                Ok(Ok((page.last().map(|(node_id, ..)| node_id.clone()), anew)))
            })?;
            let (last, anew) = outcome?;
            signed += anew;
            match last {
                Some(last) => after = last,
                None => return Ok(signed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bcd::crypto::envelope::verify_pinned;
    use bcd::crypto::key::NodeKey;

    use super::super::tests::Fleet;
    use super::*;
    use crate::store::Spec;

    #[test]
    fn what_is_signed_for_one_purpose_is_for_no_other() {
        let fleet = Fleet::new();
        let pin = fleet.service.keys.signing[0].pin();
        let order = fleet.service.sign_order(b"order".to_vec()).unwrap();
        let verified = verify_pinned(&order, Purpose::Order, &[pin]);
        assert_eq!(verified, Ok(&b"order"[..]));
        assert!(verify_pinned(&order, Purpose::NodeSpec, &[pin]).is_err());
        let spec = fleet.service.sign_spec(b"spec".to_vec()).unwrap();
        assert!(verify_pinned(&spec, Purpose::Order, &[pin]).is_err());
    }

    #[test]
    fn specs_that_another_key_signed_are_signed_anew_and_others_left_alone() {
        let mut fleet = Fleet::new();
        let former = NodeKey::generate().unwrap();
        let own = fleet.service.sign_spec(b"own".to_vec()).unwrap();
        for number in 0..250 {
            let signed = match number % 2 {
                0 => own.clone(),
                _ => bcd::crypto::envelope::sign(b"former".to_vec(), Purpose::NodeSpec, &former)
                    .unwrap(),
            };
            let spec = Spec {
                generation: 3,
                envelope: signed.encode_to_vec(),
                changed_ms: 1,
                sections: Vec::new(),
            };
            let node = format!("node_{number:03}");
            assert!(fleet.service.store.set_spec(&node, 0, &spec).unwrap());
        }
        assert_eq!(fleet.service.sign_specs_anew().unwrap(), 125);
        assert_eq!(fleet.service.sign_specs_anew().unwrap(), 0);
        let pin = fleet.service.keys.signing[0].pin();
        for (node, payload) in [("node_000", &b"own"[..]), ("node_249", b"former")] {
            let (_, envelope) = fleet.service.store.newer_spec(node, 2).unwrap().unwrap();
            let envelope = Envelope::decode(&envelope).unwrap();
            let verified = verify_pinned(&envelope, Purpose::NodeSpec, &[pin]).unwrap();
            assert_eq!(verified, payload);
        }
    }
}
