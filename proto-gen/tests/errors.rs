//! What a schema may not say, and that the complaint names file and line.
use std::io;

use proto_gen::{Output, compile_with};

/// Compiles a.proto, with b.proto and c.proto beside it.
fn compile(text: &str) -> Result<Output, proto_gen::Error> {
    compile_with(&["a.proto"], &mut |name| match name {
        "a.proto" => Ok(text.to_owned()),
        "b.proto" => Ok(
            "syntax = \"proto3\"; package b; import \"c.proto\"; message B {} enum E { Z = 0; }"
                .to_owned(),
        ),
        "c.proto" => Ok("syntax = \"proto3\"; package c; message C {}".to_owned()),
        "broken.proto" => Ok("syntax = \"proto3\";\n\nmessage {}".to_owned()),
        "loop.proto" => Ok("syntax = \"proto3\";\nimport \"a.proto\";".to_owned()),
        _ => Err(io::ErrorKind::NotFound.into()),
    })
}

/// Asserts that `body`, from line 2 on, is refused on the line that ends in "// here" with a
/// complaint that has `problem` in it.
fn refused(body: &str, problem: &str) {
    let text = format!("syntax = \"proto3\";\n{body}");
    let error = match compile(&text) {
        Ok(_) => panic!("taken, but {problem:?} was expected of:\n{text}"),
        Err(error) => error.to_string(),
    };
    let line = text.lines().position(|line| line.ends_with("// here"));
    let place = format!("a.proto:{}: ", line.expect("a marked line") + 1);
    assert!(
        error.starts_with(&place) && error.contains(problem),
        "{error:?} is not {place:?} with {problem:?}, of:\n{text}"
    );
}

fn taken(body: &str) -> String {
    match compile(&format!("syntax = \"proto3\";\n{body}")) {
        Ok(output) => output.rust,
        Err(error) => panic!("{error}, of:\n{body}"),
    }
}

#[test]
fn other_syntaxes_are_refused() {
    for (text, problem) in [
        ("", "a.proto:1: the first statement must be syntax"),
        ("\n\nmessage A {}", "a.proto:3: the first statement must"),
        (
            "\nsyntax = \"proto2\";",
            "a.proto:2: syntax \"proto2\" is not",
        ),
        (
            "edition = \"2023\";",
            "a.proto:1: editions are not supported",
        ),
        ("syntax = proto3;", "a.proto:1: expected a syntax in quotes"),
        (
            "syntax = \"proto3\"\nmessage A {}",
            "a.proto:2: expected ';'",
        ),
    ] {
        let error = compile(text).expect_err(text).to_string();
        assert!(error.starts_with(problem), "{error:?} of {text:?}");
    }
}

#[test]
fn what_is_not_supported_is_refused_not_ignored() {
    let field = |field: &str| format!("message A {{\n{field} // here\n}}");
    for (body, problem) in [
        (field("required int32 a = 1;"), "proto2"),
        (field("repeated group A = 1 {"), "groups"),
        (field("group A = 1 {"), "groups"),
        (field("optional group A = 1 {}"), "groups"),
        (field("extensions 4 to 10;"), "extensions"),
        (field("extend A { int32 b = 1; }"), "extensions"),
        (
            field("int32 a = 1 [default = 3];"),
            "\"default\" is not supported",
        ),
        (field("int32 a = 1 [(mine) = 3];"), "custom options"),
        (
            field("int32 a = 1 [lazy = true];"),
            "\"lazy\" is not supported",
        ),
        (
            field("int32 a = 1 [features.x = Y];"),
            "\"features.x\" is not",
        ),
        (field("option (mine) = true;"), "custom options"),
        (
            field("option map_entry = true;"),
            "\"map_entry\" is not supported",
        ),
        (
            field("oneof a { option (mine) = 1; int32 b = 1; }"),
            "options of a oneof",
        ),
    ] {
        refused(&body, problem);
    }
    refused("extend A {} // here", "extensions");
    refused("option (mine) = true; // here", "custom options");
    refused(
        "option unheard_of = true; // here",
        "\"unheard_of\" is not supported",
    );
    refused(
        "import weak \"b.proto\"; // here",
        "plain and public imports",
    );
    refused(
        "import option \"b.proto\"; // here",
        "plain and public imports",
    );
    refused("enum A { B = 0 [(mine) = 1]; } // here", "custom options");
    refused("service A { stream B(C, D); } // here", "expected rpc");
    refused(
        "message M {}\nservice A { rpc B(M) returns (M) { option (google.api.http) = 1; } } // here",
        "custom options",
    );
}

