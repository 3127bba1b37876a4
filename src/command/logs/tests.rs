#![allow(clippy::unwrap_used, clippy::panic)]
use super::super::id::Id;
use super::super::outputs::Outputs;
use super::*;

fn read(source: LogsCollectParamsSource, max_bytes: u64) -> Result<Collect, String> {
    let params = LogsCollectParams {
        source: Some(source),
        max_bytes,
    };
    Collect::read(&params.encode_to_vec())
}

fn journalctl(source: JournalctlSource) -> Result<Vec<String>, String> {
    match read(LogsCollectParamsSource::Journalctl(source), 0)?.source {
        Source::Journalctl(arguments) => Ok(arguments),
        Source::File(path) => panic!("{path}"),
    }
}

fn path(path: &str) -> Result<String, String> {
    let source = FileSource {
        path: path.to_owned(),
    };
    match read(LogsCollectParamsSource::File(source), 0)?.source {
        Source::File(path) => Ok(path),
        Source::Journalctl(arguments) => panic!("{arguments:?}"),
    }
}

#[test]
fn journalctl_is_run_with_arguments_of_fixed_form() {
    let all = JournalctlSource {
        unit: "ssh@1-2.service".to_owned(),
        since_ms: 1_790_000_000_005,
        until_ms: 1_790_000_001_000,
        boot: Some(-1),
        kernel: true,
    };
    assert_eq!(
        journalctl(all).unwrap(),
        [
            "--no-pager",
            "--quiet",
            "--output=short-iso-precise",
            "--unit=ssh@1-2.service",
            "--since=@1790000000.005",
            "--until=@1790000001.000",
            "--boot=-1",
            "--dmesg",
        ]
    );
    assert_eq!(journalctl(JournalctlSource::default()).unwrap().len(), 3);
}

#[test]
fn a_unit_cannot_be_an_option_a_pattern_or_a_path() {
    for unit in [
        "a b",
        "a;b",
        "*",
        "a?",
        "../x",
        "a\nb",
        "a=b",
        "$(x)",
        "ä",
        &"u".repeat(256),
    ] {
        let source = JournalctlSource {
            unit: unit.to_owned(),
            ..Default::default()
        };
        assert!(journalctl(source).is_err(), "{unit}");
    }
    // It stands behind "--unit=", whatever it begins with.
    let dashed = JournalctlSource {
        unit: "--vacuum-time".to_owned(),
        ..Default::default()
    };
    assert_eq!(
        journalctl(dashed).unwrap().last().unwrap(),
        "--unit=--vacuum-time"
    );
}

#[test]
fn params_without_sense_are_refused_in_words() {
    let of = |source| journalctl(source).unwrap_err();
    let base = JournalctlSource::default;
    assert!(
        of(JournalctlSource {
            since_ms: -1,
            ..base()
        })
        .contains("since_ms")
    );
    assert!(
        of(JournalctlSource {
            until_ms: i64::MIN,
            ..base()
        })
        .contains("until_ms")
    );
    assert!(
        of(JournalctlSource {
            since_ms: 2,
            until_ms: 1,
            ..base()
        })
        .contains("before since")
    );
    assert!(
        of(JournalctlSource {
            boot: Some(1),
            ..base()
        })
        .contains("boot is 1")
    );
    assert!(
        of(JournalctlSource {
            boot: Some(-1001),
            ..base()
        })
        .contains("boot")
    );
    assert!(Collect::read(&[]).unwrap_err().contains("no source"));
    assert!(Collect::read(&[0x0a, 0xff]).is_err());
    let source = || {
        LogsCollectParamsSource::File(FileSource {
            path: "x".to_owned(),
        })
    };
    assert!(read(source(), MAX).is_ok());
    assert!(read(source(), MAX + 1).unwrap_err().contains("max_bytes"));
    assert_eq!(read(source(), 0).unwrap().max, DEFAULT);
}

#[test]
fn a_path_is_relative_to_the_logs_directory_or_beneath_it() {
    assert_eq!(path("nginx/error.log").unwrap(), "nginx/error.log");
    assert_eq!(path("/var/log/syslog").unwrap(), "syslog");
    for bad in [
        "",
        "/var/log/",
        "/etc/shadow",
        "/var/logs/x",
        "a\0b",
        &"x".repeat(1025),
    ] {
        assert!(path(bad).is_err(), "{bad}");
    }
}

mod files {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::time::Instant;

    use super::super::super::work::Progress;
    use super::*;
    use crate::journal::{Journal, Limits};
    use crate::rt::channel;
    use crate::sys::fs::tests::scratch;
    use crate::sys::stop::Stop;

    const MAX: u64 = 100;

