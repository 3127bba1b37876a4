//! IPMI: whatever a BMC answers, the asking ends, and an address that it gives leads somewhere.
use std::net::IpAddr;

use init::bmc;
use init::dhcpv6::leads_on;

pub const HEAP: super::Heap = super::Heap {
    base: 4096,
    per_byte: 4,
};

/// The input is a BMC: the answers in turn, a byte of length before each.
pub fn run(data: &[u8]) {
    let (mut rest, mut asked) = (data, 0);
    let found = bmc::ask(&mut |_, _, _| {
        asked += 1;
        let (length, more) = rest.split_first()?;
        let (answer, after) = more.split_at_checked(usize::from(*length).min(more.len()))?;
        rest = after;
        Some(answer.to_vec())
    });
    assert!(asked <= 11 * 8, "{asked}");
    match found.map(|found| found.address) {
        Some(IpAddr::V6(address)) => assert!(leads_on(address)),
        Some(IpAddr::V4(address)) => assert!(!address.is_unspecified() && !address.is_multicast()),
        None => {}
    }
}
