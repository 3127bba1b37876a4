//! What a NIC's driver knows of its link beyond rtnetlink's counters (ethtool-netlink): why there is none, and what its
//! receiver had to mend. The kernel gives each the same name for every driver; one that tells nothing, as most virtual
//! ones, is left out.
use super::{Finding, shown};
use crate::proto::DiagVerdict;
use crate::sys::netlink::{
    Attribute, GENL_ID_CTRL, Step, attributes, dump_generic, u16_at, u32_at,
};

/// Commands: of the controller, to list all families; of ethtool's.
const GET_FAMILY: u8 = 3;
const LINKSTATE: u8 = 6;
const FEC: u8 = 29;
const STATS: u8 = 32;
/// Behind `struct genlmsghdr`.
const BODY: usize = 4;
/// Links held.
const HELD: usize = 1024;

/// Why there is no link (enum ethtool_link_ext_state), from 0 on.
const NO_LINK: [&str; 11] = [
    "autonegotiation failed",
    "link training failed",
    "the link's layers do not fit each other",
    "bad signal integrity",
    "no cable",
    "cable issue",
    "the transceiver's EEPROM is not read",
    "calibration failed",
    "the port's power budget is exceeded",
    "overheated",
    "the transceiver is not ready",
];

/// What is told of one link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    index: u32,
    /// A place in [`NO_LINK`].
    no_link: Option<u8>,
    /// SymbolErrorDuringCarrier of IEEE 802.3.
    symbol_errors: Option<u64>,
    /// Blocks of forward error correction: mended, and lost.
    fec_corrected: Option<u64>,
    fec_uncorrectable: Option<u64>,
}

/// All links of which something is told; none where the kernel knows no such questions.
pub fn read() -> Vec<Told> {
    let mut all = Vec::new();
    let Some(family) = family() else {
        return all;
    };
    for question in QUESTIONS {
        // An older kernel knows only the first of them.
        if !ask(family, question, &mut |payload| take(payload, &mut all)) {
            break;
        }
    }
    all
}

/// Questions, and their attributes as numbers of the little-endian machines that bcd is built for: a header with flags
/// (ETHTOOL_FLAG_STATS), and the set of groups asked for (eth-phy), without a mask.
const QUESTIONS: [(u8, &[u32]); 3] = [
    (LINKSTATE, &[]),
    (FEC, &[NESTED | 1 << 16 | 12, 3 << 16 | 8, 4]),
    (
        STATS,
        &[
            NESTED | 3 << 16 | 24,
            1 << 16 | 4,
            2 << 16 | 8,
            4,
            4 << 16 | 8,
            1,
        ],
    ),
];
/// NLA_F_NESTED, where an attribute's type stands behind its length.
const NESTED: u32 = 0x8000 << 16;

/// Asks one of them.
fn ask(family: u16, (command, body): (u8, &[u32]), take: &mut dyn FnMut(&[u8])) -> bool {
    let mut bytes = Vec::new();
    for number in body {
        bytes.extend_from_slice(&number.to_ne_bytes());
    }
    dump_generic(family, command, &bytes, &mut |step| {
        if let Step::Entry(message) = step {
            take(message.payload);
        }
    })
    .is_ok()
}

/// The number of ethtool's messages on this kernel.
fn family() -> Option<u16> {
    let mut found = None;
    ask(GENL_ID_CTRL, (GET_FAMILY, &[]), &mut |payload| {
        found = found.or(family_in(payload));
    });
    found
}

fn family_in(payload: &[u8]) -> Option<u16> {
    let body = payload.get(BODY..)?;
    let find = |kind: u16| attributes(body).find(|one| one.kind == kind);
    // CTRL_ATTR_FAMILY_NAME and CTRL_ATTR_FAMILY_ID.
    (find(2)?.value == b"ethtool\0").then_some(())?;
    u16_at(find(1)?.value, 0)
}

/// Reads an answer to one of [`QUESTIONS`]: of which, its own command says.
pub fn take(payload: &[u8], all: &mut Vec<Told>) {
    let command = payload.first().copied().unwrap_or_default();
    let body = payload.get(BODY..).unwrap_or_default();
    // The answers' numbers: ETHTOOL_MSG_LINKSTATE_GET_REPLY, FEC_GET_REPLY, STATS_GET_REPLY.
    let header = match command {
        6 | 30 => 1,
        33 => 2,
        _ => return,
    };
    let find = |kind: u16| attributes(body).find(|one| one.kind == kind);
    let index = find(header)
        .and_then(|header| attributes(header.value).find(|one| one.kind == 1))
        .and_then(|index| u32_at(index.value, 0));
    let Some(index) = index else {
        return;
    };
    let place = match all.iter().position(|told| told.index == index) {
        Some(place) => place,
        None if all.len() < HELD => {
            all.push(Told {
                index,
                ..Told::default()
            });
            all.len() - 1
        }
        None => return,
    };
    let Some(told) = all.get_mut(place) else {
        return;
    };
    let first = |attribute: Attribute<'_>| {
        let value = attribute.value.first_chunk();
        value.map(|value| u64::from_ne_bytes(*value))
    };
    match command {
        6 => told.no_link = find(5).and_then(|state| state.value.first().copied()),
        30 => {
            // Of all lanes together, then of each.
            for one in find(5)
                .into_iter()
                .flat_map(|stats| attributes(stats.value))
            {
                match one.kind {
                    2 => told.fec_corrected = first(one),
                    3 => told.fec_uncorrectable = first(one),
                    _ => {}
                }
            }
        }
        _ => {
            // Groups of statistics, which hold their id and each statistic by its number.
            for group in attributes(body).filter(|one| one.kind == 4) {
                let find = |kind: u16| attributes(group.value).find(|one| one.kind == kind);
                if find(2).and_then(|id| u32_at(id.value, 0)) == Some(0) {
                    let statistic =
                        find(4).and_then(|one| attributes(one.value).find(|one| one.kind == 0));
                    told.symbol_errors = statistic.and_then(first);
                }
            }
        }
    }
}

