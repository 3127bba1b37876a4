//! What the ramdisk's init found out before and beside bcd (init/src/facts.rs): where the BMC is reached, and which switch
//! each NIC is plugged into. Files below /run/init, a line a finding, tabs between its parts; elsewhere there are none.
use std::time::SystemTime;

use super::tree::{Tree, clean};
use crate::proto::{Facts, NetworkInterface};

const DIRECTORY: &str = "/run/init";
const BMC: &str = "run/init/bmc";
const NEIGHBOURS: &str = "run/init/lldp";
/// The most that is read of a file.
const MAX: usize = 16 * 1024;

/// When init last wrote something down.
pub(super) fn wrote() -> Option<SystemTime> {
    std::fs::metadata(DIRECTORY).ok()?.modified().ok()
}

pub(super) fn read_bmc(tree: &Tree, facts: &mut Facts) {
    let file = tree.bytes(BMC, MAX).unwrap_or_default();
    if let Some(line) = lines(&file).next() {
        [facts.bmc_address, facts.bmc_mac] = parts(line);
    }
}

pub(super) fn read_neighbours(tree: &Tree, interfaces: &mut [NetworkInterface]) {
    let file = tree.bytes(NEIGHBOURS, MAX).unwrap_or_default();
    for line in lines(&file) {
        let [name, system, port, chassis] = parts(line);
        if let Some(interface) = interfaces.iter_mut().find(|one| one.name == name) {
            interface.lldp_system = system;
            interface.lldp_port = port;
            interface.lldp_chassis = chassis;
        }
    }
}

fn lines(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    file.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
}

/// The first parts of a line, as clean text; empty where there are fewer.
fn parts<const N: usize>(line: &[u8]) -> [String; N] {
    let mut parts = line.split(|byte| *byte == b'\t').map(clean);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::Fixture;
    use super::*;

    fn interfaces() -> Vec<NetworkInterface> {
        let named = |name: &str| NetworkInterface {
            name: name.to_owned(),
            ..NetworkInterface::default()
        };
        vec![named("eth0"), named("eth1")]
    }

    #[test]
    fn what_init_wrote_stands_with_its_interface_and_the_machine() {
        let fixture = Fixture::new(&[
            (BMC, b"10.9.8.7\t02:00:00:00:00:07\n"),
            (
                NEIGHBOURS,
                b"eth1\tleaf-12\tEthernet7/1\t00:1c:73:01:02:03\neth9\tx\ty\tz\n",
            ),
        ]);
        let (mut facts, mut interfaces) = (Facts::default(), interfaces());
        read_bmc(&fixture.tree, &mut facts);
        assert_eq!(facts.bmc_address, "10.9.8.7");
        assert_eq!(facts.bmc_mac, "02:00:00:00:00:07");
        read_neighbours(&fixture.tree, &mut interfaces);
        assert_eq!(interfaces[0].lldp_system, "");
        assert_eq!(interfaces[1].lldp_system, "leaf-12");
        assert_eq!(interfaces[1].lldp_port, "Ethernet7/1");
        assert_eq!(interfaces[1].lldp_chassis, "00:1c:73:01:02:03");
    }

    #[test]
    fn a_machine_without_init_has_neither_and_odd_files_are_cleaned() {
        let fixture = Fixture::new(&[("etc/x", b"")]);
        let (mut facts, mut there) = (Facts::default(), interfaces());
        read_bmc(&fixture.tree, &mut facts);
        read_neighbours(&fixture.tree, &mut there);
        assert_eq!((facts, there), (Facts::default(), interfaces()));
        fixture.put(BMC, b"\n\n10.0.0.1\n");
        fixture.put(
            NEIGHBOURS,
            &[b"eth0\t\x1b[2J\t".as_slice(), &[b'x'; 9000]].concat(),
        );
        let (mut facts, mut there) = (Facts::default(), interfaces());
        read_bmc(&fixture.tree, &mut facts);
        read_neighbours(&fixture.tree, &mut there);
        assert_eq!(
            (facts.bmc_address.as_str(), facts.bmc_mac.as_str()),
            ("10.0.0.1", "")
        );
        assert_eq!(there[0].lldp_system, "[2J");
        assert_eq!(there[0].lldp_port.len(), 256);
    }
}
