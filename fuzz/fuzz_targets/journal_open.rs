#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| bcd_fuzz::journal_open::run(data));