impl Told {
    /// What is told of this link, if anything.
    pub fn of(all: &[Self], index: u32) -> Self {
        let found = all.iter().find(|told| told.index == index);
        found.cloned().unwrap_or_default()
    }

    /// Why there is no link.
    pub fn no_link(&self) -> Option<&'static str> {
        NO_LINK.get(usize::from(self.no_link?)).copied()
    }

    /// Puts it into a finding, beside what was told before.
    pub fn judge(&self, before: &Self, finding: &mut Finding) {
        for (name, now, before, is_wrong) in [
            (
                "symbol_errors",
                self.symbol_errors,
                before.symbol_errors,
                true,
            ),
            // Fast links mend all the time.
            (
                "fec_corrected",
                self.fec_corrected,
                before.fec_corrected,
                false,
            ),
            (
                "fec_uncorrectable",
                self.fec_uncorrectable,
                before.fec_uncorrectable,
                true,
            ),
        ] {
            let Some(now) = now else {
                continue;
            };
            finding.number(name, now);
            let grown = now.saturating_sub(before.unwrap_or(now));
            if is_wrong && grown > 0 {
                let grown = shown(grown);
                finding.say(
                    DiagVerdict::WARN,
                    &[name, " grew by ", &grown, " while it was watched"],
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::sys::netlink::tests::attribute;

    fn answer(command: u8, header: u16, index: u32, parts: &[Vec<u8>]) -> Vec<u8> {
        let header = attribute(header, &attribute(1, &index.to_ne_bytes()));
        [vec![command, 1, 0, 0], header, parts.concat()].concat()
    }

    fn u64s(numbers: &[u64]) -> Vec<u8> {
        numbers
            .iter()
            .flat_map(|number| number.to_ne_bytes())
            .collect()
    }

    fn answers() -> [Vec<u8>; 3] {
        let fec = [
            attribute(2, &u64s(&[500, 200, 300])),
            attribute(3, &u64s(&[7, 7])),
        ];
        let group = |id: u32, number: u64| {
            let statistic = attribute(4, &attribute(0, &u64s(&[number])));
            attribute(4, &[attribute(2, &id.to_ne_bytes()), statistic].concat())
        };
        [
            answer(LINKSTATE, 1, 3, &[attribute(2, &[0]), attribute(5, &[4])]),
            answer(30, 1, 3, &[attribute(5, &fec.concat())]),
            // Another group's first statistic is none of ours.
            answer(33, 2, 3, &[group(1, 99), group(0, 12)]),
        ]
    }

    #[test]
    fn a_links_state_its_corrections_and_its_symbol_errors_are_read() {
        let mut all = Vec::new();
        for payload in answers() {
            take(&payload, &mut all);
        }
        let told = Told::of(&all, 3);
        assert_eq!(told.no_link(), Some("no cable"));
        assert_eq!(told.symbol_errors, Some(12));
        assert_eq!(
            (told.fec_corrected, told.fec_uncorrectable),
            (Some(500), Some(7))
        );
        assert_eq!(all.len(), 1);
        assert_eq!(Told::of(&all, 4), Told::default());
    }

    #[test]
    fn what_grew_is_wrong_what_was_mended_is_not_and_what_is_not_told_is_not_made_up() {
        let mut all = Vec::new();
        answers().iter().for_each(|payload| take(payload, &mut all));
        let before = Told::of(&all, 3);
        let judged = |now: &Told, before: &Told| {
            let mut finding = Finding::new("eth0");
            finding.asked();
            now.judge(before, &mut finding);
            finding.0
        };
        let same = judged(&before, &before);
        assert_eq!((same.verdict, same.readings.len()), (DiagVerdict::OK, 3));
        let mut now = before.clone();
        now.fec_corrected = Some(9000);
        assert_eq!(judged(&now, &before).verdict, DiagVerdict::OK);
        now.fec_uncorrectable = Some(9);
        now.symbol_errors = Some(13);
        assert_eq!(
            judged(&now, &before).problems,
            [
                "symbol_errors grew by 1 while it was watched",
                "fec_uncorrectable grew by 2 while it was watched"
            ]
        );
        // It was not told before: nothing is known of its growth.
        assert_eq!(judged(&now, &Told::default()).verdict, DiagVerdict::OK);
        assert_eq!(judged(&Told::default(), &now).readings.len(), 0);
    }

    #[test]
    fn hostile_bytes_are_read_within_bounds() {
        for payload in answers() {
            for end in 0..payload.len() {
                take(&payload[..end], &mut Vec::new());
                let mut odd = payload.clone();
                odd[end] = 0xff;
                take(&odd, &mut Vec::new());
                family_in(&odd);
            }
        }
        let mut all = Vec::new();
        for index in 0..2000 {
            take(&answer(LINKSTATE, 1, index, &[]), &mut all);
        }
        assert_eq!(all.len(), HELD);
        let mut odd = Vec::new();
        take(&answer(LINKSTATE, 1, 1, &[attribute(5, &[255])]), &mut odd);
        assert_eq!(odd[0].no_link(), None);
    }

    #[test]
    fn this_kernel_understands_every_question() {
        let family = family().unwrap();
        for question in QUESTIONS {
            assert!(ask(family, question, &mut |_| {}), "{question:?}");
        }
        // It tells of every link whether there is one.
        assert!(read().iter().any(|told| told.index == 1));
    }
}
