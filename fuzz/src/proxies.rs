//! `HTTPS_PROXY` and `NO_PROXY`: no error repeats either; which servers are reached directly depends on neither
//! case nor a final dot, and this host's own addresses always are.
use bcd::wire::proxy::Proxies;

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 128,
};

/// Four lines: the proxy, the exceptions, a host, a port.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let mut lines = text.splitn(4, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (proxy, exceptions, host, port) = (line(), line(), line(), line());
    let port = port.parse().unwrap_or(443);
    match Proxies::parse(proxy, exceptions) {
        Err(error) => {
            super::one_line(&error);
            let said = error.to_string();
            let telling = proxy.len() >= 16 && !proxy.contains(char::is_whitespace);
            assert!(!telling || !said.contains(proxy), "{said}");
        }
        Ok(proxies) => {
            let direct = |host: &str| proxies.before(host, port).is_none();
            assert!(direct("localhost") && direct("127.0.0.1") && direct("::1"));
            assert_eq!(direct(host), direct(&host.to_ascii_uppercase()));
            assert!(host.ends_with('.') || direct(host) == direct(&format!("{host}.")));
            if let Some(proxy) = proxies.before(host, port) {
                super::one_line(&proxy.name());
                assert!(!proxy.host.is_empty() && !proxy.name().contains('@'));
            }
        }
    }
}
