use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::sys::fs::tests::scratch;

const TOKEN: &str =
    "bcjt_jt_01k5wqb3zt9v7e8r2m4n6p0s1d.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn file(content: &str, mode: u32) -> TokenFile {
    let path = scratch("token").join("join-token");
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    TokenFile::new(path)
}

fn refusal(file: &TokenFile) -> FileRefusal {
    match file.read() {
        Err(TokenError::File(path, refusal)) => {
            assert_eq!(path, file.path());
            refusal
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("accepted"),
    }
}

fn text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

#[test]
fn a_token_has_a_public_id_and_blanks_around_it_do_not_matter() {
    for form in [TOKEN.to_owned(), format!(" {TOKEN}\r\n")] {
        let token = JoinToken::parse(&form).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(token.as_str(), TOKEN);
        assert_eq!(token.id(), "jt_01k5wqb3zt9v7e8r2m4n6p0s1d");
    }
}

#[test]
fn every_malformed_token_has_its_own_error_that_repeats_none_of_it() {
    let long = format!("{TOKEN}A");
    let two = format!("{TOKEN} {TOKEN}");
    let plus = TOKEN.replace("AAAA", "A+AA");
    let upper = TOKEN.replace("01k5w", "01K5W");
    let letter = TOKEN.replace("01k5w", "01l5w");
    let big = TOKEN.replace("jt_01", "jt_81");
    for (form, want) in [
        ("", Malformed::Empty),
        (" \n", Malformed::Empty),
        ("hunter2", Malformed::Prefix),
        ("bcjt_", Malformed::Truncated),
        ("bcjt_jt_01k5wqb3", Malformed::Truncated),
        (&TOKEN[..TOKEN.len() - 1], Malformed::Truncated),
        (&TOKEN[..35], Malformed::Truncated),
        (&long, Malformed::TooLong),
        (&two, Malformed::Whitespace),
        (&plus, Malformed::SecretCharacter),
        (&upper, Malformed::Id),
        (&letter, Malformed::Id),
        (&big, Malformed::Id),
        ("bcjt_jt_.x", Malformed::Id),
        ("bcjt_jt_é.x", Malformed::Id),
    ] {
        let Err(error) = JoinToken::parse(form) else {
            panic!("accepted {form}")
        };
        assert_eq!(error, want, "{form}");
        assert!(PREFIX.starts_with(form.trim()) || !error.to_string().contains(form));
    }
    for end in 1..TOKEN.len() {
        assert!(
            matches!(JoinToken::parse(&TOKEN[..end]), Err(Malformed::Truncated)),
            "{end}"
        );
    }
}

#[test]
fn the_first_line_of_standard_input_is_the_token() {
    for input in [
        TOKEN.to_owned(),
        format!("{TOKEN}\n"),
        format!("{TOKEN}\r\nmore\n"),
        format!("{TOKEN}\n{}", "x".repeat(9000)),
    ] {
        let token = from_first_line(input.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(token.as_str(), TOKEN);
    }
    assert!(matches!(from_first_line(&b""[..]), Err(TokenError::None)));
    assert!(matches!(
        from_first_line(&b"\n"[..]),
        Err(TokenError::Stdin(Malformed::Empty))
    ));
    assert!(matches!(
        from_first_line(&b"\xff\n"[..]),
        Err(TokenError::Stdin(Malformed::NotUtf8))
    ));
    assert!(matches!(
        from_first_line("x".repeat(9000).as_bytes()),
        Err(TokenError::LongLine)
    ));
}

#[test]
fn a_line_that_comes_in_pieces_is_read_whole() {
    struct Pieces<'a>(&'a [u8]);
    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let (piece, rest) = self.0.split_at(self.0.len().min(7).min(buffer.len()));
            buffer[..piece.len()].copy_from_slice(piece);
            self.0 = rest;
            Ok(piece.len())
        }
    }
    let line = format!("{TOKEN}\n");
    assert_eq!(
        from_first_line(Pieces(line.as_bytes()))
            .unwrap_or_else(|e| panic!("{e}"))
            .as_str(),
        TOKEN
    );
}

#[test]
fn a_token_file_is_its_owners_alone() {
    for mode in [0o600, 0o400] {
        assert_eq!(
            file(TOKEN, mode)
                .read()
                .unwrap_or_else(|e| panic!("{e}"))
                .as_str(),
            TOKEN
        );
    }
    for mode in [
        0o644, 0o640, 0o620, 0o604, 0o700, 0o4600, 0o200, 0o500, 0o660,
    ] {
        assert!(matches!(refusal(&file(TOKEN, mode)), FileRefusal::Mode(found) if found == mode));
    }
    let error = file(TOKEN, 0o644).read().err().unwrap();
    assert!(
        text(&error)
            .ends_with("is refused: its mode is 0644, not 0600 or 0400; run chmod 0600 on it")
    );
}

