//! Services.
use super::super::Error;
use super::super::schema::{Kind, Method, Name, Service};
use super::{Parser, shown};

impl Parser<'_> {
    pub(super) fn service(&mut self, comment: Vec<String>) -> Result<Service, Error> {
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
