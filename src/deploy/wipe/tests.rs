//! Wipes of disks that are none: media in memory, behind controllers that answer as recorded ones do, lie, hang or fail.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
use std::cell::{Cell, RefCell};
use std::ops::Range;

use super::*;

const SIZE: usize = 8 << 20;

/// What a command did to the media.
#[derive(Clone, Copy, PartialEq)]
enum Effect {
    Zeros,
    Scrambles,
    Nothing,
}

struct Fake {
    media: RefCell<Vec<u8>>,
    /// What was asked of it, beside reads and writes.
    given: RefCell<Vec<String>>,
    waited: Cell<Duration>,
    unwritable: Range<usize>,
    discard: Effect,
    nvme: Option<Nvme>,
    ata: Option<RefCell<Ata>>,
    scsi: Option<RefCell<Scsi>>,
}

struct Nvme {
    /// The bits of SANICAP, and of FNA.
    sanicap: u8,
    fna: u8,
    namespaces: Vec<u32>,
    /// What a sanitize, and a format, of each kind does to the media.
    sanitize: fn(u32) -> Option<Effect>,
    format: Effect,
    /// State and command of the log, and how often it still says that it runs.
    log: Cell<(u16, u32, u32)>,
}

#[derive(Default)]
struct Ata {
    /// Word 128 and word 59.
    security: u16,
    sanitizes: u16,
    password: Option<[u8; 32]>,
    prepared: bool,
    erases: bool,
    /// The high byte of COUNT, and how often it still says that it runs.
    status: (u8, u32),
}

struct Scsi {
    running: u32,
    fails: bool,
    begun: Option<u8>,
}

fn fake() -> Fake {
    // Something that is nowhere the same.
    let media = (0..SIZE / 4).flat_map(|n| (n as u32).wrapping_mul(2_654_435_761).to_le_bytes());
    Fake {
        media: RefCell::new(media.collect()),
        given: RefCell::default(),
        waited: Cell::default(),
        unwritable: 0..0,
        discard: Effect::Zeros,
        nvme: None,
        ata: None,
        scsi: None,
    }
}

fn nvme() -> Nvme {
    Nvme {
        sanicap: 3,
        fna: 4,
        namespaces: vec![1],
        sanitize: |action| {
            Some(match action & 7 {
                4 => Effect::Scrambles,
                _ => Effect::Zeros,
            })
        },
        format: Effect::Zeros,
        log: Cell::new((0, 0, 0)),
    }
}

impl Fake {
    fn apply(&self, effect: Effect) {
        let mut media = self.media.borrow_mut();
        match effect {
            Effect::Zeros => media.fill(0),
            Effect::Scrambles => media.iter_mut().enumerate().for_each(|(n, byte)| {
                *byte = byte
                    .wrapping_mul(31)
                    .wrapping_add((n % 251) as u8 ^ (n >> 12) as u8);
            }),
            Effect::Nothing => {}
        }
    }

    fn note(&self, what: String) {
        self.given.borrow_mut().push(what);
    }

    fn given(&self) -> String {
        self.given.borrow().join(" ")
    }

    fn is_zero(&self) -> bool {
        self.media.borrow().iter().all(|byte| *byte == 0)
    }
}

fn answer(status: u8, sense: Vec<u8>, length: usize) -> io::Result<Answer> {
    Ok(Answer {
        status,
        host_status: 0,
        sense,
        length,
    })
}

impl Drive for Fake {
    fn nvme(&self, admin: Admin, data: &mut [u8], _: Duration) -> io::Result<u16> {
        let Some(nvme) = &self.nvme else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        match (admin.opcode, admin.cdw10) {
            (6, 1) => {
                data[256] = 2;
                data[328] = nvme.sanicap;
                data[524] = nvme.fna;
            }
            (6, 0) => data[26] = 1,
            (6, 2) => {
                for (at, id) in nvme.namespaces.iter().enumerate() {
                    data[at * 4..][..4].copy_from_slice(&id.to_le_bytes());
                }
            }
            (2, _) => {
                let (state, command, left) = nvme.log.get();
                data[2..4].copy_from_slice(&if left > 0 { 2 } else { state }.to_le_bytes());
                data[4..8].copy_from_slice(&command.to_le_bytes());
                nvme.log.set((state, command, left.saturating_sub(1)));
            }
            (0x84, 1) => {
                self.note("exit".to_owned());
                nvme.log.set((0, 0, 0));
            }
            (0x84, command) => {
                self.note(format!("sanitize:{}", command & 7));
                match (nvme.sanitize)(command) {
                    Some(effect) => {
                        self.apply(effect);
                        nvme.log.set((1, command, 3));
                    }
                    None => nvme.log.set((3, command, 1)),
                }
            }
            (0x80, word) => {
                self.note(format!("format:{}", word >> 9 & 7));
                assert_eq!(word & 15, 1, "the format it has stays");
                self.apply(nvme.format);
            }
            other => panic!("{other:?}"),
        }
        Ok(0)
    }

