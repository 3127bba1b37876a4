//! Every fuzz target over its seeds and over fixed mutations of them: seconds, no libFuzzer. Beside
//! the target's own promises, each input is held to a bound of memory and of time.
//!
//! `FUZZ_RUNS=100000 cargo test … --test fuzz json` runs more of them; `FUZZ_TRACE=1` names each input
//! before it runs, which tells the one that ends the process.
#![allow(unsafe_code)]
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

// The harness uses all of it, the targets parts.
#[path = "../src/lib.rs"]
#[allow(dead_code)]
#[macro_use]
mod fuzz;

use fuzz::mutate::{Numbers, mutate};
use fuzz::{TARGETS, Target};

/// Inputs a target, unless `FUZZ_RUNS` says otherwise.
const RUNS: usize = 2000;
/// The longest input: longer ones are libFuzzer's business.
const LONGEST: usize = 8 << 10;
/// Processor time an input may take, in a build that is not optimised.
const TIME: Duration = Duration::from_secs(2);

/// Counts what a thread has allocated.
struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // A thread that is ending counts no more.
    let _ = NOW.try_with(|now| {
        now.set(now.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

// SAFETY: every call is the system allocator's, with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn seeds(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/seeds")
        .join(name);
    let files = std::fs::read_dir(&folder);
    let files = files.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut seeds: Vec<_> = files
        .map(|file| {
            let file = file.expect("a seed");
            let bytes = std::fs::read(file.path()).expect("a seed");
            (file.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "{} has no seed", folder.display());
    seeds
}

fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// One input, held to everything.
fn run(target: &Target, what: &str, input: &[u8]) {
    if std::env::var_os("FUZZ_TRACE").is_some() {
        eprintln!("{}: {what}: {}", target.name, input.escape_ascii());
    }
    let (before, began) = (NOW.get(), thread_time());
    PEAK.set(before);
    let ended = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let (heap, took) = (PEAK.get() - before, thread_time() - began);
    let bound = target.heap.base + target.heap.per_byte * input.len();
    assert!(
        ended.is_ok() && heap <= bound as isize && took <= TIME,
        "{} on {what}, {} bytes: {}; {heap} bytes of heap, at most {bound}; {took:?}. Keep it in fuzz/seeds/{0}:\n{}",
        target.name,
        input.len(),
        if ended.is_ok() {
            "it came back"
        } else {
            "a promise is broken, see above"
        },
        input.escape_ascii(),
    );
}

fn brief(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.expect("fuzz/src/lib.rs lists it");
    let runs = std::env::var("FUZZ_RUNS").ok();
    let runs = runs.map_or(RUNS, |runs| runs.parse().expect("FUZZ_RUNS is a number"));
    let seeds = seeds(name);
    // What is made once is not an input's cost.
    (target.run)(&seeds[0].1);
    run(target, "nothing", b"");
    for (file, bytes) in &seeds {
        run(target, file, bytes);
        assert!(bytes.len() <= LONGEST, "{file} is no small seed");
    }
    let mut numbers = Numbers::new(0x9e37_79b9_7f4a_7c15);
    for nth in 0..runs {
        let (file, bytes) = &seeds[nth % seeds.len()];
        let other = &seeds[numbers.below(seeds.len())].1;
        let input = mutate(bytes, other, &mut numbers);
        run(target, &format!("mutation {nth} of {file}"), &input);
    }
}

macro_rules! brief {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            brief(stringify!($name));
        })*
    };
}

every_target!(brief);

fn names(listed: impl IntoIterator<Item = impl Into<String>>) -> BTreeSet<String> {
    listed.into_iter().map(Into::into).collect()
}

#[test]
fn every_target_is_run_here_and_by_libfuzzer() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let targets = names(TARGETS.iter().map(|target| target.name));
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("fuzz/Cargo.toml");
    let binaries = manifest.split("[[bin]]").skip(1).map(|part| {
        let name = part.split('"').nth(1).unwrap_or_default();
        assert!(part.contains(&format!("fuzz_targets/{name}.rs")), "{part}");
        let file = std::fs::read_to_string(root.join(format!("fuzz_targets/{name}.rs")));
        assert!(file.is_ok_and(|text| text.contains(&format!("bcd_fuzz::{name}::run(data)"))));
        name
    });
    assert_eq!(names(binaries), targets, "fuzz/Cargo.toml");
    for folder in ["seeds", "fuzz_targets"] {
        let files = std::fs::read_dir(root.join(folder)).expect("a folder");
        let files = files.map(|file| file.expect("a file").path());
        let files = files.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
        assert_eq!(names(files), targets, "fuzz/{folder}");
    }
}

/// The contract's files and the target `proto` name the same messages.
#[test]
fn every_message_of_the_contract_is_fuzzed() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("proto-gen/proto/bettercompute/v1");
    let mut messages = BTreeSet::new();
    for file in std::fs::read_dir(root).expect("the contract") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("a file");
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("message ") {
                messages.insert(rest.split(' ').next().unwrap_or_default().to_owned());
            }
        }
    }
    assert_eq!(
        names(fuzz::proto::MESSAGES.iter().map(|(name, _)| *name)),
        messages
    );
}
