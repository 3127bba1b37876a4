//! IPv6: what the kernel tells of a router's advertisements, and its table of addresses.
use init::ipv6;

pub const HEAP: super::Heap = super::Heap {
    base: 4096,
    per_byte: 16,
};

pub fn run(data: &[u8]) {
    let links = ipv6::sends_to_dhcpv6(data);
    assert!(links.len() <= data.len() / 32);
    if let Some(servers) = ipv6::name_servers(data) {
        assert!(servers.len() <= data.len() / 16);
    }
    let text = String::from_utf8_lossy(data);
    if let Some((address, _)) = ipv6::address(&text, "eth0") {
        assert!(text.contains("eth0") && !address.to_string().is_empty());
    }
}