    fn namespace(&self) -> io::Result<u32> {
        Ok(1)
    }

    fn scsi(&self, cdb: &[u8], data: Data<'_>, _: Duration) -> io::Result<Answer> {
        if let Some(ata) = &self.ata {
            return ata.borrow_mut().take(self, cdb, data);
        }
        let Some(scsi) = &self.scsi else {
            return answer(2, vec![0x72, 5, 0x20, 0], 0);
        };
        let mut scsi = scsi.borrow_mut();
        match (cdb[0], data) {
            (0xa3, Data::In(bytes)) => {
                bytes[1] = 3;
                answer(0, Vec::new(), bytes.len())
            }
            (0x48, _) if cdb[1] == 0x1f => {
                self.note("exit".to_owned());
                scsi.begun = None;
                answer(0, Vec::new(), 0)
            }
            (0x48, _) => {
                self.note(format!("sanitize:{}", cdb[1] & 31));
                assert_eq!(cdb[1] >> 5, 0b101, "at once, and it may fail");
                scsi.begun = Some(cdb[1] & 31);
                scsi.running = 2;
                if !scsi.fails {
                    self.apply(match cdb[1] & 31 {
                        3 => Effect::Scrambles,
                        _ => Effect::Zeros,
                    });
                }
                answer(0, Vec::new(), 0)
            }
            (0, _) if scsi.running > 0 => {
                scsi.running -= 1;
                let mut sense = vec![0x70, 0, 2, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x04, 0x1b, 0];
                sense.extend([0x80, 0x80, 0]);
                answer(2, sense, 0)
            }
            (0, _) if scsi.fails && scsi.begun.is_some() => answer(2, vec![0x72, 3, 0x31, 3], 0),
            (0, _) => answer(0, Vec::new(), 0),
            other => panic!("{other:?}"),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        out.copy_from_slice(&self.media.borrow()[at..at + out.len()]);
        Ok(())
    }

    fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        let end = at + usize::try_from(length).unwrap();
        if at < self.unwritable.end && self.unwritable.start < end {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.media.borrow_mut()[at..end].fill(0);
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64, secure: bool) -> io::Result<()> {
        self.note(format!("discard:{secure}"));
        if self.discard == Effect::Zeros {
            self.zero(offset, length)?;
        } else {
            // All but one sector somewhere in the middle.
            let kept = self.media.borrow()[5 << 20..][..512].to_vec();
            self.zero(offset, length)?;
            self.media.borrow_mut()[5 << 20..][..512].copy_from_slice(&kept);
        }
        Ok(())
    }

    fn settle(&self) -> io::Result<()> {
        Ok(())
    }

    fn pause(&self, wait: Duration) {
        self.waited.set(self.waited.get() + wait);
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.waited.get().as_millis()).unwrap()
    }
}

