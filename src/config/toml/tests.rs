#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;

fn value(line: &str) -> Result<Value, Slip> {
    match parse(format!("k = {line}\n").as_bytes(), &[]) {
        Ok(document) => Ok(document.sections[""].items["k"].value.clone()),
        Err(mut errors) => Err(errors.remove(0).what),
    }
}

#[test]
fn values_are_read_as_toml_reads_them() {
    let string = |s: &str| Ok(Value::String(s.to_owned()));
    assert_eq!(value("\"a b\" # c"), string("a b"));
    assert_eq!(value("''"), string(""));
    assert_eq!(value("\"\""), string(""));
    assert_eq!(value(r"'C:\x'"), string(r"C:\x"));
    assert_eq!(
        value(r#""\b\t\n\f\r\"\\\u00e9\U0001F600""#),
        string("\u{8}\t\n\u{c}\r\"\\é😀")
    );
    assert_eq!(value("true"), Ok(Value::Boolean(true)));
    assert_eq!(value("false#x"), Ok(Value::Boolean(false)));
    for (text, want) in [
        ("0", 0),
        ("+7", 7),
        ("-0", 0),
        ("-1_000", -1000),
        ("67108864", 67_108_864),
    ] {
        assert_eq!(value(text), Ok(Value::Integer(want)), "{text}");
    }
    assert_eq!(value("9223372036854775807"), Ok(Value::Integer(i64::MAX)));
    assert_eq!(value("-9223372036854775808"), Ok(Value::Integer(i64::MIN)));
}

#[test]
fn everything_outside_the_subset_is_refused_by_its_name() {
    let cases = [
        ("[1]", Slip::Array),
        ("{a=1}", Slip::InlineTable),
        ("\"\"\"a\"\"\"", Slip::MultiLineString),
        ("'''a'''", Slip::MultiLineString),
        ("\"a", Slip::UnclosedString),
        ("'a", Slip::UnclosedString),
        (r#""a\""#, Slip::UnclosedString),
        (r#""\e""#, Slip::Escape),
        (r#""\u12""#, Slip::Escape),
        (r#""\ud800""#, Slip::CodePoint),
        (r#""\UFFFFFFFF""#, Slip::CodePoint),
        ("\"a\u{1}\"", Slip::Control(1)),
        ("'a\u{7f}'", Slip::Control(0x7f)),
        ("1.5", Slip::Float),
        ("1e3", Slip::Float),
        ("inf", Slip::Float),
        ("-nan", Slip::Float),
        ("1979-05-27", Slip::Date),
        ("1979-05-27T07:32:00Z", Slip::Date),
        ("07:32:00", Slip::Date),
        ("0x10", Slip::OtherBase),
        ("0o7", Slip::OtherBase),
        ("0b1", Slip::OtherBase),
        ("01", Slip::LeadingZero),
        ("-00", Slip::LeadingZero),
        ("1__0", Slip::Underscore),
        ("1_", Slip::Underscore),
        ("_1", Slip::Underscore),
        ("9223372036854775808", Slip::IntegerRange),
        ("yes", Slip::Bareword),
        ("True", Slip::Bareword),
        ("+", Slip::Bareword),
        ("--1", Slip::Bareword),
        ("1a", Slip::Bareword),
        ("", Slip::NoValue),
        ("# c", Slip::NoValue),
        ("1 2", Slip::AfterValue),
        ("\"a\" b", Slip::AfterValue),
        ("\"\"a\"", Slip::AfterValue),
        ("1 # \u{1}", Slip::Control(1)),
        ("1\r2", Slip::Control(0x0d)),
    ];
    for (text, want) in cases {
        assert_eq!(value(text), Err(want), "{text:?}");
    }
}

#[test]
fn lines_that_are_no_assignment_are_refused_by_their_name() {
    let cases = [
        ("a.b = 1", Slip::DottedKey),
        ("a . b = 1", Slip::DottedKey),
        ("\"a\" = 1", Slip::QuotedKey),
        ("'a' = 1", Slip::QuotedKey),
        ("= 1", Slip::NoKey),
        ("a", Slip::NoEquals),
        ("a b = 1", Slip::NoEquals),
        ("é = 1", Slip::KeyCharacter('é')),
        ("aé = 1", Slip::KeyCharacter('é')),
        ("a: 1", Slip::NoEquals),
        ("[[a]]", Slip::ArrayOfTables),
        ("[a", Slip::SectionUnclosed),
        ("[a.b]", Slip::SectionName),
        ("[\"a\"]", Slip::SectionName),
        ("[]", Slip::SectionName),
        ("[a] b", Slip::AfterSection),
        ("# \u{0}", Slip::Control(0)),
        ("\u{b}a = 1", Slip::Control(0xb)),
        ("a = 1\na = 2", Slip::DuplicateKey { first: 1 }),
        ("[a]\n[b]\n[a]", Slip::DuplicateSection { first: 1 }),
        ("a = 1\n[a]", Slip::SectionIsKey { first: 1 }),
    ];
    for (text, want) in cases {
        let errors = parse(text.as_bytes(), &[]).unwrap_err();
        assert_eq!(errors[0].what, want, "{text:?}");
    }
    assert_eq!(
        parse(b"a = 1\nb = \xff", &[]).unwrap_err()[0],
        SyntaxError {
            line: 2,
            key: None,
            what: Slip::NotUtf8
        }
    );
    assert_eq!(
        parse("\u{feff}a = 1".as_bytes(), &[]).unwrap_err()[0].what,
        Slip::ByteOrderMark
    );
}

#[test]
fn every_slip_is_reported_with_its_line_and_key() {
    let errors = parse(b"a = 1\nb = 1.5\n\n[s]\r\nc = yes\r\nd\n", &[]).unwrap_err();
    let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "line 2: b is a float; write an integer",
            "line 5: s.c is not a value; strings need quotes, booleans are `true` and `false`",
            "line 6 is neither `key = value`, `[section]` nor a comment",
        ]
    );
    assert_eq!(
        parse("x\n".repeat(100).as_bytes(), &[]).unwrap_err().len(),
        MAX_SYNTAX_ERRORS
    );
}

#[test]
fn sections_crlf_and_a_missing_last_newline_are_fine() {
    let document = parse(b"a=1\r\n[ s-1 ] # c\r\na = 'x'", &[]).unwrap();
    assert_eq!(document.sections["s-1"].line, 2);
    assert_eq!(document.sections["s-1"].items["a"].line, 3);
    assert_eq!(document.sections[""].items["a"].value, Value::Integer(1));
    assert_eq!(parse(b"", &[]).unwrap().sections.len(), 1);
}

#[test]
fn only_a_shared_name_may_be_key_and_section_at_once() {
    assert!(parse(b"a = 1\n[a]", &["a"]).is_ok());
    assert!(parse(b"b = 1\n[b]", &["a"]).is_err());
    assert!(parse(b"a = 1\n[a]\n[a]", &["a"]).is_err());
}
