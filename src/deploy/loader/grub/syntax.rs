//! GRUB's script language, as far as `grub.cfg` files are written in it: words with quotes and variables, `if`, functions
//! and blocks. Loops are passed over here, and refused by who runs them.
use std::iter::Peekable;
use std::rc::Rc;
use std::str::Chars;

/// How deep blocks and conditions may be in each other.
const DEPTH: usize = 32;

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    /// A variable; in quotes it stays in one word.
    Variable {
        name: String,
        quoted: bool,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    pub pieces: Vec<Piece>,
    /// Something of it stood in quotes: it is a word even if it is empty.
    pub quoted: bool,
}

#[derive(Debug)]
pub enum Command {
    Simple(Vec<Word>),
    If {
        /// Conditions, and what is done when they hold.
        branches: Vec<(Vec<Command>, Vec<Command>)>,
        otherwise: Vec<Command>,
    },
    /// `menuentry` or `submenu`, its words first.
    Menu(Vec<Word>, Rc<[Command]>),
    Function(String, Rc<[Command]>),
    /// `for`, `while` or `until`.
    Loop,
}

enum Token {
    Word(Word),
    /// The end of a line, or `;`.
    End,
    Open,
    Close,
    Over,
}

/// The commands of a script.
///
/// # Errors
/// The line where it is no script, and why.
pub fn parse(script: &str) -> Result<Vec<Command>, (u32, &'static str)> {
    let mut parser = Parser {
        chars: script.chars().peekable(),
        line: 1,
        ahead: None,
    };
    let commands = parser.list(&[], false, 0);
    let line = parser.line;
    commands
        .map(|(commands, _)| commands)
        .map_err(|why| (line, why))
}

struct Parser<'a> {
    chars: Peekable<Chars<'a>>,
    line: u32,
    ahead: Option<Token>,
}

