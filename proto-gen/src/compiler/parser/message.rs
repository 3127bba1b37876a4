//! Messages: fields, oneofs, maps.
use super::super::Error;
use super::super::lexer::Token;
use super::super::schema::{Field, Kind, Label, Message, Name, Scalar};
use super::{FieldOptions, MAX_FIELD, Parser};

/// How deep messages may be declared within each other.
const MAX_NESTING: u32 = 32;

const FIELD_OPTIONS: &[&str] = &["packed", "deprecated", "json_name"];

impl Parser<'_> {
    pub(super) fn message(&mut self, comment: Vec<String>, depth: u32) -> Result<Message, Error> {
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
