#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| bcd_fuzz::signed_order::run(data));
