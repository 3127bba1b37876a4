//! Why an image was not built: what was being done, and what went wrong.
use std::error::Error;
use std::fmt;
use std::path::Path;

/// One step that failed. The message says what was tried and on what; the source, if there is one, why.
#[derive(Debug)]
pub struct Problem {
    what: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Problem {
    /// A step that failed of itself.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            source: None,
        }
    }

    /// "cannot WHAT PATH", because of `source`.
    pub fn with(what: &str, path: &Path, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            what: format!("cannot {what} {}", path.display()),
            source: Some(source.into()),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for Problem {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
