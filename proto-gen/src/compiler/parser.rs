//! The proto3 grammar (<https://protobuf.dev/reference/protobuf/proto3-spec/>), and what one
//! file alone can be checked for.
use super::Error;
use super::lexer::{self, Spanned, Token};
use super::schema::{
    Enum, Field, File, Import, Kind, Label, Message, Method, Name, Reserved, Scalar, Service,
};

/// The highest field number.
const MAX_FIELD: i64 = (1 << 29) - 1;
/// How deep messages may be declared within each other.
const MAX_NESTING: u32 = 32;

pub(super) fn parse(file: &str, text: &str) -> Result<File, Error> {
    let mut parser = Parser {
        file,
        tokens: lexer::tokens(file, text)?,
        at: 0,
    };
    parser.file()
}

struct Parser<'a> {
    file: &'a str,
    /// Ends with [`Token::End`], which is never stepped over.
    tokens: Vec<Spanned>,
    at: usize,
}

/// Options in brackets behind a field that mean something here.
#[derive(Default)]
struct FieldOptions {
    packed: Option<bool>,
}

impl Parser<'_> {
    fn fail<T>(&self, line: u32, problem: impl Into<String>) -> Result<T, Error> {
        Err(Error {
            file: self.file.to_owned(),
            line,
            problem: problem.into(),
        })
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.at].token
    }

    fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    fn next(&mut self) -> Spanned {
        let spanned = self.tokens[self.at].clone();
        if spanned.token != Token::End {
            self.at += 1;
        }
        spanned
    }

    fn is(&self, symbol: char) -> bool {
        *self.peek() == Token::Symbol(symbol)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Word(w) if w == word)
    }

    /// Whether the token after the next one is this symbol.
    fn then(&self, symbol: char) -> bool {
        self.tokens
            .get(self.at + 1)
            .is_some_and(|next| next.token == Token::Symbol(symbol))
    }

    fn accept(&mut self, symbol: char) -> bool {
        let found = self.is(symbol);
        if found {
            self.next();
        }
        found
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    fn expect(&mut self, symbol: char) -> Result<(), Error> {
        if self.accept(symbol) {
            return Ok(());
        }
        self.fail(
            self.line(),
            format!("expected '{symbol}', found {}", shown(self.peek())),
        )
    }

    fn name(&mut self, what: &str) -> Result<Name, Error> {
        let spanned = self.next();
        match spanned.token {
            Token::Word(text) => Ok(Name {
                text,
                line: spanned.line,
                comment: spanned.comment,
            }),
            other => self.fail(
                spanned.line,
                format!("expected {what}, found {}", shown(&other)),
            ),
        }
    }

    fn text(&mut self, what: &str) -> Result<String, Error> {
        let line = self.line();
        let Token::Text(mut text) = self.next().token else {
            return self.fail(line, format!("expected {what} in quotes"));
        };
        // Adjacent strings are one.
        while let Token::Text(more) = self.peek() {
            text.push_str(more);
            self.next();
        }
        Ok(text)
    }

    fn integer(&mut self, what: &str) -> Result<i64, Error> {
        let line = self.line();
        let negative = self.accept('-');
        match self.next().token {
            Token::Integer(value) if value <= 1 << 32 => {
                let value = value as i64;
                Ok(if negative { -value } else { value })
            }
            Token::Integer(_) => self.fail(line, format!("{what} is out of range")),
            other => self.fail(line, format!("expected {what}, found {}", shown(&other))),
        }
    }

    /// `a.b.c`, and with `absolute` also `.a.b.c`.
    fn dotted(&mut self, what: &str, absolute: bool) -> Result<String, Error> {
        let mut text = String::new();
        if absolute && self.accept('.') {
            text.push('.');
        }
        text.push_str(&self.name(what)?.text);
        while self.accept('.') {
            text.push('.');
            text.push_str(&self.name(what)?.text);
        }
        Ok(text)
    }

    fn file(&mut self) -> Result<File, Error> {
        let line = self.line();
        if self.is_word("edition") {
            return self.fail(line, "editions are not supported, only syntax = \"proto3\"");
        }
        if !self.accept_word("syntax") {
            return self.fail(
                line,
                "the first statement must be syntax = \"proto3\"; without it a file is proto2",
            );
        }
        self.expect('=')?;
        let syntax = self.text("a syntax")?;
        if syntax != "proto3" {
            return self.fail(
                line,
                format!("syntax \"{syntax}\" is not supported, only \"proto3\""),
            );
        }
        self.expect(';')?;

        let mut file = File {
            name: self.file.to_owned(),
            package: String::new(),
            imports: Vec::new(),
            messages: Vec::new(),
            enums: Vec::new(),
            services: Vec::new(),
        };
        loop {
            if self.accept(';') {
                continue;
            }
            let Spanned {
                token,
                line,
                comment,
            } = self.next();
            let word = match token {
                Token::End => return Ok(file),
                Token::Word(word) => word,
                other => return self.fail(line, format!("{} begins nothing", shown(&other))),
            };
            match word.as_str() {
                "import" => {
                    let import = self.import(line)?;
                    if file.imports.iter().any(|other| other.path == import.path) {
                        return self.fail(line, format!("\"{}\" is imported twice", import.path));
                    }
                    file.imports.push(import);
                }
                "package" if file.package.is_empty() => {
                    file.package = self.dotted("a package", false)?;
                    self.expect(';')?;
                }
                "package" => return self.fail(line, "a file has one package"),
                "option" => self.option(FILE_OPTIONS)?,
                "message" => file.messages.push(self.message(comment, 0)?),
                "enum" => file.enums.push(self.enumeration(comment)?),
                "service" => file.services.push(self.service(comment)?),
                "extend" => return self.fail(line, "extensions are not supported"),
                "export" | "local" => return self.fail(line, "editions are not supported"),
                _ => return self.fail(line, format!("\"{word}\" begins no statement")),
            }
        }
    }

    fn import(&mut self, line: u32) -> Result<Import, Error> {
        if self.is_word("weak") || self.is_word("option") {
            return self.fail(line, "only plain and public imports are supported");
        }
        let public = self.accept_word("public");
        let path = self.text("a path")?;
        self.expect(';')?;
        Ok(Import { path, line, public })
    }

    /// `name = value`, of the `allowed` ones. Custom options change what a schema means to
    /// somebody, so they are refused rather than lost.
    fn option_value(&mut self, allowed: &[&str]) -> Result<(String, Token), Error> {
        let line = self.line();
        if self.is('(') {
            return self.fail(line, "custom options are not supported");
        }
        let name = self.dotted("an option", false)?;
        if !allowed.contains(&name.as_str()) {
            return self.fail(line, format!("option \"{name}\" is not supported here"));
        }
        self.expect('=')?;
        let value = match self.peek() {
            Token::Text(_) => Token::Text(self.text("a value")?),
            Token::Word(_) | Token::Integer(_) => self.next().token,
            other => {
                let problem = format!("{} is no value for option \"{name}\"", shown(other));
                return self.fail(line, problem);
            }
        };
        Ok((name, value))
    }

    fn option(&mut self, allowed: &[&str]) -> Result<(), Error> {
        self.option_value(allowed)?;
        self.expect(';')
    }

    fn boolean(&self, line: u32, name: &str, value: &Token) -> Result<bool, Error> {
        match value {
            Token::Word(word) if word == "true" => Ok(true),
            Token::Word(word) if word == "false" => Ok(false),
            _ => self.fail(line, format!("option \"{name}\" is true or false")),
        }
    }

    /// The options in brackets behind a field or an enum value, if there are any.
    fn bracketed(&mut self, allowed: &[&str]) -> Result<FieldOptions, Error> {
        let mut options = FieldOptions::default();
        if !self.accept('[') {
            return Ok(options);
        }
        loop {
            let line = self.line();
            let (name, value) = self.option_value(allowed)?;
            if name == "packed" {
                options.packed = Some(self.boolean(line, &name, &value)?);
            } else if name == "deprecated" {
                self.boolean(line, &name, &value)?;
            }
            if !self.accept(',') {
                self.expect(']')?;
                return Ok(options);
            }
        }
    }

    fn message(&mut self, comment: Vec<String>, depth: u32) -> Result<Message, Error> {
        let mut message = Message {
            name: Name {
                comment,
                ..self.name("a message's name")?
            },
            ..Message::default()
        };
        if depth >= MAX_NESTING {
            return self.fail(message.name.line, "messages are nested too deep");
        }
        self.expect('{')?;
        while !self.accept('}') {
            self.message_item(&mut message, depth)?;
        }
        self.check_fields(&message)?;
        Ok(message)
    }

    fn message_item(&mut self, message: &mut Message, depth: u32) -> Result<(), Error> {
        if self.accept(';') {
            return Ok(());
        }
        let line = self.line();
        let comment = self.tokens[self.at].comment.clone();
        let Token::Word(word) = self.peek().clone() else {
            // A type with a leading dot, or a mistake that the field's parser names.
            let field = self.field(comment, Label::Singular, true)?;
            message.fields.push(field);
            return Ok(());
        };
        // A keyword may also be the first part of a type's name.
        let dotted = self.then('.');
        match word.as_str() {
            _ if dotted => message
                .fields
                .push(self.field(comment, Label::Singular, true)?),
            "message" => {
                self.next();
                let inner = self.message(comment, depth + 1)?;
                message.messages.push(inner);
            }
            "enum" => {
                self.next();
                message.enums.push(self.enumeration(comment)?);
            }
            "option" => {
                self.next();
                self.option(&["deprecated"])?;
            }
            "reserved" => {
                self.next();
                self.reserved(&mut message.reserved, 1, MAX_FIELD)?;
            }
            "oneof" => {
                self.next();
                self.oneof(message, comment)?;
            }
            "map" if self.then('<') => message.fields.push(self.map(comment)?),
            "repeated" | "optional" => {
                self.next();
                let label = if word == "repeated" {
                    Label::Repeated
                } else {
                    Label::Optional
                };
                message.fields.push(self.field(comment, label, true)?);
            }
            "required" => return self.fail(line, "required fields are proto2"),
            "extensions" | "extend" => return self.fail(line, "extensions are not supported"),
            "group" => return self.fail(line, "groups are not supported"),
            _ => message
                .fields
                .push(self.field(comment, Label::Singular, true)?),
        }
        Ok(())
    }

    fn oneof(&mut self, message: &mut Message, comment: Vec<String>) -> Result<(), Error> {
        let name = Name {
            comment,
            ..self.name("a oneof's name")?
        };
        let line = name.line;
        let index = message.oneofs.len();
        message.oneofs.push(name);
        self.expect('{')?;
        let before = message.fields.len();
        while !self.accept('}') {
            if self.accept(';') {
                continue;
            }
            let comment = self.tokens[self.at].comment.clone();
            let field_line = self.line();
            if self.is_word("option") {
                return self.fail(field_line, "options of a oneof are not supported");
            }
            let labelled = ["repeated", "optional", "required"]
                .iter()
                .any(|label| self.is_word(label) && !self.then('.'));
            if labelled || (self.is_word("map") && self.then('<')) {
                return self.fail(field_line, "a oneof's members are single fields");
            }
            let field = self.field(comment, Label::Oneof(index), false)?;
            message.fields.push(field);
        }
        if message.fields.len() == before {
            return self.fail(line, "a oneof needs a member");
        }
        Ok(())
    }

    fn field(
        &mut self,
        comment: Vec<String>,
        label: Label,
        may_pack: bool,
    ) -> Result<Field, Error> {
        let line = self.line();
        if self.is_word("group") && !self.then('.') {
            return self.fail(line, "groups are not supported");
        }
        let kind = kind(self.dotted("a type", true)?);
        let name = Name {
            comment,
            ..self.name("a field's name")?
        };
        let (number, options) = self.field_number(&name, FIELD_OPTIONS)?;
        if options.packed.is_some()
            && !(may_pack
                && label == Label::Repeated
                && matches!(kind, Kind::Scalar(_) | Kind::Named(_)))
        {
            return self.fail(name.line, "only repeated numbers can be packed");
        }
        Ok(Field {
            name,
            number,
            label,
            kind,
            packed: options.packed.unwrap_or(true),
            boxed: false,
        })
    }

    fn field_number(
        &mut self,
        name: &Name,
        allowed: &[&str],
    ) -> Result<(u32, FieldOptions), Error> {
        self.expect('=')?;
        let line = self.line();
        let number = self.integer("a field number")?;
        if !(1..=MAX_FIELD).contains(&number) {
            return self.fail(
                line,
                format!("field \"{}\": numbers are 1 to {MAX_FIELD}", name.text),
            );
        }
        if (19000..=19999).contains(&number) {
            return self.fail(
                line,
                format!(
                    "field \"{}\": numbers 19000 to 19999 belong to protobuf itself",
                    name.text
                ),
            );
        }
        if self.is('{') {
            return self.fail(line, "groups are not supported");
        }
        let options = self.bracketed(allowed)?;
        self.expect(';')?;
        Ok((number as u32, options))
    }

    fn map(&mut self, comment: Vec<String>) -> Result<Field, Error> {
        self.next();
        self.expect('<')?;
        let line = self.line();
        let key = match kind(self.dotted("a key type", true)?) {
            Kind::String => Scalar::StringKey,
            Kind::Scalar(scalar) if !matches!(scalar, Scalar::Float | Scalar::Double) => scalar,
            _ => return self.fail(line, "a map's key is an integer, a bool or a string"),
        };
        self.expect(',')?;
        let kind = kind(self.dotted("a value type", true)?);
        self.expect('>')?;
        let name = Name {
            comment,
            ..self.name("a field's name")?
        };
        let (number, _) = self.field_number(&name, &["deprecated", "json_name"])?;
        Ok(Field {
            name,
            number,
            label: Label::Map(key),
            kind,
            packed: false,
            boxed: false,
        })
    }

    fn reserved(&mut self, reserved: &mut Reserved, min: i64, max: i64) -> Result<(), Error> {
        loop {
            let line = self.line();
            if let Token::Text(_) = self.peek() {
                let name = self.text("a name")?;
                if reserved.names.iter().any(|(other, _)| *other == name) {
                    return self.fail(line, format!("\"{name}\" is reserved twice"));
                }
                reserved.names.push((name, line));
            } else {
                let from = self.integer("a number or a name in quotes")?;
                let to = if !self.accept_word("to") {
                    from
                } else if self.accept_word("max") {
                    max
                } else {
                    self.integer("a number or max")?
                };
                if from > to || from < min || to > max {
                    return self.fail(line, format!("{from} to {to} is no range of numbers"));
                }
                let overlap = reserved
                    .ranges
                    .iter()
                    .any(|&(a, b, _)| from <= b && a <= to);
                if overlap {
                    return self.fail(line, format!("{from} to {to} is reserved twice"));
                }
                reserved.ranges.push((from, to, line));
            }
            if !self.accept(',') {
                return self.expect(';');
            }
        }
    }

    fn check_reserved(&self, reserved: &Reserved, name: &Name, number: i64) -> Result<(), Error> {
        if let Some((_, line)) = reserved.names.iter().find(|(other, _)| *other == name.text) {
            return self.fail(
                name.line,
                format!("the name \"{}\" is reserved (line {line})", name.text),
            );
        }
        if let Some((_, _, line)) = reserved
            .ranges
            .iter()
            .find(|(from, to, _)| (*from..=*to).contains(&number))
        {
            return self.fail(
                name.line,
                format!("\"{}\": {number} is reserved (line {line})", name.text),
            );
        }
        Ok(())
    }

    fn check_fields(&self, message: &Message) -> Result<(), Error> {
        for (index, field) in message.fields.iter().enumerate() {
            self.check_reserved(&message.reserved, &field.name, i64::from(field.number))?;
            for other in &message.fields[..index] {
                if other.number == field.number {
                    return self.fail(
                        field.name.line,
                        format!(
                            "fields \"{}\" and \"{}\" have the same number {}",
                            other.name.text, field.name.text, field.number
                        ),
                    );
                }
                if json_name(&other.name.text) == json_name(&field.name.text) {
                    return self.fail(
                        field.name.line,
                        format!(
                            "fields \"{}\" and \"{}\" have the same name in JSON",
                            other.name.text, field.name.text
                        ),
                    );
                }
            }
        }
        Ok(())
    }

    fn enumeration(&mut self, comment: Vec<String>) -> Result<Enum, Error> {
        let mut result = Enum {
            name: Name {
                comment,
                ..self.name("an enum's name")?
            },
            ..Enum::default()
        };
        self.expect('{')?;
        while !self.accept('}') {
            if self.accept(';') {
                continue;
            }
            let line = self.line();
            if self.is_word("option") && !self.then('=') {
                self.next();
                let (name, value) = self.option_value(&["allow_alias", "deprecated"])?;
                let on = self.boolean(line, &name, &value)?;
                if name == "allow_alias" {
                    result.allow_alias = on;
                }
                self.expect(';')?;
            } else if self.is_word("reserved") && !self.then('=') {
                self.next();
                self.reserved(
                    &mut result.reserved,
                    i64::from(i32::MIN),
                    i64::from(i32::MAX),
                )?;
            } else {
                let name = self.name("a value's name")?;
                self.expect('=')?;
                let number = self.integer("a value")?;
                let Ok(number) = i32::try_from(number) else {
                    return self.fail(line, format!("\"{}\": {number} is out of range", name.text));
                };
                self.bracketed(&["deprecated"])?;
                self.expect(';')?;
                result.values.push((name, number));
            }
        }
        self.check_enum(&result)?;
        Ok(result)
    }

    fn check_enum(&self, result: &Enum) -> Result<(), Error> {
        match result.values.first() {
            Some((_, 0)) => {}
            Some((name, _)) => {
                return self.fail(name.line, "the first value of a proto3 enum must be 0");
            }
            None => return self.fail(result.name.line, "an enum needs a value"),
        }
        for (index, (name, number)) in result.values.iter().enumerate() {
            self.check_reserved(&result.reserved, name, i64::from(*number))?;
            for (other, other_number) in &result.values[..index] {
                if number == other_number && !result.allow_alias {
                    return self.fail(
                        name.line,
                        format!(
                            "\"{}\" and \"{}\" are both {number}; option allow_alias allows it",
                            other.text, name.text
                        ),
                    );
                }
            }
        }
        Ok(())
    }

    fn service(&mut self, comment: Vec<String>) -> Result<Service, Error> {
        let mut service = Service {
            name: Name {
                comment,
                ..self.name("a service's name")?
            },
            full_name: String::new(),
            methods: Vec::new(),
        };
        self.expect('{')?;
        while !self.accept('}') {
            if self.accept(';') {
                continue;
            }
            let line = self.line();
            let comment = self.tokens[self.at].comment.clone();
            if self.accept_word("option") {
                self.option(&["deprecated"])?;
                continue;
            }
            if !self.accept_word("rpc") {
                return self.fail(line, format!("expected rpc, found {}", shown(self.peek())));
            }
            service.methods.push(self.method(comment)?);
        }
        Ok(service)
    }

    fn method(&mut self, comment: Vec<String>) -> Result<Method, Error> {
        let name = Name {
            comment,
            ..self.name("a method's name")?
        };
        let (request, client_streams) = self.method_type()?;
        let line = self.line();
        if !self.accept_word("returns") {
            return self.fail(line, "expected returns");
        }
        let (response, server_streams) = self.method_type()?;
        if self.accept('{') {
            while !self.accept('}') {
                if self.accept(';') {
                    continue;
                }
                let line = self.line();
                if !self.accept_word("option") {
                    return self.fail(line, "only options belong in a method");
                }
                self.option(&["deprecated", "idempotency_level"])?;
            }
        } else {
            self.expect(';')?;
        }
        Ok(Method {
            name,
            request,
            response,
            client_streams,
            server_streams,
        })
    }

    fn method_type(&mut self) -> Result<(Kind, bool), Error> {
        self.expect('(')?;
        let streams = self.accept_word("stream");
        let name = self.dotted("a message", true)?;
        self.expect(')')?;
        Ok((Kind::Named(name), streams))
    }
}

