use std::process::ExitCode;

fn main() -> ExitCode {
    bcd::cli::run(std::env::args_os())
}
