//! What things are called in Rust.
use super::schema::Enum;

/// `sealed_token` as `SealedToken`.
pub(super) fn camel(name: &str) -> String {
    let mut camel = String::new();
    for part in name.split('_') {
        let mut chars = part.chars();
        camel.extend(chars.next().map(|c| c.to_ascii_uppercase()));
        camel.push_str(chars.as_str());
    }
    if !camel.starts_with(|c: char| c.is_ascii_alphabetic()) {
        camel.insert(0, 'X');
    }
    camel
}

/// `JoinService` as `join_service`; upper-case runs stay together, `HTTPServer` as `http_server`.
fn snake(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let mut snake = String::new();
    for (index, &c) in chars.iter().enumerate() {
        let before = index.checked_sub(1).map_or('_', |index| chars[index]);
        let after = chars.get(index + 1).copied().unwrap_or('_');
        let begins = before.is_ascii_lowercase() || (before != '_' && after.is_ascii_lowercase());
        if c.is_ascii_uppercase() && begins {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

/// A method's or a value's constant, `SubmitJob` as `SUBMIT_JOB`.
pub(super) fn constant(name: &str) -> String {
    let constant = snake(name).to_ascii_uppercase();
    match constant.as_str() {
        "_" => "__".to_owned(),
        _ => constant,
    }
}

/// A field's or a oneof's name in a struct.
pub(super) fn field_name(name: &str) -> String {
    let name = snake(name);
    match name.as_str() {
        "self" | "super" | "crate" | "_" => format!("{name}_"),
        _ if KEYWORDS.contains(&name.as_str()) => format!("r#{name}"),
        _ => name,
    }
}

/// The module of a service's methods.
pub(super) fn module_name(name: &str) -> String {
    field_name(name)
}

/// The constants of an enum's values: without the enum's name before them, when all have it.
pub(super) fn value_names(enumeration: &Enum) -> Vec<String> {
    let prefix = format!("{}_", constant(&enumeration.name.text));
    let full: Vec<String> = enumeration
        .values
        .iter()
        .map(|(name, _)| constant(&name.text))
        .collect();
    let short: Option<Vec<String>> = full
        .iter()
        .map(|name| {
            let short = name.strip_prefix(&prefix)?;
            let named = short.starts_with(|c: char| c.is_ascii_alphabetic());
            named.then(|| short.to_owned())
        })
        .collect();
    short.unwrap_or(full)
}

const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
    "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return",
    "static", "struct", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield",
];
