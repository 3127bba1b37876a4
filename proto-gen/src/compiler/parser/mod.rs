//! The proto3 grammar (<https://protobuf.dev/reference/protobuf/proto3-spec/>), and what one
//! file alone can be checked for.
mod enumeration;
mod message;
mod service;

use super::Error;
use super::lexer::{self, Spanned, Token};
use super::schema::{File, Import, Name};

/// The highest field number.
const MAX_FIELD: i64 = (1 << 29) - 1;

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