impl Ata {
    fn take(&mut self, fake: &Fake, cdb: &[u8], data: Data<'_>) -> io::Result<Answer> {
        let aborted = || answer(2, vec![0x72, 0x0b, 0, 0], 0);
        let ours = |data: &Data<'_>| match data {
            Data::Out(page) => <[u8; 32]>::try_from(&page[2..34]).unwrap(),
            _ => panic!("a password has a page"),
        };
        assert_eq!(cdb[0], 0x85);
        match (cdb[14], data) {
            (0xec, Data::In(page)) => {
                let locked = u16::from(self.password.is_some()) << 1;
                page[256..258].copy_from_slice(&(self.security | locked).to_le_bytes());
                page[118..120].copy_from_slice(&self.sanitizes.to_le_bytes());
                page[178] = 2;
                answer(0, Vec::new(), page.len())
            }
            (0xb4, Data::None) => {
                assert_eq!(cdb[1] & 1, 1, "48-bit registers");
                let lba = [cdb[7], cdb[12], cdb[10], cdb[8]];
                match (cdb[4], &lba) {
                    (0, _) => {}
                    (0x11, b"Cryp") => {
                        fake.note("scramble".to_owned());
                        fake.apply(Effect::Scrambles);
                        self.status = (0x80, 2);
                    }
                    (0x12, b"BkEr") => {
                        fake.note("blocks".to_owned());
                        fake.apply(Effect::Zeros);
                        self.status = (0x80, 2);
                    }
                    other => panic!("{other:?}"),
                }
                let high = match self.status.1 {
                    0 => self.status.0,
                    _ => 0x40,
                };
                self.status.1 = self.status.1.saturating_sub(1);
                let mut sense = vec![0x72, 1, 0, 0x1d, 0, 0, 0, 14, 9, 12, 1, 0];
                sense.extend([high, 0, 0, 0, 0, 0x80, 0, 0, 0, 0x50]);
                answer(2, sense, 0)
            }
            (0xf1, data) => {
                fake.note("set".to_owned());
                self.password = Some(ours(&data));
                answer(0, Vec::new(), 0)
            }
            (command @ (0xf2 | 0xf6), data) => {
                fake.note(if command == 0xf2 { "unlock" } else { "disable" }.to_owned());
                if self.password != Some(ours(&data)) {
                    return aborted();
                }
                if command == 0xf6 {
                    self.password = None;
                }
                answer(0, Vec::new(), 0)
            }
            (0xf3, _) => {
                self.prepared = true;
                answer(0, Vec::new(), 0)
            }
            (0xf4, data) => {
                let enhanced = matches!(&data, Data::Out(page) if page[0] == 2);
                fake.note(format!("erase:{enhanced}"));
                let fits = self.password == Some(ours(&data));
                if !std::mem::take(&mut self.prepared) || !fits || !self.erases {
                    return aborted();
                }
                fake.apply(Effect::Zeros);
                self.password = None;
                answer(0, Vec::new(), 0)
            }
            other => panic!("{other:?}"),
        }
    }
}

fn run(fake: &Fake, way: Way, methods: &[WipeMethod]) -> WipedDisk {
    let disk = Disk {
        size_bytes: SIZE as u64,
        logical_block_bytes: 512,
        ..Disk::default()
    };
    let plan = Plan {
        disk: &disk,
        methods,
        partitions: &[(1 << 20, 6 << 20)],
        discards: way == Way::Block,
        seed: [7; 8],
    };
    let wiped = wipe(fake, way, &plan, &mut |percent, _| assert!(percent <= 101));
    let held = wiped
        .attempts
        .last()
        .is_some_and(|last| last.reason.is_empty());
    assert_eq!(held, wiped.outcome == WipeOutcome::WIPED);
    assert_eq!(wiped.reason.is_empty(), wiped.outcome == WipeOutcome::WIPED);
    wiped
}

