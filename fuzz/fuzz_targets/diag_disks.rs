#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| bcd_fuzz::diag_disks::run(data));