#[test]
fn a_token_file_of_another_user_is_refused() {
    if user::euid() != 0 {
        return;
    }
    let file = file(TOKEN, 0o600);
    std::os::unix::fs::chown(file.path(), Some(12345), None).unwrap();
    assert!(matches!(refusal(&file), FileRefusal::Owner(12345)));
}

#[test]
fn a_token_file_is_at_most_4_kib() {
    assert!(matches!(
        refusal(&file(&"x".repeat(MAX_LENGTH + 1), 0o600)),
        FileRefusal::TooLarge
    ));
    let padded = format!("{TOKEN}{}", "\n".repeat(MAX_LENGTH - TOKEN.len()));
    assert!(file(&padded, 0o600).read().is_ok());
    assert!(matches!(
        refusal(&file("", 0o600)),
        FileRefusal::Token(Malformed::Empty)
    ));
    assert!(matches!(
        refusal(&file("hunter2", 0o600)),
        FileRefusal::Token(Malformed::Prefix)
    ));
}

#[test]
fn a_missing_file_a_directory_and_a_fifo_are_refused_without_waiting() {
    let dir = scratch("token-kinds");
    assert!(
        matches!(refusal(&TokenFile::new(dir.join("none"))), FileRefusal::Open(error) if error.is_missing())
    );
    std::fs::create_dir(dir.join("dir")).unwrap();
    assert!(matches!(
        refusal(&TokenFile::new(dir.join("dir"))),
        FileRefusal::Open(_)
    ));
    let fifo = dir.join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert!(matches!(
        refusal(&TokenFile::new(fifo)),
        FileRefusal::Open(_)
    ));
    assert!(matches!(
        refusal(&TokenFile::new("/")),
        FileRefusal::Open(_)
    ));
}

#[test]
fn a_secret_volumes_symlink_is_followed_and_one_that_leads_elsewhere_is_not() {
    let dir = scratch("token-links");
    std::fs::create_dir(dir.join("..2026_09_26")).unwrap();
    let real = dir.join("..2026_09_26/join-token");
    std::fs::write(&real, TOKEN).unwrap();
    std::fs::set_permissions(&real, PermissionsExt::from_mode(0o400)).unwrap();
    symlink("..2026_09_26", dir.join("..data")).unwrap();
    symlink("..data/join-token", dir.join("join-token")).unwrap();
    let volume = TokenFile::new(dir.join("join-token"));
    assert!(volume.read().is_ok());

    let outside = file(TOKEN, 0o600);
    symlink(outside.path(), dir.join("absolute")).unwrap();
    symlink("../elsewhere", dir.join("upwards")).unwrap();
    for name in ["absolute", "upwards"] {
        let FileRefusal::Open(error) = refusal(&TokenFile::new(dir.join(name))) else {
            panic!("{name}")
        };
        assert!(matches!(error.cause(), fs::Cause::Escapes), "{name}");
    }

    volume.delete().unwrap();
    assert!(!real.exists() && std::fs::symlink_metadata(volume.path()).is_err());
}

#[test]
fn a_spent_token_file_is_deleted_and_nothing_else_is() {
    let spent = file(TOKEN, 0o600);
    spent.delete().unwrap();
    assert!(!spent.path().exists());
    spent.delete().unwrap();

    let other = file("root:x:0:0", 0o600);
    assert!(other.delete().is_err());
    let open = file(TOKEN, 0o644);
    assert!(open.delete().is_err());
    assert!(other.path().exists() && open.path().exists());
}

#[test]
fn a_file_that_took_the_tokens_name_is_not_deleted() {
    let token = file(TOKEN, 0o600);
    let open = token.open().unwrap_or_else(|error| panic!("{error}"));
    // The kernel follows the open file to its new name, which another file then takes over.
    let moved = token.path().with_file_name("moved");
    std::fs::rename(token.path(), &moved).unwrap();
    std::fs::write(token.path(), "precious").unwrap();
    std::fs::rename(token.path(), &moved).unwrap();
    assert!(token.unlink(&open).is_err());
    assert_eq!(std::fs::read(&moved).unwrap(), b"precious");
}
