//! Enums, and what enums and messages reserve.
use super::super::Error;
use super::super::lexer::Token;
use super::super::schema::{Enum, Name, Reserved};
use super::Parser;

impl Parser<'_> {
    pub(super) fn enumeration(&mut self, comment: Vec<String>) -> Result<Enum, Error> {
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

    pub(super) fn reserved(
        &mut self,
        reserved: &mut Reserved,
        min: i64,
        max: i64,
    ) -> Result<(), Error> {
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

    pub(super) fn check_reserved(
        &self,
        reserved: &Reserved,
        name: &Name,
        number: i64,
    ) -> Result<(), Error> {
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
}
