#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| bcd_fuzz::disk_ids::run(data));
