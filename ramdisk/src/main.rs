//! `ramdisk`: builds an initramfs image, or lists what is in one.
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, dispatch, print};
use ramdisk::compress::{Zstd, unzstd};
use ramdisk::cpio::{self, Reader};
use ramdisk::problem::Problem;
use ramdisk::sysroot::Sysroot;
use ramdisk::tree::{self, Node, Tree};
use ramdisk::{kernel, tools};

static RAMDISK: Command = Command::group(
    "ramdisk",
    "build the image that a bare machine boots",
    &[
        Command::new(
            "build",
            "build an image from bcd, init, a kernel's modules and tools",
            &[
                Flag::value("bcd", "PATH", "The static bcd"),
                Flag::value("init", "PATH", "The static init"),
                Flag::value(
                    "modules",
                    "DIR",
                    "The kernel's lib/modules/VERSION, after depmod",
                ),
                Flag::value(
                    "list",
                    "NAME",
                    "minimal (default), full, or the path of a list",
                ),
                Flag::value(
                    "tools",
                    "NAMES",
                    "Programs to take along with their libraries, comma-separated",
                ),
                Flag::value(
                    "root",
                    "DIR",
                    "Where programs and libraries are taken from (default /)",
                ),
                Flag::value(
                    "files",
                    "SOURCE=PATH,...",
                    "Further files, and where they go in the image",
                ),
                Flag::value(
                    "links",
                    "PATH=TARGET,...",
                    "Symbolic links, and what they say",
                ),
                Flag::value(
                    "microcode",
                    "PATH",
                    "An uncompressed cpio archive to put in front",
                ),
                Flag::value("level", "N", "zstd's level, 1 to 19 (default 19)"),
                Flag::value("output", "PATH", "The image to write"),
            ],
            build,
        )
        .details("The image appears under its name only once it is whole."),
        Command::new("list", "list what is in an image", &[], list).positionals(&["IMAGE"]),
    ],
);

fn main() -> ExitCode {
    dispatch(&RAMDISK, std::env::args_os())
}

