//! `better-compute machines boot`: a ramdisk's work is done, and the machine starts its system.

use std::process::ExitCode;

use bcd::cli::Failure;
use bcd::cli::flags::{Args, Command, Flag};
use bcd::config::mac::Mac;

use super::client::{Client, DIR, JSON};
use super::machines;
use crate::ids;
use crate::json::{Json, Object};

pub(super) const COMMAND: Command = Command::new(
    "boot",
    "have a machine that is in its ramdisk start the system on its disk, or go off",
    &[
        Flag::switch(
            "kexec",
            "Start the kernel of the disk's own loader, without the firmware (default)",
        ),
        Flag::switch("reboot", "Restart: the firmware starts what it starts"),
        Flag::switch("poweroff", "Switch it off"),
        Flag::value(
            "disk",
            "NAME",
            "The disk that is started from (default: the one deployed to in this boot)",
        ),
        Flag::value(
            "append",
            "TEXT",
            "Behind the command line of the disk's loader",
        ),
        Flag::switch(
            "no-fallback",
            "Stay up when kexec is not possible; without, the machine is restarted then",
        ),
        Flag::value(
            "deadline",
            "SPAN",
            "When it must have started, 1s to 1d from now (default 10m)",
        ),
        Flag::switch("wait", "Wait until the machine goes; exit 1 if it stays"),
        DIR,
        JSON,
    ],
    run,
)
.details(
    "Makes a one-time order. The kernel, the initial ramdisks and the command line are those of the default entry of GRUB, systemd-boot or\n\
     extlinux on the disk; root= is pinned to the disk by PARTUUID. What cannot be read or started so is restarted\n\
     instead, and the result says why. The machine goes once the control plane has all it told, receipts included.\n\
     What it started from is shown by machines show, once its system has joined.",
)
.positionals(&["MAC|NODE"]);

fn run(args: &Args) -> Result<ExitCode, Failure> {
    let modes = ["kexec", "reboot", "poweroff"];
    let mut given = modes.into_iter().filter(|mode| args.has(mode));
    let mode = given.next().unwrap_or("kexec");
    if given.next().is_some() {
        return Err(Failure::refused(
            "--kexec, --reboot and --poweroff are three ways: give one",
        ));
    }
    let client = Client::new(args)?;
    let mac = machine(&client, args.positional(0))?;
    let asked = Object::new()
        .with("mode", mode)
        .with_some("disk", args.value("disk"))
        .with_some("append", args.value("append"))
        .with_some("noFallback", args.has("no-fallback").then_some(true));
    machines::order(args, &client, &format!("machines/{mac}/boot"), asked)
}

/// The MAC of a machine, which is named by it or by the node of its last boot.
fn machine(client: &Client, name: &str) -> Result<String, Failure> {
    if let Some(mac) = Mac::parse(name) {
        return Ok(mac.to_string());
    }
    if !ids::is_ulid_of("node", name) {
        return Err(Failure::refused(
            "a machine is named by a MAC, such as 52:54:00:12:34:56, or by the node of its last boot",
        ));
    }
    let machines = client.json("GET", "machines", None)?;
    let machines = machines
        .get("machines")
        .map(Json::items)
        .unwrap_or_default();
    let mut of = machines.iter().filter(|machine| {
        machine
            .get("node")
            .is_some_and(|node| node.text("id") == name)
    });
    match of.next() {
        Some(machine) => Ok(machine.text("mac").to_owned()),
        None => Err(Failure::failed(format!(
            "no machine's last boot is {name}: better-compute machines list"
        ))),
    }
}
