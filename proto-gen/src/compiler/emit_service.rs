//! Writes a service as Rust.
use std::fmt::Write;

use super::emit::{element, emit_comment};
use super::names::{constant, field_name, module_name};
use super::schema::Service;

/// A module a service: its methods, a client over any [`crate::stub::Channel`], and a trait of
/// handlers for any [`crate::stub::Registry`].
pub(super) fn emit_service(out: &mut String, service: &Service) {
    out.push('\n');
    emit_comment(out, "", &service.name.comment);
    let _ = writeln!(
        out,
        "#[allow(clippy::all, unused_variables)]\npub mod {} {{",
        module_name(&service.name.text)
    );
    for method in &service.methods {
        let constructor = match (method.client_streams, method.server_streams) {
            (false, false) => "unary",
            (true, false) => "client_streaming",
            (false, true) => "server_streaming",
            (true, true) => "bidi",
        };
        emit_comment(out, "    ", &method.name.comment);
        let _ = writeln!(
            out,
            "    pub const {}: ::proto_gen::codec::Method<super::{}, super::{}> =
        ::proto_gen::codec::Method::{constructor}(\"/{}/{}\");",
            constant(&method.name.text),
            element(&method.request),
            element(&method.response),
            service.full_name,
            method.name.text,
        );
    }
    emit_client(out, service);
    emit_handlers(out, service);
    out.push_str("}\n");
}

fn emit_client(out: &mut String, service: &Service) {
    out.push_str(
        "
    /// Calls the methods over a channel.
    #[derive(Clone, Debug)]
    pub struct Client<C>(pub C);

    impl<C: ::proto_gen::stub::Channel> Client<C> {
",
    );
    for method in &service.methods {
        let (request, response) = (element(&method.request), element(&method.response));
        let (name, constant) = (field_name(&method.name.text), constant(&method.name.text));
        emit_comment(out, "        ", &method.name.comment);
        let _ = if method.client_streams || method.server_streams {
            writeln!(
                out,
                "        pub async fn {name}(&self, wait: ::std::option::Option<::std::time::Duration>) -> ::std::result::Result<::proto_gen::stub::Streams<C, super::{request}, super::{response}>, C::Error> {{
            self.0.stream(&{constant}, wait).await
        }}"
            )
        } else {
            writeln!(
                out,
                "        pub async fn {name}(&self, request: &super::{request}, wait: ::std::time::Duration) -> ::std::result::Result<super::{response}, C::Error> {{
            self.0.unary(&{constant}, request, wait).await
        }}"
            )
        };
    }
    out.push_str("    }\n");
}

fn emit_handlers(out: &mut String, service: &Service) {
    out.push_str(
        "
    /// The service's handlers, to be given to [`serve`].
    pub trait Server<G: ::proto_gen::stub::Registry>: 'static {
",
    );
    for method in &service.methods {
        let (request, response) = (element(&method.request), element(&method.response));
        let name = field_name(&method.name.text);
        emit_comment(out, "        ", &method.name.comment);
        let _ = if method.client_streams || method.server_streams {
            writeln!(
                out,
                "        fn {name}(&self, context: G::Context, requests: G::Receiver<super::{request}>, responses: G::Sender<super::{response}>) -> impl ::std::future::Future<Output = ::std::result::Result<(), G::Status>>;"
            )
        } else {
            writeln!(
                out,
                "        fn {name}(&self, context: G::Context, request: super::{request}) -> impl ::std::future::Future<Output = ::std::result::Result<super::{response}, G::Status>>;"
            )
        };
    }
    out.push_str(
        "    }

    /// Registers the handlers of every method.
    pub fn serve<G: ::proto_gen::stub::Registry, S: Server<G>>(registry: &mut G, server: ::std::rc::Rc<S>) {
",
    );
    for method in &service.methods {
        let (name, constant) = (field_name(&method.name.text), constant(&method.name.text));
        let (kind, arguments) = if method.client_streams || method.server_streams {
            ("stream", "context, requests, responses")
        } else {
            ("unary", "context, request")
        };
        let _ = writeln!(
            out,
            "        let it = server.clone();
        registry.{kind}(&{constant}, move |{arguments}| {{ let it = it.clone(); async move {{ it.{name}({arguments}).await }} }});"
        );
    }
    out.push_str("    }\n");
}
