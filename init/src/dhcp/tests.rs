use super::*;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 50);
const T0: Duration = Duration::from_secs(100);

fn at(seconds: u64) -> Duration {
    T0 + Duration::from_secs(seconds)
}

fn answer(question: &[u8], kind: u8, options: &[(u8, &[u8])]) -> Vec<u8> {
    let mut message = question[..240].to_vec();
    message[0] = 2;
    message[16..20].copy_from_slice(&ADDRESS.octets());
    for (code, value) in [(53, &[kind][..])].iter().chain(options) {
        message.extend_from_slice(&[*code, value.len() as u8]);
        message.extend_from_slice(value);
    }
    message.push(255);
    message
}

const GRANT: &[(u8, &[u8])] = &[
    (54, &[10, 0, 0, 1]),
    (51, &[0, 0, 14, 16]),
    (1, &[255, 255, 255, 0]),
    (3, &[10, 0, 0, 254]),
    (6, &[10, 0, 0, 2, 10, 0, 0, 3]),
    (42, &[10, 0, 0, 4]),
    (26, &[0x05, 0x78]),
    (15, b"example.com\0"),
];

fn sent(action: Option<Action>) -> Vec<u8> {
    match action {
        Some(Action::Broadcast(message)) => message,
        other => panic!("{other:?}"),
    }
}

