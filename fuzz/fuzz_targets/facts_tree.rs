#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| bcd_fuzz::facts_tree::run(data));