fn build(args: &Args) -> Result<ExitCode, Failure> {
    let needed = |name: &str| {
        args.value(name)
            .ok_or_else(|| Failure::refused(format!("--{name} is missing")))
    };
    let output = PathBuf::from(needed("output")?);
    let level = args
        .value("level")
        .map_or(Ok(19), |text| match text.parse::<u8>() {
            Ok(level @ 1..=19) => Ok(level),
            _ => Err(Failure::refused("--level is not a number from 1 to 19")),
        })?;

    let mut tree = Tree::new();
    tree.put("init", Node::File(needed("init")?.into(), 0o755))?;
    tree.put("usr/bin/bcd", Node::File(needed("bcd")?.into(), 0o755))?;
    // The kernel asks this program for modules that it misses; init answers under that name too.
    tree.put("usr/sbin/modprobe", Node::Symlink("/init".to_owned()))?;
    if let Some(directory) = args.value("modules") {
        let list = match args.value("list").unwrap_or("minimal") {
            "minimal" => kernel::MINIMAL.to_owned(),
            "full" => kernel::FULL.to_owned(),
            path => String::from_utf8(tree::read(Path::new(path), 1 << 20)?)
                .map_err(|error| Problem::with("use", Path::new(path), error))?,
        };
        let taken = kernel::add(&mut tree, Path::new(directory), &list)?;
        print(&format!("{} modules of {}\n", taken.modules, taken.version))?;
    }
    let names: Vec<&str> = words(args.value("tools")).collect();
    let sysroot = Sysroot::new(args.value("root").unwrap_or("/"));
    tools::add(&mut tree, &sysroot, &names)?;
    for pair in words(args.value("files")) {
        let (source, path) = pair
            .split_once('=')
            .ok_or_else(|| Failure::refused("--files takes SOURCE=PATH, comma-separated"))?;
        let executable = fs::metadata(source)
            .map(|metadata| {
                std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o111 != 0
            })
            .map_err(|error| Problem::with("read", Path::new(source), error))?;
        let mode = if executable { 0o755 } else { 0o644 };
        tree.put(path, Node::File(source.into(), mode))?;
    }

    for pair in words(args.value("links")) {
        let (path, target) = pair
            .split_once('=')
            .ok_or_else(|| Failure::refused("--links takes PATH=TARGET, comma-separated"))?;
        tree.put(path, Node::Symlink(target.to_owned()))?;
    }

    let new = beside(&output);
    let result = write(&tree, args.value("microcode"), level, &new).and_then(|()| {
        fs::rename(&new, &output).map_err(|error| Problem::with("write", &output, error))
    });
    if let Err(error) = result {
        let _ = fs::remove_file(&new);
        return Err(error.into());
    }
    let size = fs::metadata(&output)
        .map(|metadata| metadata.len())
        .unwrap_or(0);
    print(&format!("{} {size} bytes\n", output.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn write(tree: &Tree, microcode: Option<&str>, level: u8, path: &Path) -> Result<(), Problem> {
    let failed = |error: io::Error| Problem::with("write", path, error);
    let mut file = File::create(path).map_err(failed)?;
    if let Some(front) = microcode {
        let front = Path::new(front);
        let content = tree::read(front, 64 << 20)?;
        let whole =
            whole_archive(&content).map_err(|error| Problem::with("put in front", front, error))?;
        // The kernel looks for microcode before it can unpack anything: plain, and aligned behind.
        let padding = vec![0; whole.len().next_multiple_of(512) - whole.len()];
        io::Write::write_all(&mut file, whole).map_err(failed)?;
        io::Write::write_all(&mut file, &padding).map_err(failed)?;
    }
    let mut zstd = Zstd::start(level, file.try_clone().map_err(failed)?)?;
    tree.write(&mut zstd)?;
    zstd.finish()?;
    file.sync_all().map_err(failed)
}

/// The part of `content` that is one archive, with its trailer.
fn whole_archive(content: &[u8]) -> Result<&[u8], cpio::CpioError> {
    let mut reader = Reader::new(content);
    while reader.next_entry()?.is_some() {}
    let end = usize::try_from(reader.position).unwrap_or(content.len());
    Ok(content.get(..end).unwrap_or(content))
}

fn words(list: Option<&str>) -> impl Iterator<Item = &str> {
    list.unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

/// `NAME.new` beside the file.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(".new");
    name.into()
}

fn list(args: &Args) -> Result<ExitCode, Failure> {
    let path = Path::new(args.positional(0));
    let failed = |error: io::Error| Problem::with("read", path, error);
    let mut file = File::open(path).map_err(failed)?;
    let mut position = 0;
    // One archive after another, as the kernel reads them, until one is compressed or the file ends.
    loop {
        let mut start = [0; 4];
        file.seek(SeekFrom::Start(position)).map_err(failed)?;
        match file.read(&mut start).map_err(failed)? {
            0 => return Ok(ExitCode::SUCCESS),
            _ if start == [0; 4] => position += 4,
            _ if start == [0x28, 0xb5, 0x2f, 0xfd] => break,
            _ => {
                file.seek(SeekFrom::Start(position)).map_err(failed)?;
                let length = show(io::BufReader::new(&mut file))
                    .map_err(|error| Problem::with("read", path, error))??;
                position = (position + length).next_multiple_of(4);
            }
        }
    }
    file.seek(SeekFrom::Start(position)).map_err(failed)?;
    let (mut child, output) = unzstd(file)?;
    let shown = show(io::BufReader::new(output));
    let _ = child.wait();
    shown.map_err(|error| Problem::with("read", path, error))??;
    Ok(ExitCode::SUCCESS)
}

/// Prints the entries of one archive, and gives its length.
fn show(from: impl Read) -> Result<Result<u64, Failure>, cpio::CpioError> {
    let mut reader = Reader::new(from);
    while let Some(entry) = reader.next_entry()? {
        let name = String::from_utf8_lossy(&entry.name);
        let name = bcd::cli::one_line(&name);
        if let Err(failure) = print(&format!("{:06o} {:>10} {name}\n", entry.mode, entry.size)) {
            return Ok(Err(failure));
        }
    }
    Ok(Ok(reader.position))
}
