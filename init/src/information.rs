//! Asks a DHCPv6 server for what routers leave unsaid, on the one link that has the network.
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use crate::dhcpv6::{Client, Information, MAX_MESSAGE};
use crate::edge::{information_socket, number};
use crate::nics::Nic;

/// All_DHCP_Relay_Agents_and_Servers.
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

pub struct Informed {
    link: u32,
    client: Client,
    socket: UdpSocket,
}

impl Informed {
    /// # Errors
    /// Another program holds the port.
    pub fn start(nic: &Nic, now: Duration) -> std::io::Result<Self> {
        Ok(Self {
            link: nic.index,
            client: Client::new(nic.mac, number(nic.mac), now),
            socket: information_socket()?,
        })
    }

    /// The link it asks on.
    pub fn link(&self) -> u32 {
        self.link
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// When [`due`](Self::due) wants to be called.
    pub fn next(&self) -> Duration {
        self.client.next()
    }

    /// Asks if it is time.
    pub fn due(&mut self, now: Duration) {
        if let Some(question) = self.client.due(now) {
            let to = SocketAddrV6::new(SERVERS, 547, 0, self.link);
            // A link whose own address is not settled yet: the next try comes by itself.
            let _ = self.socket.send_to(&question, to);
        }
    }

    /// Takes the answer, if it is there.
    pub fn take(&mut self, now: Duration) -> Option<Information> {
        let mut buffer = [0; MAX_MESSAGE];
        while let Ok((length, _)) = self.socket.recv_from(&mut buffer) {
            let message = buffer.get(..length).unwrap_or_default();
            if let Some(found) = self.client.arrived(now, message) {
                return Some(found);
            }
        }
        None
    }
}
