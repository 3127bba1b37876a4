#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| bcd_fuzz::provisioned::run(data));