/// The methods that were tried, with why each did not hold.
fn tried(wiped: &WipedDisk) -> String {
    let attempts = wiped.attempts.iter().map(|attempt| {
        let method = word(attempt.method);
        match attempt.reason.as_str() {
            "" => method.to_owned(),
            reason => format!("{method}:{reason}"),
        }
    });
    attempts.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_sanitize_is_waited_for_and_proven_by_what_changed_everywhere() {
    let fake = Fake {
        nvme: Some(nvme()),
        ..fake()
    };
    let wiped = run(&fake, Way::Nvme, &[]);
    assert_eq!(tried(&wiped), "nvme-sanitize-crypto");
    assert_eq!(fake.given(), "sanitize:4");
    assert!(fake.waited.get() >= Duration::from_secs(3));
    let log = &wiped.attempts[0].logs[0];
    assert_eq!((log.name.as_str(), log.bytes[2]), ("nvme-sanitize-log", 1));
    assert!(wiped.samples.len() > 50);
    for sample in &wiped.samples {
        assert_eq!(sample.content, SampleContent::OTHER, "{sample:?}");
        assert_eq!(sample.sha256.len(), 32);
    }
}

#[test]
fn a_method_that_reports_success_and_left_data_has_failed_and_the_next_is_tried() {
    let lies = Nvme {
        sanitize: |action| {
            Some(match action & 7 {
                4 => Effect::Nothing,
                _ => Effect::Zeros,
            })
        },
        ..nvme()
    };
    let fake = Fake {
        nvme: Some(lies),
        ..fake()
    };
    let wiped = run(&fake, Way::Nvme, &[]);
    assert_eq!(
        tried(&wiped),
        "nvme-sanitize-crypto:DataLeft nvme-sanitize-block"
    );
    assert!(
        wiped.attempts[0]
            .message
            .contains("still there, at byte 0 (front)")
    );
    assert!(fake.is_zero());
    assert!(
        wiped
            .samples
            .iter()
            .all(|s| s.content == SampleContent::ZEROS && s.sha256.is_empty())
    );
    // `nvme format` without any effect, as it was for years.
    let idle = Nvme {
        sanicap: 0,
        format: Effect::Nothing,
        ..nvme()
    };
    let fake = Fake {
        nvme: Some(idle),
        ..self::fake()
    };
    let wiped = run(&fake, Way::Nvme, &[]);
    assert_eq!(
        tried(&wiped),
        "nvme-format-crypto:DataLeft nvme-format-erase:DataLeft overwrite"
    );
    assert_eq!(fake.given(), "format:2 format:1");
}

#[test]
fn a_sanitize_that_fails_is_left_behind_before_the_next_method() {
    let fails = Nvme {
        sanitize: |_| None,
        ..nvme()
    };
    let fake = Fake {
        nvme: Some(fails),
        ..fake()
    };
    let wiped = run(
        &fake,
        Way::Nvme,
        &[WipeMethod::NVME_SANITIZE_BLOCK, WipeMethod::OVERWRITE],
    );
    assert_eq!(tried(&wiped), "nvme-sanitize-block:DeviceFailed overwrite");
    assert_eq!(fake.given(), "sanitize:2 exit");
}

#[test]
fn a_sanitize_that_runs_already_is_waited_for_and_counts_only_if_it_shows() {
    for (command, effect, wanted) in [
        (2, Effect::Zeros, "nvme-sanitize-block"),
        // Under another key nobody can tell it from what was there.
        (
            4,
            Effect::Scrambles,
            "nvme-sanitize-crypto:NotProven nvme-sanitize-crypto",
        ),
    ] {
        let fake = Fake {
            nvme: Some(nvme()),
            ..fake()
        };
        fake.apply(effect);
        fake.nvme.as_ref().unwrap().log.set((1, command, 20));
        let wiped = run(&fake, Way::Nvme, &[]);
        assert_eq!(tried(&wiped), wanted);
        assert!(wiped.attempts[0].found_running);
        assert!(fake.waited.get() >= Duration::from_secs(20));
    }
}

#[test]
fn other_namespaces_behind_a_controller_are_left_alone() {
    let shared = Nvme {
        namespaces: vec![1, 2],
        ..nvme()
    };
    let fake = Fake {
        nvme: Some(shared),
        ..fake()
    };
    assert_eq!(tried(&run(&fake, Way::Nvme, &[])), "nvme-format-crypto");
    assert_eq!(fake.given(), "format:2");
    let all_at_once = Nvme {
        namespaces: vec![1, 2],
        fna: 7,
        ..nvme()
    };
    let fake = Fake {
        nvme: Some(all_at_once),
        ..self::fake()
    };
    assert_eq!(tried(&run(&fake, Way::Nvme, &[])), "overwrite");
    assert_eq!(fake.given(), "");
}

#[test]
fn a_discard_is_read_back_whole() {
    let honest = fake();
    let wiped = run(&honest, Way::Block, &[]);
    assert_eq!(tried(&wiped), "discard");
    assert_eq!(wiped.attempts[0].bytes_verified, SIZE as u64);
    let hints = Fake {
        discard: Effect::Nothing,
        ..fake()
    };
    let wiped = run(&hints, Way::Block, &[]);
    assert_eq!(tried(&wiped), "discard:DataLeft overwrite");
    assert!(
        wiped.attempts[0].message.contains("at byte 5242880"),
        "{}",
        wiped.attempts[0].message
    );
    assert_eq!(wiped.attempts[1].bytes_written, SIZE as u64);
    assert!(hints.is_zero());
}

#[test]
fn what_cannot_be_written_is_said_and_the_rest_is_overwritten_all_the_same() {
    let broken = Fake {
        unwritable: (3 << 20)..(3 << 20) + 512,
        ..fake()
    };
    let wiped = run(&broken, Way::Block, &[WipeMethod::OVERWRITE]);
    assert_eq!(tried(&wiped), "overwrite:WriteFailed");
    assert_eq!(wiped.outcome, WipeOutcome::FAILED);
    assert!(
        wiped
            .message
            .contains("1 MiB could not be written, the first at byte 3145728"),
        "{}",
        wiped.message
    );
    assert_eq!(wiped.attempts[0].bytes_written, (SIZE - (1 << 20)) as u64);
    let media = broken.media.borrow();
    assert!(media[4 << 20..].iter().all(|byte| *byte == 0));
}

#[test]
fn an_order_may_allow_what_a_disk_does_not_have() {
    let wiped = run(&fake(), Way::Block, &[WipeMethod::NVME_SANITIZE_CRYPTO]);
    assert_eq!(
        (wiped.reason.as_str(), wiped.attempts.len()),
        ("NoMethod", 0)
    );
}

fn ata(change: impl FnOnce(&mut Ata)) -> Fake {
    let mut ata = Ata {
        security: 1,
        erases: true,
        ..Ata::default()
    };
    change(&mut ata);
    Fake {
        ata: Some(RefCell::new(ata)),
        ..fake()
    }
}

fn password(fake: &Fake) -> Option<[u8; 32]> {
    fake.ata.as_ref().unwrap().borrow().password
}

#[test]
fn a_security_erase_leaves_no_password() {
    let fake = ata(|_| ());
    let wiped = run(&fake, Way::Ata, &[]);
    assert_eq!(tried(&wiped), "ata-security-erase");
    assert_eq!(
        (fake.given().as_str(), password(&fake)),
        ("set erase:false", None)
    );
    assert_eq!(wiped.attempts[0].logs[0].bytes, [1, 0]);
    // The better one first.
    let fake = ata(|ata| ata.security |= 1 << 5);
    let wiped = run(&fake, Way::Ata, &[]);
    assert_eq!(tried(&wiped), "ata-security-erase-enhanced");
    assert_eq!(fake.given(), "set erase:true");
}

#[test]
fn a_frozen_or_foreign_disk_says_so_and_is_overwritten() {
    let frozen = ata(|ata| ata.security |= 1 << 3);
    let wiped = run(&frozen, Way::Ata, &[]);
    assert_eq!(tried(&wiped), "ata-security-erase:DeviceFrozen overwrite");
    assert_eq!(frozen.given(), "", "nothing is asked of it");
    let foreign = ata(|ata| ata.password = Some([9; 32]));
    let wiped = run(&foreign, Way::Ata, &[]);
    assert_eq!(tried(&wiped), "ata-security-erase:DeviceLocked overwrite");
    assert_eq!(password(&foreign), Some([9; 32]));
    assert!(!foreign.given().contains("set"));
}

#[test]
fn a_disk_that_a_cut_off_erasure_left_locked_is_opened_again() {
    let known = ata(|_| ());
    run(&known, Way::Ata, &[]);
    // Set, and then the power went.
    let fake = ata(|ata| {
        let mut ours = [0; 32];
        ours[..19].copy_from_slice(b"bcd wipes this disk");
        ata.password = Some(ours);
    });
    let wiped = run(&fake, Way::Ata, &[]);
    assert_eq!(tried(&wiped), "ata-security-erase");
    assert_eq!(fake.given(), "unlock disable set erase:false");
    assert_eq!(password(&fake), None);
}

#[test]
fn a_disk_whose_erasure_fails_is_not_left_locked() {
    let fake = ata(|ata| ata.erases = false);
    let wiped = run(&fake, Way::Ata, &[]);
    assert_eq!(tried(&wiped), "ata-security-erase:DeviceRefused overwrite");
    assert_eq!(fake.given(), "set erase:false unlock disable");
    assert_eq!(password(&fake), None);
}

#[test]
fn an_ata_sanitize_is_told_by_its_registers() {
    let fake = ata(|ata| ata.sanitizes = 1 << 12 | 1 << 13 | 1 << 15);
    let wiped = run(&fake, Way::Ata, &[]);
    assert_eq!(tried(&wiped), "ata-sanitize-crypto");
    assert_eq!(fake.given(), "scramble");
    let frozen = ata(|ata| {
        ata.sanitizes = 1 << 12 | 1 << 15;
        ata.status = (0x20, 0);
    });
    let wiped = run(&frozen, Way::Ata, &[]);
    assert_eq!(
        tried(&wiped),
        "ata-sanitize-block:DeviceFrozen ata-security-erase"
    );
    let running = ata(|ata| {
        ata.sanitizes = 1 << 12 | 1 << 15;
        ata.status = (0x80, 5);
    });
    running.apply(Effect::Zeros);
    let wiped = run(&running, Way::Ata, &[]);
    assert_eq!(tried(&wiped), "ata-sanitize-block");
    assert!(wiped.attempts[0].found_running && running.given().is_empty());
}

#[test]
fn a_scsi_sanitize_is_told_by_sense_data() {
    let scsi = |running, fails| Fake {
        scsi: Some(RefCell::new(Scsi {
            running,
            fails,
            begun: None,
        })),
        ..fake()
    };
    let fake = scsi(0, false);
    assert_eq!(tried(&run(&fake, Way::Scsi, &[])), "scsi-sanitize-crypto");
    assert_eq!(fake.given(), "sanitize:3");
    let failing = scsi(0, true);
    let wiped = run(&failing, Way::Scsi, &[]);
    assert_eq!(
        tried(&wiped),
        "scsi-sanitize-crypto:DeviceFailed scsi-sanitize-block:DeviceFailed overwrite"
    );
    assert_eq!(failing.given(), "sanitize:3 exit sanitize:2 exit");
    let running = scsi(4, false);
    running.apply(Effect::Zeros);
    let wiped = run(&running, Way::Scsi, &[]);
    assert_eq!(tried(&wiped), "scsi-sanitize-block");
    assert!(wiped.attempts[0].found_running);
    // A disk that knows none of it.
    assert_eq!(tried(&run(&self::fake(), Way::Scsi, &[])), "overwrite");
}

#[test]
fn logs_of_any_bytes_are_read() {
    for bytes in [
        &[][..],
        &[0xff; 3],
        &[0xff; 4096],
        &[0x72, 1, 0, 0, 0, 0, 0, 255, 9, 200],
    ] {
        nvme::status(bytes);
        nvme::abilities(bytes);
        nvme::format_word(bytes, 2);
        ata::state(bytes);
        ata::security(bytes);
        scsi::state(2, bytes);
        scsi::is_supported(bytes);
    }
    let mut log = [0; 512];
    log[..4].copy_from_slice(&[0, 0x80, 2, 0]);
    log[12..16].copy_from_slice(&600_u32.to_le_bytes());
    log[16..20].fill(0xff);
    let status = nvme::status(&log);
    assert_eq!(status.state, nvme::State::Running(0x8000));
    assert_eq!(status.estimates, [None, Some(600), None]);
    // What a namespace of 4096-byte blocks with metadata at their ends and protection of type 1 is formatted as.
    let mut namespace = [0; 4096];
    (namespace[26], namespace[29]) = (0x13, 0x09);
    assert_eq!(
        nvme::format_word(&namespace, 1),
        1 << 9 | 1 << 8 | 1 << 5 | 1 << 4 | 3
    );
    let mut identify = [0; 512];
    identify[178..180].copy_from_slice(&[30, 0]);
    identify[180..182].copy_from_slice(&[0x10, 0x80]);
    let estimates = ata::security(&identify).estimates;
    assert_eq!(estimates, [Some(3600), Some(1920)]);
}

#[test]
fn methods_have_names_that_are_read_back() {
    for n in 1..=14 {
        let method = WipeMethod(n);
        assert!(method.name().is_some());
        assert_eq!(named(word(method)), Some(method));
    }
    assert_eq!(
        (word(WipeMethod(15)), word(WipeMethod(0))),
        ("unknown", "unknown")
    );
    assert_eq!(named("unknown"), None);
}
