//! DHCPv6: a client takes any message as the answer to its question, and what it takes leads somewhere.
use std::time::Duration;

use init::dhcpv6::{Client, leads_on};

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 16,
};

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

pub fn run(data: &[u8]) {
    let mut now = Duration::from_secs(1000);
    let mut client = Client::new(MAC, [7; 4], now);
    assert!(
        client.arrived(now, data).is_none(),
        "an answer to no question"
    );
    for _ in 0..4 {
        now = client.next().max(now);
        let question = client.due(now).expect("it is time");
        // The input as an answer to this very question.
        let mut answer = data.to_vec();
        if let Some(field) = answer.get_mut(..4) {
            field.copy_from_slice(&[7, question[1], question[2], question[3]]);
        }
        for message in [data, &answer] {
            if let Some(found) = client.arrived(now, message) {
                assert!(found.dns.len() <= 6 && found.ntp.len() <= 6 && found.search.len() <= 6);
                assert!(found.dns.iter().chain(&found.ntp).all(|one| leads_on(*one)));
                assert!(found.search.iter().all(|name| {
                    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
                    (1..=253).contains(&name.len()) && name.bytes().all(fine)
                }));
                assert!(client.next() >= now + Duration::from_secs(600));
            }
        }
        assert!(client.next() > now);
    }
}
