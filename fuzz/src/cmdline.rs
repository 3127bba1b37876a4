//! The kernel command line: any bytes split, within bounds; no secret shows in what is said of a doubled one.
use bcd::config::cmdline::CommandLine;

pub const HEAP: super::Heap = super::Heap {
    base: 32 << 10,
    per_byte: 256,
};

pub fn run(data: &[u8]) {
    let line = CommandLine::parse(data);
    for parameter in line.parameters() {
        let name = &parameter.name;
        assert!(parameter.value.is_none() || line.values(name).next().is_some());
        if let Err(doubled) = line.one(name) {
            assert!(line.values(name).count() > 1);
            let said = doubled.to_string();
            let secret = name == "bc.token" && line.values(name).any(|value| value.len() > 12);
            assert!(
                !secret
                    || line
                        .values(name)
                        .all(|value| value.len() <= 12 || !said.contains(value))
            );
        }
    }
    if let Some(cut) = line.cut() {
        assert!(cut.length <= data.len());
    }
    let _ = init::options::Options::new(&line);
}
