//! PID 1 of the ramdisk; also `init modules` and `init network`, its children, and `/sbin/modprobe`, which the kernel
//! runs.
use std::process::ExitCode;

use init::{loader, network, say, supervise};

fn main() -> ExitCode {
    // The kernel hands PID 1 the words it does not know itself: none of them is an order.
    if std::process::id() == 1 {
        supervise::run();
    }
    let mut arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let own = arguments.next().unwrap_or_default();
    let result = if own.rsplit('/').next() == Some("modprobe") {
        loader::modprobe(arguments)
    } else {
        match arguments.next().as_deref() {
            Some("modules") => loader::run(),
            Some("network") => network::run(),
            _ => {
                say(
                    "init is the first program of a ramdisk: it takes modules or network otherwise",
                );
                return ExitCode::from(2);
            }
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error);
            ExitCode::from(1)
        }
    }
}
