//! What a `.proto` file says, as a tree.

#[derive(Clone, Debug)]
pub(super) struct File {
    /// As it was named or imported.
    pub name: String,
    /// Empty when there is none.
    pub package: String,
    pub imports: Vec<Import>,
    pub messages: Vec<Message>,
    pub enums: Vec<Enum>,
    pub services: Vec<Service>,
}

#[derive(Clone, Debug)]
pub(super) struct Import {
    pub path: String,
    pub line: u32,
    pub public: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    pub name: Name,
    /// The full name, and the Rust name; given by [`super::resolve`].
    pub full_name: String,
    pub rust_name: String,
    pub fields: Vec<Field>,
    pub oneofs: Vec<Name>,
    pub messages: Vec<Message>,
    pub enums: Vec<Enum>,
    pub reserved: Reserved,
}

/// A declared name, where it stands and the comment before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Name {
    pub text: String,
    pub line: u32,
    pub comment: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Field {
    pub name: Name,
    pub number: u32,
    pub label: Label,
    pub kind: Kind,
    /// For repeated numbers; proto3 packs unless told otherwise.
    pub packed: bool,
    /// A message that would otherwise contain itself; found by [`super::resolve`].
    pub boxed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    /// No presence, but for messages.
    Singular,
    Optional,
    Repeated,
    /// A map with keys of this type; the field's kind is that of its values.
    Map(Scalar),
    /// A member of the message's oneof with this index.
    Oneof(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Scalar(Scalar),
    String,
    Bytes,
    /// As written, not yet resolved.
    Named(String),
    /// By Rust name.
    Message(String),
    /// By Rust name.
    Enum(String),
}

/// The numeric scalars (and `string`, as a map's key only).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Bool,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Sint32,
    Sint64,
    Fixed32,
    Fixed64,
    Sfixed32,
    Sfixed64,
    Float,
    Double,
    StringKey,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Enum {
    pub name: Name,
    pub rust_name: String,
    pub values: Vec<(Name, i32)>,
    pub allow_alias: bool,
    pub reserved: Reserved,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Reserved {
    /// Both ends included.
    pub ranges: Vec<(i64, i64, u32)>,
    pub names: Vec<(String, u32)>,
}

#[derive(Clone, Debug)]
pub(super) struct Service {
    pub name: Name,
    pub full_name: String,
    pub methods: Vec<Method>,
}

#[derive(Clone, Debug)]
pub(super) struct Method {
    pub name: Name,
    pub request: Kind,
    pub response: Kind,
    pub client_streams: bool,
    pub server_streams: bool,
}