#[test]
fn malformed_text_is_refused() {
    for (body, problem) in [
        ("message A { // here", "expected"),
        ("/* no end // here", "no end"),
        ("import \"b.proto // here", "no end"),
        ("import b; // here", "a path in quotes"),
        ("message A { int32 a = 1 } // here", "expected ';'"),
        ("message A { int32 a; } // here", "expected '='"),
        (
            "message A { int32 = 1; } // here",
            "expected a field's name",
        ),
        ("message A { int32 a = 1.5; } // here", "found a fraction"),
        ("message A { int32 a = 1e+3; } // here", "found a fraction"),
        (
            "message A { int32 a = 08; } // here",
            "\"8\" is not a number",
        ),
        ("message A { int32 a = 0xfg; } // here", "is not a number"),
        (
            "message A { int32 a = 99999999999999999999; } // here",
            "not a number",
        ),
        (
            "message A { int32 a = 18446744073709551615; } // here",
            "out of range",
        ),
        (
            "message A { int32 ä = 1; } // here",
            "'ä' does not belong here",
        ),
        ("} // here", "'}' begins nothing"),
        ("massage A {} // here", "\"massage\" begins no statement"),
        ("message 5 {} // here", "expected a message's name, found 5"),
        ("import \"\\x41\"; // here", "escape"),
        ("package a; package b; // here", "one package"),
    ] {
        refused(body, problem);
    }
    let deep = "message A { ".repeat(100_000);
    refused(&format!("{deep} // here"), "nested too deep");
}

#[test]
fn field_numbers_are_checked() {
    for (body, problem) in [
        (
            "message A { int32 a = 0; } // here",
            "numbers are 1 to 536870911",
        ),
        ("message A { int32 a = -1; } // here", "numbers are 1 to"),
        (
            "message A { int32 a = 536870912; } // here",
            "numbers are 1 to",
        ),
        ("message A { int32 a = 19000; } // here", "protobuf itself"),
        ("message A { int32 a = 19999; } // here", "protobuf itself"),
        (
            "message A { int32 a = 1;\nint32 b = 1; // here\n}",
            "fields \"a\" and \"b\" have the same number 1",
        ),
        (
            "message A { int32 a = 1;\noneof c { int32 b = 1; } // here\n}",
            "the same number",
        ),
        (
            "message A { string a = 1 [packed = true]; } // here",
            "packed",
        ),
        (
            "message A { int32 a = 1 [packed = true]; } // here",
            "packed",
        ),
        (
            "message A { repeated int32 a = 1 [packed = 1]; } // here",
            "true or false",
        ),
    ] {
        refused(body, problem);
    }
    taken("message A { int32 a = 18999; int32 b = 20000; int32 c = 0x1fffffff; int32 d = 010; }");
}