    struct Lab {
        data_dir: PathBuf,
        logs: PathBuf,
        context: Context,
        frames: channel::Receiver<crate::proto::NodeFrame>,
    }

    fn lab() -> Lab {
        let data_dir = scratch("collect");
        let logs = data_dir.join("log");
        std::fs::create_dir(&logs).unwrap();
        let limits = Limits {
            max_bytes: 1 << 20,
            max_events: 100,
        };
        let (journal, _) = Journal::open(&Dir::open(&data_dir).unwrap(), "node_1", limits).unwrap();
        let id = Id::parse("cmd_01kb7w3x9qn5v8m2r6t4y0sdfh").unwrap();
        let (sender, frames) = channel::channel(4);
        let context = Context {
            id,
            stop: Stop::new().unwrap(),
            limit: Duration::from_secs(20),
            orders: crate::command::Orders::new(sender.clone()),
            order: None,
            parting: crate::command::parting::Parting::default(),
            progress: Progress::new(id, sender),
            node_id: "node_1".into(),
            image_cache: None,
            site: None,
            signer: crate::deploy::receipt::signer().0,
            begun: (0, Duration::ZERO),
            outputs: Outputs::of(&data_dir).into(),
            boot_id: String::new(),
            #[cfg(feature = "fakehw")]
            data_dir: data_dir.clone(),
            facts: crate::facts::report::Reporter::new(journal.clone(), &[]),
            helper: None,
            journal,
            running_event: 0,
        };
        Lab {
            data_dir,
            logs,
            context,
            frames,
        }
    }

    impl Lab {
        fn collect(&mut self, name: &str) -> Result<(Vec<u8>, bool), Failure> {
            let id = self.context.id;
            let outputs = self.context.outputs.clone();
            let mut spool = outputs.begin(id, MAX)?;
            let cut = file(&self.logs, name, MAX, &mut spool, &mut self.context)?;
            let stored = spool.finish(cut)?;
            let chunk = outputs.chunk(id, 0, 1000).unwrap().unwrap();
            assert_eq!(stored.size, chunk.data.len() as u64);
            Ok((chunk.data, stored.cut))
        }

        fn fails(&mut self, name: &str) -> Failure {
            let before = Instant::now();
            let failure = self.collect(name).unwrap_err();
            assert!(before.elapsed() < Duration::from_secs(5), "{name} hung");
            failure
        }
    }

    #[test]
    fn the_newest_lines_of_a_file_are_kept() {
        let mut lab = lab();
        std::fs::write(lab.logs.join("small"), "one\ntwo\n").unwrap();
        assert_eq!(
            lab.collect("small").unwrap(),
            (b"one\ntwo\n".to_vec(), false)
        );
        let text: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        std::fs::write(lab.logs.join("large"), &text).unwrap();
        let (kept, cut) = lab.collect("large").unwrap();
        assert!(cut && kept.starts_with(b"line 98") && text.as_bytes().ends_with(&kept));
        std::fs::write(lab.logs.join("empty"), "").unwrap();
        assert_eq!(lab.collect("empty").unwrap(), (vec![], false));
        assert!(lab.frames.try_recv().is_some(), "progress was said");
        symlink("large", lab.logs.join("current")).unwrap();
        assert!(lab.collect("current").is_ok());
    }

    #[test]
    fn nothing_but_a_regular_file_of_that_directory_is_read() {
        let mut lab = lab();
        std::fs::write(lab.data_dir.join("secret"), "s").unwrap();
        symlink("../secret", lab.logs.join("out")).unwrap();
        symlink("/etc/passwd", lab.logs.join("absolute")).unwrap();
        symlink("loop", lab.logs.join("loop")).unwrap();
        std::fs::create_dir(lab.logs.join("dir")).unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            lab.logs.join("fifo"),
            rustix::fs::Mode::RUSR,
        )
        .unwrap();
        for name in [
            "out",
            "absolute",
            "dir",
            "fifo",
            "..",
            "../secret",
            "dir/../../secret",
        ] {
            let failure = lab.fails(name);
            assert_eq!(
                failure.reason, "InvalidParams",
                "{name}: {}",
                failure.message
            );
        }
        assert_eq!(lab.fails("loop").reason, "CollectFailed");
        let missing = lab.fails("no-such");
        assert_eq!(missing.reason, "NotFound");
        assert!(missing.message.contains("no-such"), "{}", missing.message);
    }

    #[test]
    fn one_that_is_told_to_stop_stops() {
        let mut lab = lab();
        std::fs::write(lab.logs.join("log"), "x").unwrap();
        lab.context.stop.say();
        assert!(lab.collect("log").is_err());
    }
}
