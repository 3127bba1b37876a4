use super::*;
use crate::store::tests::TempDir;

fn write(dir: &TempDir, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
    Dir::open(&dir.0)
        .unwrap()
        .write_atomic(name, bytes, mode)
        .unwrap();
    dir.0.join(name)
}

fn key_lock(byte: u8) -> Lock {
    Lock::Key(Zeroizing::new(vec![byte; 32]))
}

#[test]
fn a_bundle_read_back_opens_to_the_keys_its_public_half_names() {
    let dir = TempDir::new();
    let path = dir.0.join("pki.json");
    let lock = key_lock(1);
    let bundle = Bundle::generate("example.org", true, &lock, 1_700_000_000_000).unwrap();
    bundle.write_new(&path).unwrap();
    let read = Bundle::read(&path).unwrap();
    assert_eq!(read.public, bundle.public);
    let private = read.open(&lock).unwrap();
    let spki = |pkcs8: &[u8]| KeyPair::try_from(pkcs8).unwrap().subject_public_key_info();
    assert_eq!(spki(&private.join_signing), read.public.join_signing_key);
    assert_eq!(
        spki(&private.join_encryption),
        read.public.join_encryption_key
    );
    assert_eq!(
        Some(spki(&private.serving_ca)),
        issue::spki_of(&read.public.serving_ca)
    );
    assert_eq!(
        Some(spki(&private.node_ca)),
        issue::spki_of(&read.public.node_ca)
    );
    assert!(private.command_root.is_some());
    assert_eq!(read.public.command_root_sha256().unwrap().len(), 64);
}

#[test]
fn a_bundle_is_never_overwritten() {
    let dir = TempDir::new();
    let path = write(&dir, "pki.json", b"mine", 0o600);
    let bundle = Bundle::generate("t", false, &key_lock(1), 0).unwrap();
    let error = bundle.write_new(&path).err().unwrap();
    assert!(error.to_string().starts_with("FILE_EXISTS"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 1);
}

#[test]
fn a_wrong_passphrase_or_key_does_not_open() {
    let dir = TempDir::new();
    let right = Lock::from_passphrase_file(&write(&dir, "p", b"correct horse\n", 0o600)).unwrap();
    let same = Lock::from_passphrase_file(&write(&dir, "q", b"correct horse", 0o400)).unwrap();
    let wrong = Lock::from_passphrase_file(&write(&dir, "w", b"correct hors", 0o600)).unwrap();
    let bundle = Bundle::generate("t", false, &right, 0).unwrap();
    assert_eq!(bundle.sealed_with(), "argon2id");
    assert!(bundle.open(&same).is_ok());
    assert!(matches!(bundle.open(&wrong), Err(SealError::DoesNotOpen)));
    assert!(matches!(
        bundle.open(&key_lock(1)),
        Err(SealError::OtherLock {
            wants: "passphrase-file"
        })
    ));
    let bundle = Bundle::generate("t", false, &key_lock(1), 0).unwrap();
    assert!(matches!(
        bundle.open(&key_lock(2)),
        Err(SealError::DoesNotOpen)
    ));
    assert!(matches!(
        bundle.open(&right),
        Err(SealError::OtherLock { wants: "key-file" })
    ));
}

#[test]
fn a_changed_public_half_or_ciphertext_does_not_open() {
    let lock = key_lock(1);
    let fresh = || Bundle::generate("t", true, &lock, 5).unwrap();
    let other = fresh();
    let changes: [&dyn Fn(&mut Bundle); 7] = [
        &|b| b.public.serving_ca = other.public.serving_ca.clone(),
        &|b| b.public.join_signing_key = other.public.join_signing_key.clone(),
        &|b| b.public.join_encryption_key = other.public.join_encryption_key.clone(),
        &|b| b.public.command_root = None,
        &|b| b.public.trust_domain.push('x'),
        &|b| b.public.trust_version += 1,
        &|b| b.sealed = other.sealed.clone(),
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut bundle = fresh();
        assert!(bundle.open(&lock).is_ok());
        change(&mut bundle);
        assert!(
            matches!(bundle.open(&lock), Err(SealError::DoesNotOpen)),
            "change {index}"
        );
    }
}

#[test]
fn files_that_open_a_bundle_must_be_their_owners_alone() {
    let dir = TempDir::new();
    for mode in [0o640, 0o604, 0o644, 0o660] {
        let path = write(&dir, "key", &[1; 32], mode);
        assert!(
            matches!(Lock::from_key_file(&path), Err(SealError::Mode { .. })),
            "{mode:o}"
        );
        assert!(matches!(
            Lock::from_passphrase_file(&path),
            Err(SealError::Mode { .. })
        ));
    }
    for length in [0, 31, 33, 64] {
        let path = write(&dir, "key", &vec![1; length], 0o600);
        assert!(Lock::from_key_file(&path).is_err(), "{length}");
    }
    assert!(Lock::from_passphrase_file(&write(&dir, "p", b"\n", 0o600)).is_err());
    assert!(Lock::from_key_file(&dir.0.join("missing")).is_err());
    let made = dir.0.join("made");
    assert!(Lock::from_key_file_or_new(&made).is_ok());
    let first = std::fs::read(&made).unwrap();
    assert!(Lock::from_key_file_or_new(&made).is_ok());
    assert_eq!(std::fs::read(&made).unwrap(), first);
    assert_ne!(first, vec![0; 32]);
}

#[test]
fn what_is_no_bundle_is_refused_with_its_reason() {
    let text = Bundle::generate("t", false, &key_lock(1), 0)
        .unwrap()
        .to_json();
    assert!(Bundle::parse(text.as_bytes()).is_ok());
    for bad in [
        String::new(),
        "{}".to_owned(),
        "\u{0}".to_owned(),
        text.replace("better-compute-pki", "other"),
        text.replace("\"version\":1", "\"version\":3"),
        text.replace("BEGIN CERTIFICATE", "BEGIN PUBLIC KEY"),
        text[..text.len() / 2].to_owned(),
    ] {
        assert!(Bundle::parse(bad.as_bytes()).is_err(), "{bad:.60}");
    }
    for bad in ["", "Upper", "a b", "a/b", &"x".repeat(256)] {
        assert!(Bundle::generate(bad, false, &key_lock(1), 0).is_err());
    }
}
