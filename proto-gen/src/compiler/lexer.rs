//! Tokens of a `.proto` file, each with its line and the comment before it.
use super::Error;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A name or a keyword, without dots.
    Word(String),
    Integer(u64),
    /// Read so that it can be refused where it stands.
    Float,
    Text(String),
    Symbol(char),
    End,
}

#[derive(Clone, Debug)]
pub(super) struct Spanned {
    pub token: Token,
    pub line: u32,
    /// The comment that ends on the line above, or on this one.
    pub comment: Vec<String>,
}

/// All tokens of `text`, an [`Token::End`] last.
pub(super) fn tokens(file: &str, text: &str) -> Result<Vec<Spanned>, Error> {
    let mut lexer = Lexer {
        file,
        rest: text.strip_prefix('\u{feff}').unwrap_or(text),
        line: 1,
        comment: Vec::new(),
        comment_end: 0,
    };
    let mut tokens: Vec<Spanned> = Vec::new();
    loop {
        lexer.skip_blanks(tokens.last().map_or(0, |token| token.line))?;
        let line = lexer.line;
        let mut comment = std::mem::take(&mut lexer.comment);
        if lexer.comment_end + 1 < line {
            comment.clear();
        }
        let token = lexer.token()?;
        let end = token == Token::End;
        tokens.push(Spanned {
            token,
            line,
            comment,
        });
        if end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    file: &'a str,
    rest: &'a str,
    line: u32,
    comment: Vec<String>,
    /// The line the last comment ended on.
    comment_end: u32,
}

impl<'a> Lexer<'a> {
    fn fail<T>(&self, line: u32, problem: impl Into<String>) -> Result<T, Error> {
        Err(Error {
            file: self.file.to_owned(),
            line,
            problem: problem.into(),
        })
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        if c == '\n' {
            self.line += 1;
        }
        Some(c)
    }

    fn take_while(&mut self, test: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !test(c)).unwrap_or(self.rest.len());
        let (head, tail) = self.rest.split_at(end);
        self.rest = tail;
        self.line += head.matches('\n').count() as u32;
        head
    }

    /// Skips blanks and comments, keeping the last block of comments; one that begins on the
    /// line of the token before it belongs to that token and is dropped.
    fn skip_blanks(&mut self, token_line: u32) -> Result<(), Error> {
        loop {
            self.take_while(|c| c.is_ascii_whitespace());
            let line = self.line;
            if self.rest.starts_with("//") {
                let text = self.take_while(|c| c != '\n');
                if self.comment_end + 1 != line {
                    self.comment.clear();
                }
                if line != token_line {
                    self.comment.push(text[2..].trim_end().to_owned());
                    self.comment_end = line;
                }
            } else if let Some(body) = self.rest.strip_prefix("/*") {
                let Some(end) = body.find("*/") else {
                    return self.fail(line, "this comment has no end");
                };
                let text = &body[..end];
                self.rest = &body[end + 2..];
                self.line += text.matches('\n').count() as u32;
                self.comment.clear();
                if line != token_line {
                    self.comment = text
                        .lines()
                        .map(|line| {
                            line.trim_start()
                                .trim_start_matches('*')
                                .trim_end()
                                .to_owned()
                        })
                        .collect();
                    self.comment_end = self.line;
                }
            } else {
                return Ok(());
            }
        }
    }

    fn token(&mut self) -> Result<Token, Error> {
        let Some(first) = self.peek() else {
            return Ok(Token::End);
        };
        if first.is_ascii_alphabetic() || first == '_' {
            let word = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
            return Ok(Token::Word(word.to_owned()));
        }
        let decimal = self.rest.chars().nth(1).is_some_and(|c| c.is_ascii_digit());
        if first.is_ascii_digit() || (first == '.' && decimal) {
            return self.number();
        }
        if first == '"' || first == '\'' {
            return self.text();
        }
        if "{}[]()<>=;,.-+:/".contains(first) {
            self.bump();
            return Ok(Token::Symbol(first));
        }
        self.fail(self.line, format!("{first:?} does not belong here"))
    }

    fn number(&mut self) -> Result<Token, Error> {
        let line = self.line;
        let mut text = self.take_while(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_');
        let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
        if !hexadecimal && text.ends_with(['e', 'E']) && self.rest.starts_with(['+', '-']) {
            self.bump();
            self.take_while(|c| c.is_ascii_digit());
            return Ok(Token::Float);
        }
        let radix = if hexadecimal {
            text = &text[2..];
            16
        } else if text.len() > 1 && text.starts_with('0') && !text.contains('.') {
            text = &text[1..];
            8
        } else {
            10
        };
        match u64::from_str_radix(text, radix) {
            Ok(value) => Ok(Token::Integer(value)),
            Err(_) if text.contains(['.', 'e', 'E']) && text.parse::<f64>().is_ok() => {
                Ok(Token::Float)
            }
            Err(_) => self.fail(line, format!("{text:?} is not a number")),
        }
    }

    fn text(&mut self) -> Result<Token, Error> {
        let line = self.line;
        let quote = self.bump();
        let mut text = Vec::new();
        loop {
            let c = self.bump();
            match c {
                None | Some('\n' | '\0') => return self.fail(line, "this string has no end"),
                Some('\\') => {
                    let escaped = self.escape(line)?;
                    text.extend_from_slice(&escaped);
                }
                Some(_) if c == quote => break,
                Some(c) => text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        match String::from_utf8(text) {
            Ok(text) => Ok(Token::Text(text)),
            Err(_) => self.fail(line, "this string is not UTF-8"),
        }
    }

    fn escape(&mut self, line: u32) -> Result<Vec<u8>, Error> {
        Ok(vec![match self.bump() {
            Some('n') => b'\n',
            Some('r') => b'\r',
            Some('t') => b'\t',
            Some(c @ ('\\' | '\'' | '"' | '?')) => c as u8,
            _ => return self.fail(line, "this escape in a string is not supported"),
        }])
    }
}