/// Options that say something to other languages' generators only.
const FILE_OPTIONS: &[&str] = &[
    "java_package",
    "java_outer_classname",
    "java_multiple_files",
    "java_string_check_utf8",
    "go_package",
    "optimize_for",
    "cc_enable_arenas",
    "objc_class_prefix",
    "csharp_namespace",
    "swift_prefix",
    "php_class_prefix",
    "php_namespace",
    "php_metadata_namespace",
    "ruby_package",
    "deprecated",
];

const FIELD_OPTIONS: &[&str] = &["packed", "deprecated", "json_name"];

fn shown(token: &Token) -> String {
    match token {
        Token::Word(word) => format!("\"{word}\""),
        Token::Integer(value) => value.to_string(),
        Token::Float => "a fraction".to_owned(),
        Token::Text(_) => "a string".to_owned(),
        Token::Symbol(symbol) => format!("'{symbol}'"),
        Token::End => "the end of the file".to_owned(),
    }
}

fn kind(name: String) -> Kind {
    Kind::Scalar(match name.as_str() {
        "bool" => Scalar::Bool,
        "int32" => Scalar::Int32,
        "int64" => Scalar::Int64,
        "uint32" => Scalar::Uint32,
        "uint64" => Scalar::Uint64,
        "sint32" => Scalar::Sint32,
        "sint64" => Scalar::Sint64,
        "fixed32" => Scalar::Fixed32,
        "fixed64" => Scalar::Fixed64,
        "sfixed32" => Scalar::Sfixed32,
        "sfixed64" => Scalar::Sfixed64,
        "float" => Scalar::Float,
        "double" => Scalar::Double,
        "string" => return Kind::String,
        "bytes" => return Kind::Bytes,
        _ => return Kind::Named(name),
    })
}

/// The name protobuf's JSON mapping gives a field: `foo_bar` is `fooBar`.
fn json_name(name: &str) -> String {
    let mut json = String::new();
    let mut upper = false;
    for c in name.chars() {
        if c == '_' {
            upper = true;
        } else {
            json.push(if upper { c.to_ascii_uppercase() } else { c });
            upper = false;
        }
    }
    json
}