#[test]
fn what_is_reserved_stays_unused() {
    for (body, problem) in [
        (
            "message A { reserved 2;\nint32 a = 2; // here\n}",
            "2 is reserved (line 2)",
        ),
        (
            "message A {\nint32 a = 9; // here\nreserved 2, 5 to 10;\n}",
            "9 is reserved (line 4)",
        ),
        (
            "message A { reserved 5 to max;\nint32 a = 536870911; // here\n}",
            "reserved",
        ),
        (
            "message A { reserved \"a\";\nint32 a = 9; // here\n}",
            "the name \"a\" is reserved",
        ),
        (
            "message A { reserved \"a\";\nmap<int32, A> a = 9; // here\n}",
            "reserved",
        ),
        (
            "message A { reserved 1 to 5, 4; } // here",
            "reserved twice",
        ),
        (
            "message A { reserved \"a\", \"a\"; } // here",
            "reserved twice",
        ),
        ("message A { reserved 5 to 1; } // here", "no range"),
        ("message A { reserved 0; } // here", "no range"),
        (
            "message A { reserved a; } // here",
            "a number or a name in quotes",
        ),
        (
            "enum A { Z = 0; reserved -5 to -1, 7;\nB = -3; // here\n}",
            "-3 is reserved",
        ),
        (
            "enum A { Z = 0; reserved 5 to max;\nB = 2147483647; // here\n}",
            "is reserved",
        ),
        (
            "enum A { Z = 0; reserved \"B\";\nB = 1; // here\n}",
            "the name \"B\" is reserved",
        ),
    ] {
        refused(body, problem);
    }
}

#[test]
fn enums_are_open_and_begin_with_zero() {
    for (body, problem) in [
        ("enum A {} // here", "needs a value"),
        ("enum A { B = 1; } // here", "must be 0"),
        ("enum A { B = 0; C = 0; } // here", "allow_alias"),
        ("enum A { B = 0; C = 2147483648; } // here", "out of range"),
        ("enum A { B = 0; C = -2147483649; } // here", "out of range"),
        ("enum A { A_B = 0; A_b = 1; } // here", "same name in Rust"),
    ] {
        refused(body, problem);
    }
    let rust = taken("enum TheRole { THE_ROLE_NONE = 0; THE_ROLE_NODE = 1; }");
    assert!(
        rust.contains("pub const NODE: TheRole = TheRole(1);"),
        "{rust}"
    );
    // One value without the prefix, or with only a digit behind it, and all keep theirs.
    let rust = taken("enum A { A_B = 0; A_1 = 1; }");
    assert!(rust.contains("pub const A_B: A = A(0);"), "{rust}");
}

#[test]
fn names_are_declared_once_and_found() {
    for (body, problem) in [
        (
            "message A {}\nmessage A {} // here",
            "declared twice, also at a.proto:2",
        ),
        ("message A {}\nenum A { B = 0; } // here", "declared twice"),
        (
            "message A { int32 a = 1; int64 a = 2; } // here",
            "\"a\" and \"a\" have the same",
        ),
        (
            "message A { int32 a_b = 1; int64 aB = 2; } // here",
            "the same name in JSON",
        ),
        (
            "message A { int32 a = 1; oneof a { int32 b = 2; } } // here",
            "declared twice",
        ),
        (
            "message A { message B {} enum B { C = 0; } } // here",
            "declared twice",
        ),
        (
            "enum A { X = 0; }\nenum B { X = 0; } // here",
            "\"X\" is declared twice",
        ),
        ("message A { B b = 1; } // here", "there is no type \"B\""),
        (
            "message A { A.B b = 1; } // here",
            "there is no type \"A.B\"",
        ),
        (
            "message A { .A.B b = 1; } // here",
            "there is no type \".A.B\"",
        ),
        (
            "message A { string b = 1; A.b c = 2; } // here",
            "\"A.b\" is not a type",
        ),
        (
            "message A { b.B b = 1; } // here",
            "there is no type \"b.B\"",
        ),
        (
            "import \"b.proto\";\nmessage A { c.C c = 1; } // here",
            "which is not imported",
        ),
        (
            "message AB {}\nmessage A { message B {} } // here",
            "are both AB in Rust",
        ),
        (
            "message A { oneof b { A c = 1; } }\nmessage AB {} // here",
            "are both AB in Rust",
        ),
        ("message Some {} // here", "cannot be called Some in Rust"),
        ("message A { map<A, A> a = 1; } // here", "a map's key"),
        ("message A { map<double, A> a = 1; } // here", "a map's key"),
        (
            "message A { repeated map<int32, A> a = 1; } // here",
            "expected a field's name",
        ),
        (
            "message A { oneof b { map<int32, A> a = 1; } } // here",
            "single fields",
        ),
        (
            "message A { oneof b { repeated A a = 1; } } // here",
            "single fields",
        ),
        ("message A { oneof b {} } // here", "needs a member"),
        (
            "message M {}\nenum E { Z = 0; }\nservice A { rpc B(M) returns (E); } // here",
            "messages",
        ),
        (
            "message M {}\nservice A { rpc B(M) returns (N); } // here",
            "there is no type \"N\"",
        ),
        (
            "message M {}\nservice A { rpc B(M) returns (M); rpc B(M) returns (M); } // here",
            "declared twice",
        ),
    ] {
        refused(body, problem);
    }
}