impl Parser<'_> {
    /// Commands up to one of the words `ends`, which is given, or up to `}` if it is a `block`.
    fn list(
        &mut self,
        ends: &[&'static str],
        block: bool,
        depth: usize,
    ) -> Result<(Vec<Command>, &'static str), &'static str> {
        if depth > DEPTH {
            return Err("blocks too deep in each other");
        }
        let mut commands = Vec::new();
        loop {
            let word = match self.token()? {
                Token::End => continue,
                Token::Word(word) => word,
                Token::Close if block => return Ok((commands, "")),
                Token::Over if !block && ends.is_empty() => return Ok((commands, "")),
                Token::Over => return Err("it ends inside a block"),
                Token::Open | Token::Close => return Err("a brace where no block is"),
            };
            let plain = word.plain().unwrap_or_default();
            if let Some(end) = ends.iter().find(|end| **end == plain) {
                return Ok((commands, end));
            }
            commands.push(match plain {
                "if" => self.condition(depth)?,
                "for" | "while" | "until" => {
                    self.list(&["do"], false, depth + 1)?;
                    self.list(&["done"], false, depth + 1)?;
                    Command::Loop
                }
                "then" | "elif" | "else" | "fi" | "do" | "done" => {
                    return Err("a word of a condition or a loop where none is");
                }
                "function" => {
                    let Token::Word(name) = self.token()? else {
                        return Err("a function without a name");
                    };
                    let name = name.plain().unwrap_or_default().to_owned();
                    Command::Function(name, self.block(depth)?)
                }
                "menuentry" | "submenu" => {
                    let words = self.words(word)?;
                    Command::Menu(words, self.block(depth)?)
                }
                _ => Command::Simple(self.words(word)?),
            });
        }
    }

    fn condition(&mut self, depth: usize) -> Result<Command, &'static str> {
        let (mut branches, mut otherwise) = (Vec::new(), Vec::new());
        loop {
            let (condition, _) = self.list(&["then"], false, depth + 1)?;
            let (then, end) = self.list(&["elif", "else", "fi"], false, depth + 1)?;
            branches.push((condition, then));
            if end == "else" {
                (otherwise, _) = self.list(&["fi"], false, depth + 1)?;
            }
            if end != "elif" {
                break;
            }
        }
        Ok(Command::If {
            branches,
            otherwise,
        })
    }

    fn block(&mut self, depth: usize) -> Result<Rc<[Command]>, &'static str> {
        loop {
            match self.token()? {
                Token::End => {}
                Token::Open => break,
                _ => return Err("no block where one is needed"),
            }
        }
        let (commands, _) = self.list(&[], true, depth + 1)?;
        Ok(commands.into())
    }

    /// The words of a command that begins with `word`.
    fn words(&mut self, word: Word) -> Result<Vec<Word>, &'static str> {
        let mut words = vec![word];
        loop {
            match self.token()? {
                Token::Word(word) => words.push(word),
                end => {
                    self.ahead = Some(end);
                    return Ok(words);
                }
            }
        }
    }

    fn token(&mut self) -> Result<Token, &'static str> {
        if let Some(token) = self.ahead.take() {
            return Ok(token);
        }
        loop {
            let Some(&next) = self.chars.peek() else {
                return Ok(Token::Over);
            };
            let token = match next {
                '\n' => {
                    self.line += 1;
                    Token::End
                }
                ';' => Token::End,
                '{' => Token::Open,
                '}' => Token::Close,
                '#' => {
                    while self.chars.next_if(|c| *c != '\n').is_some() {}
                    continue;
                }
                c if c.is_whitespace() => {
                    self.chars.next();
                    continue;
                }
                _ => match self.word()? {
                    Some(word) => return Ok(Token::Word(word)),
                    None => continue,
                },
            };
            self.chars.next();
            return Ok(token);
        }
    }

    /// A word; `None`: nothing but an end of a line that was taken back.
    fn word(&mut self) -> Result<Option<Word>, &'static str> {
        let mut word = Word::default();
        while let Some(c) = self
            .chars
            .next_if(|c| !c.is_whitespace() && !matches!(c, ';' | '}'))
        {
            match c {
                '\'' => {
                    word.quoted = true;
                    loop {
                        match self.inside()? {
                            '\'' => break,
                            c => word.push(c),
                        }
                    }
                }
                '"' => {
                    word.quoted = true;
                    loop {
                        match self.inside()? {
                            '"' => break,
                            '$' => self.variable(&mut word, true)?,
                            '\\' => match self.inside()? {
                                '\n' => {}
                                c @ ('$' | '"' | '\\') => word.push(c),
                                c => {
                                    word.push('\\');
                                    word.push(c);
                                }
                            },
                            c => word.push(c),
                        }
                    }
                }
                '$' => self.variable(&mut word, false)?,
                '\\' => match self.inside()? {
                    '\n' => {}
                    c => word.push(c),
                },
                c => word.push(c),
            }
        }
        Ok((word.quoted || !word.pieces.is_empty()).then_some(word))
    }

    /// The next character of something that does not end here.
    fn inside(&mut self) -> Result<char, &'static str> {
        let c = self.chars.next().ok_or("it ends inside quotes")?;
        if c == '\n' {
            self.line += 1;
        }
        Ok(c)
    }

    fn variable(&mut self, word: &mut Word, quoted: bool) -> Result<(), &'static str> {
        let mut name = String::new();
        if self.chars.next_if_eq(&'{').is_some() {
            loop {
                match self.inside()? {
                    '}' => break,
                    c => name.push(c),
                }
            }
        } else if let Some(special) = self.chars.next_if(|c| matches!(c, '?' | '*' | '#' | '@')) {
            name.push(special);
        } else {
            while let Some(c) = self
                .chars
                .next_if(|c| c.is_ascii_alphanumeric() || *c == '_')
            {
                name.push(c);
            }
        }
        match name.is_empty() {
            true => word.push('$'),
            false => word.pieces.push(Piece::Variable { name, quoted }),
        }
        Ok(())
    }
}

impl Word {
    fn push(&mut self, c: char) {
        match self.pieces.last_mut() {
            Some(Piece::Text(text)) => text.push(c),
            _ => self.pieces.push(Piece::Text(c.to_string())),
        }
    }

    /// A word without quotes and variables: what may be a keyword.
    fn plain(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [Piece::Text(text)] if !self.quoted => Some(text),
            _ => None,
        }
    }
}