fn bound(client: &mut Client) -> Lease {
    let discover = sent(client.due(T0));
    let request = sent(client.arrived(T0, &answer(&discover, 2, GRANT)));
    assert_eq!(option(&[Some(&request[240..])], 50), ADDRESS.octets());
    assert_eq!(option(&[Some(&request[240..])], 54), SERVER.octets());
    match client.arrived(T0, &answer(&request, 5, GRANT)) {
        Some(Action::Bound(lease)) => lease,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lease_is_found_asked_for_and_held() {
    let mut client = Client::new(MAC, 7, T0);
    let lease = bound(&mut client);
    assert_eq!((lease.address, lease.prefix), (ADDRESS, 24));
    assert_eq!(
        lease.routes,
        [(Ipv4Addr::UNSPECIFIED, 0, Ipv4Addr::new(10, 0, 0, 254))]
    );
    assert_eq!(lease.dns.len(), 2);
    assert_eq!(lease.ntp, [Ipv4Addr::new(10, 0, 0, 4)]);
    assert_eq!(lease.mtu, Some(1400));
    assert_eq!(lease.domain.as_deref(), Some("example.com"));
    assert_eq!(client.next(), at(1800));
    assert!(client.is_bound());
}

#[test]
fn without_an_answer_it_asks_for_ever_and_every_second_time_for_a_broadcast() {
    let mut client = Client::new(MAC, 7, T0);
    let mut now = T0;
    let mut waits = Vec::new();
    for round in 0..8 {
        let message = sent(client.due(now));
        assert_eq!(message[10] == 0x80, round % 2 == 1, "round {round}");
        assert!(message.len() >= 300);
        waits.push((client.next() - now).as_secs());
        assert_eq!(client.due(now), None);
        now = client.next();
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 16, 16, 16]);
}

#[test]
fn a_lease_is_renewed_with_its_server_then_with_anybody_then_lost() {
    let mut client = Client::new(MAC, 7, T0);
    bound(&mut client);
    let mut now = client.next();
    let (mut unicasts, mut broadcasts) = (0, 0);
    loop {
        match client.due(now) {
            Some(Action::Unicast(server, message)) => {
                assert_eq!(server, SERVER);
                assert_eq!(message[12..16], ADDRESS.octets());
                unicasts += 1;
            }
            Some(Action::Broadcast(_)) => broadcasts += 1,
            Some(Action::Lost) => break,
            other => panic!("{other:?}"),
        }
        assert!(client.next() > now);
        now = client.next();
    }
    assert_eq!(now, at(3600));
    assert!((2..10).contains(&unicasts) && (2..10).contains(&broadcasts));
    // And begins anew.
    assert!(!client.is_bound());
    sent(client.due(now));
}

#[test]
fn a_renewal_is_refused_by_its_own_server_alone_until_anybody_is_asked() {
    let mut client = Client::new(MAC, 7, T0);
    bound(&mut client);
    let Some(Action::Unicast(_, message)) = client.due(at(1800)) else {
        panic!("no renewal")
    };
    let other = answer(&message, 6, &[(54, &[10, 0, 0, 9])]);
    assert_eq!(client.arrived(at(1801), &other), None);
    let own = answer(&message, 6, &GRANT[..1]);
    let refused = client.clone().arrived(at(1801), &own);
    assert_eq!(refused, Some(Action::Lost));
    while !matches!(client.due(client.next()), Some(Action::Broadcast(_))) {}
    let now = client.next() - Duration::from_secs(1);
    assert_eq!(client.arrived(now, &other), Some(Action::Lost));
}

#[test]
fn a_renewed_lease_counts_from_its_renewal() {
    let mut client = Client::new(MAC, 7, T0);
    bound(&mut client);
    let Some(Action::Unicast(_, message)) = client.due(at(1800)) else {
        panic!("no renewal")
    };
    let renewed = client.arrived(at(1801), &answer(&message, 5, GRANT));
    assert!(matches!(renewed, Some(Action::Bound(_))));
    assert_eq!(client.next(), at(1801 + 1800));
}

#[test]
fn a_refusal_starts_anew_without_a_loop() {
    let mut client = Client::new(MAC, 7, T0);
    let discover = sent(client.due(T0));
    let request = sent(client.arrived(T0, &answer(&discover, 2, GRANT)));
    assert_eq!(client.arrived(T0, &answer(&request, 6, &GRANT[..1])), None);
    assert!(client.next() > T0);
    let again = sent(client.due(client.next()));
    assert_ne!(again[4..8], discover[4..8]);
}

/// `GRANT`, of another server or with an option in another's place.
fn but(code: u8, value: &'static [u8]) -> Vec<(u8, &'static [u8])> {
    let others = GRANT.iter().filter(|(known, _)| *known != code);
    [(code, value)].into_iter().chain(others.copied()).collect()
}

#[test]
fn a_server_that_offers_and_grants_nothing_lets_another_have_its_turn() {
    const OTHER: &[u8] = &[10, 0, 0, 9];
    // It refuses; or it falls silent.
    for refuses in [true, false] {
        let mut client = Client::new(MAC, 7, T0);
        let discover = sent(client.due(T0));
        let request = sent(client.arrived(T0, &answer(&discover, 2, GRANT)));
        if refuses {
            client.arrived(T0, &answer(&request, 6, &GRANT[..1]));
        }
        let mut again = sent(client.due(client.next()));
        while option(&[Some(&again[240..])], 53) != [1] {
            again = sent(client.due(client.next()));
        }
        let now = client.next();
        // It is as quick as before, and the other one as slow.
        assert_eq!(client.arrived(now, &answer(&again, 2, GRANT)), None);
        let mut both = client.clone();
        let asked = sent(both.arrived(now, &answer(&again, 2, &but(54, OTHER))));
        assert_eq!(option(&[Some(&asked[240..])], 54), OTHER);
        // Alone, it is asked once more in the end.
        for _ in 1..CHANCES {
            again = sent(client.due(client.next()));
        }
        let asked = sent(client.arrived(client.next(), &answer(&again, 2, GRANT)));
        assert_eq!(option(&[Some(&asked[240..])], 54), SERVER.octets());
    }
}

#[test]
fn a_server_that_has_a_lease_renewed_at_once_is_not_asked_without_end() {
    for (code, value) in [
        (58, &[0, 0, 0, 0][..]),
        (58, &[0, 0, 0, 1]),
        (59, &[0, 0, 0, 0]),
        (59, &[0xff; 4]),
        (58, &[0xff; 4]),
        (51, &[0, 0, 0, 1]),
    ] {
        let options = but(code, value);
        let mut client = Client::new(MAC, 7, T0);
        let discover = sent(client.due(T0));
        let request = sent(client.arrived(T0, &answer(&discover, 2, &options)));
        let mut now = T0;
        let Some(Action::Bound(lease)) = client.arrived(now, &answer(&request, 5, &options)) else {
            panic!("no lease")
        };
        assert!(lease.renew <= lease.rebind && lease.rebind <= lease.end);
        let mut count = 0;
        while now < at(600) {
            now = client.next();
            let Some(Action::Unicast(_, message)) = client.due(now) else {
                panic!("no renewal")
            };
            assert!(matches!(
                client.arrived(now, &answer(&message, 5, &options)),
                Some(Action::Bound(_))
            ));
            count += 1;
        }
        assert!(count <= 20, "{code} {value:?}: {count}");
    }
}

#[test]
fn a_router_that_the_network_does_not_hold_gets_a_route_of_its_own() {
    let router = Ipv4Addr::new(10, 0, 0, 254);
    let default = (Ipv4Addr::UNSPECIFIED, 0, router);
    let own = (router, 32, Ipv4Addr::UNSPECIFIED);
    for (mask, more, routes) in [
        (&[255, 255, 255, 0][..], &[][..], &[default][..]),
        (&[255, 255, 255, 255], &[], &[default, own]),
        // The server says itself that it is on the link.
        (
            &[255, 255, 255, 255],
            &[32, 10, 0, 0, 254, 0, 0, 0, 0, 0, 10, 0, 0, 254],
            &[own, default],
        ),
    ] {
        let mut options = GRANT.to_vec();
        options[2].1 = mask;
        options.push((121, more));
        let mut client = Client::new(MAC, 7, T0);
        let discover = sent(client.due(T0));
        let request = sent(client.arrived(T0, &answer(&discover, 2, &options)));
        match client.arrived(T0, &answer(&request, 5, &options)) {
            Some(Action::Bound(lease)) => assert_eq!(lease.routes, routes),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn of_two_servers_the_first_counts_and_the_others_acks_do_not() {
    let mut client = Client::new(MAC, 7, T0);
    let discover = sent(client.due(T0));
    let request = sent(client.arrived(T0, &answer(&discover, 2, GRANT)));
    let other: Vec<(u8, &[u8])> = [(54, &[10, 0, 0, 9][..])]
        .into_iter()
        .chain(GRANT[1..].iter().copied())
        .collect();
    assert_eq!(client.arrived(T0, &answer(&discover, 2, &other)), None);
    assert_eq!(client.arrived(T0, &answer(&request, 5, &other)), None);
    assert_eq!(client.arrived(T0, &answer(&request, 6, &other)), None);
    assert!(matches!(
        client.arrived(T0, &answer(&request, 5, GRANT)),
        Some(Action::Bound(_))
    ));
}

#[test]
fn what_is_not_for_this_machine_or_not_usable_is_passed_over() {
    let mut client = Client::new(MAC, 7, T0);
    let discover = sent(client.due(T0));
    let good = answer(&discover, 2, GRANT);
    for (at, value) in [
        (0, 1),
        (4, 0xff),
        (28, 0xff),
        (236, 0),
        (16, 0),
        (16, 127),
        (16, 224),
    ] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(client.arrived(T0, &bad), None, "{at}");
    }
    for options in [
        &GRANT[1..],
        &[(54, &[10, 0, 0, 1][..])][..],
        &[(54, &[10, 0, 0, 1]), (51, &[0, 0, 0, 0])],
        &[
            (54, &[10, 0, 0, 1]),
            (51, &[0, 0, 1, 0]),
            (1, &[255, 0, 255, 0]),
        ],
        &[
            (54, &[10, 0, 0, 1]),
            (51, &[0, 0, 1, 0]),
            (1, &[0, 0, 0, 0]),
        ],
    ] {
        assert_eq!(client.arrived(T0, &answer(&discover, 2, options)), None);
    }
}

#[test]
fn every_cut_and_every_flipped_byte_is_read_without_a_panic() {
    let mut client = Client::new(MAC, 7, T0);
    let discover = sent(client.due(T0));
    let good = answer(&discover, 2, GRANT);
    for length in 0..good.len() {
        client.clone().arrived(T0, &good[..length]);
    }
    for at in 0..good.len() {
        for value in [0, 1, 52, 121, 255] {
            let mut bad = good.clone();
            bad[at] = value;
            client.clone().arrived(T0, &bad);
        }
    }
    assert_eq!(client.arrived(T0, &vec![2; MAX_MESSAGE + 1]), None);
}

#[test]
fn classless_routes_replace_the_router_and_are_cleaned() {
    let routes = classless(&[
        0, 10, 0, 0, 254, // default
        12, 172, 31, 10, 0, 0, 253, // 172.31/12: the bits beyond are cleared
        32, 192, 0, 2, 1, 0, 0, 0, 0, // on the link
        33, 1, // not a prefix
    ]);
    assert_eq!(routes.len(), 3);
    assert_eq!(routes[1].0, Ipv4Addr::new(172, 16, 0, 0));
    assert!(routes[2].2.is_unspecified());
    assert!(classless(&[24, 10, 0]).is_empty());
}

#[test]
fn options_in_the_name_fields_and_in_parts_are_found() {
    let mut client = Client::new(MAC, 7, T0);
    let discover = sent(client.due(T0));
    let mut message = answer(&discover, 2, &[(52, &[1]), (54, &[10, 0, 0, 1])]);
    message[108..116].copy_from_slice(&[51, 2, 0, 0, 51, 2, 14, 16]);
    message[116] = 255;
    let request = sent(client.arrived(T0, &message));
    assert_eq!(option(&[Some(&request[240..])], 53), [3]);
}

#[test]
fn a_domain_that_would_break_a_file_is_none() {
    assert_eq!(domain(b"a.example\0").as_deref(), Some("a.example"));
    assert_eq!(domain(b"a\nnameserver 6.6.6.6"), None);
    assert_eq!(domain(b""), None);
}