#[test]
fn imports_are_followed_and_their_mistakes_are_theirs() {
    refused(
        "import \"missing.proto\"; // here",
        "cannot read \"missing.proto\"",
    );
    refused(
        "import \"../a.proto\"; // here",
        "not a plain relative path",
    );
    refused(
        "import \"/etc/passwd\"; // here",
        "not a plain relative path",
    );
    refused(
        "import \"b.proto\"; import \"b.proto\"; // here",
        "imported twice",
    );
    let error = compile("syntax = \"proto3\";\nimport \"broken.proto\";").expect_err("broken");
    let expected = "broken.proto:3: expected a message's name, found '{'";
    assert_eq!(error.to_string(), expected);
    let error = compile("syntax = \"proto3\";\nimport \"loop.proto\";").expect_err("loop");
    assert_eq!((error.file.as_str(), error.line), ("loop.proto", 2));
    taken("import \"b.proto\"; message A { b.B b = 1; .b.E e = 2; }");
    let error = compile_with(&["nowhere.proto"], &mut |_| {
        Err(io::ErrorKind::NotFound.into())
    });
    let error = error.expect_err("missing").to_string();
    assert!(error.starts_with("nowhere.proto:1: cannot read"), "{error}");
}

#[test]
fn a_damaged_schema_never_panics() {
    let schema = include_str!("../interop/proto/shapes/more.proto");
    let shapes = include_str!("../interop/proto/shapes/shapes.proto");
    let compile = |text: &[u8]| {
        compile_with(&["a.proto"], &mut |name| match name {
            "a.proto" => Ok(String::from_utf8_lossy(text).into_owned()),
            "shapes/colors.proto" => {
                Ok(include_str!("../interop/proto/shapes/colors.proto").to_owned())
            }
            "shapes/base.proto" => {
                Ok(include_str!("../interop/proto/shapes/base.proto").to_owned())
            }
            "shapes/more.proto" => Ok(schema.to_owned()),
            _ => Err(io::ErrorKind::NotFound.into()),
        })
    };
    let mut refused = 0;
    let steps = [(schema, 1), (shapes, 29)];
    for (schema, step) in steps {
        assert!(compile(schema.as_bytes()).is_ok());
        for at in (0..schema.len()).step_by(step) {
            refused += u32::from(compile(&schema.as_bytes()[..at]).is_err());
            let mut text = schema.as_bytes().to_vec();
            text[at] = b"{}\"/.0;\xff"[at % 8];
            refused += u32::from(compile(&text).is_err());
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn the_output_is_what_it_was() {
    let output = compile(include_str!("golden/sample.proto")).expect("a schema");
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sample.rs.txt");
        std::fs::write(path, &output.rust).expect("a writable file");
    }
    let golden = include_str!("golden/sample.rs.txt");
    assert!(
        output.rust == golden,
        "the output has changed; if that is meant, run this test with BLESS=1, twice"
    );
}
