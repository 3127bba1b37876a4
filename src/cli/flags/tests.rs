use super::*;

fn run(_: &Args) -> Result<ExitCode, Failure> {
    Ok(ExitCode::SUCCESS)
}

static ROOT: Command = Command::group(
    "bcd",
    "test",
    &[
        Command::new(
            "join",
            "joins",
            &[
                Flag::value("config", "PATH", "the file"),
                Flag::switch("reset", "first\nsecond"),
            ],
            run,
        )
        .stray("never from arguments"),
        Command::group(
            "nodes",
            "lists",
            &[Command::new("show", "shows", &[], run).positionals(&["NODE"])],
        ),
        Command::new(
            "events",
            "follows",
            &[Flag::values("kind", "KIND", "one of many")],
            run,
        )
        .positionals(&["FIRST", "[NODE]"]),
        Command::new("version", "says", &[], run),
    ],
);

fn parse_words(words: &[&str]) -> Result<Parsed, Refusal> {
    parse(
        &ROOT,
        std::iter::once("bcd")
            .chain(words.iter().copied())
            .map(OsString::from),
    )
}

fn args(words: &[&str]) -> Args {
    match parse_words(words) {
        Ok(Parsed::Run(_, args)) => args,
        Ok(Parsed::Help(_)) => panic!("help"),
        Err(refusal) => panic!("{}", refusal.why),
    }
}

fn refusal(words: &[&str]) -> Refusal {
    match parse_words(words) {
        Err(refusal) => refusal,
        Ok(_) => panic!("accepted {words:?}"),
    }
}

#[test]
fn both_forms_of_a_value_and_switches_are_read() {
    assert_eq!(
        args(&["join", "--config", "/x"]).value("config"),
        Some("/x")
    );
    assert_eq!(
        args(&["join", "--config=/x=y"]).value("config"),
        Some("/x=y")
    );
    assert!(args(&["join", "--reset"]).has("reset"));
    assert!(!args(&["join"]).has("reset"));
    assert_eq!(args(&["join"]).path_or("config", "/d"), Path::new("/d"));
    assert_eq!(args(&["nodes", "show", "node_1"]).positional(0), "node_1");
    assert_eq!(args(&["nodes", "show", "--", "-x"]).positional(0), "-x");
    assert_eq!(args(&["--version"]).path, "bcd version");
}

#[test]
fn a_flag_may_repeat_and_a_positional_be_left_out_where_the_table_says_so() {
    let given = args(&["events", "a", "--kind", "x", "--kind=y"]);
    assert_eq!(given.values("kind").collect::<Vec<_>>(), ["x", "y"]);
    assert_eq!((given.positional(0), given.positional(1)), ("a", ""));
    assert_eq!(args(&["events", "a", "b"]).positional(1), "b");
    assert_eq!(args(&["events", "a"]).values("kind").count(), 0);
    for wrong in [&["events"][..], &["events", "a", "b", "c"]] {
        assert!(matches!(refusal(wrong).why, UsageError::Positionals { .. }));
    }
    let Ok(Parsed::Help(text)) = parse_words(&["events", "--help"]) else {
        panic!()
    };
    assert!(
        text.contains("Usage: bcd events [flags] FIRST [NODE]"),
        "{text}"
    );
}

#[test]
fn every_slip_is_refused_by_name() {
    let cases: [(&[&str], UsageError); 11] = [
        (&[], UsageError::NoCommand),
        (&["nodes"], UsageError::NoCommand),
        (&["jion"], UsageError::UnknownCommand),
        (
            &["join", "--confg", "x"],
            UsageError::UnknownFlag(Some("confg".into())),
        ),
        (&["join", "-c"], UsageError::UnknownFlag(None)),
        (
            &["join", "--reset", "--reset"],
            UsageError::Repeated("reset"),
        ),
        (
            &["join", "--config"],
            UsageError::NeedsValue("config", "PATH"),
        ),
        (
            &["join", "--config", "--reset"],
            UsageError::NeedsValue("config", "PATH"),
        ),
        (
            &["join", "--config="],
            UsageError::NeedsValue("config", "PATH"),
        ),
        (&["join", "--reset=1"], UsageError::TakesNoValue("reset")),
        (
            &["nodes", "show"],
            UsageError::Positionals {
                expected: &["NODE"],
            },
        ),
    ];
    for (words, want) in cases {
        assert_eq!(refusal(words).why, want, "{words:?}");
    }
    assert!(refusal(&["jion"]).hint.contains("did you mean bcd join?"));
    assert!(refusal(&["join", "--confg"]).hint.contains("--config"));
}

#[test]
fn a_token_in_the_wrong_place_is_never_echoed() {
    const TOKEN: &str = "bcjt_jt_01secret";
    let pasted: [&[&str]; 6] = [
        &["join", TOKEN],
        &[TOKEN],
        &["join", "--bcjt_jt_01secret"],
        &["join", "--token=bcjt_jt_01secret"],
        &["join", "-tbcjt_jt_01secret"],
        &["nodes", "show", "a", TOKEN],
    ];
    for words in pasted {
        let refusal = refusal(words);
        let text = format!(
            "{} {} {} {:?}",
            refusal.path, refusal.why, refusal.hint, refusal.why
        );
        assert!(!text.contains("bcjt"), "{text}");
    }
    let refusal = refusal(&["join", TOKEN]);
    assert_eq!(refusal.why.to_string(), "takes no positional arguments");
    assert_eq!(refusal.hint, "never from arguments");
    assert_eq!(refusal.path, "bcd join");
}

#[test]
fn help_is_made_from_the_table_wherever_it_is_asked_for() {
    for words in [
        &["join", "--help"][..],
        &["help", "join"],
        &["join", "--reset", "-h"],
    ] {
        let Ok(Parsed::Help(text)) = parse_words(words) else {
            panic!("{words:?}")
        };
        assert!(text.starts_with("bcd join: joins\n"), "{text}");
        assert!(text.contains("  --config PATH  the file\n"), "{text}");
        assert!(
            text.contains("  --reset        first\n                 second\n"),
            "{text}"
        );
    }
    let Ok(Parsed::Help(text)) = parse_words(&["nodes", "--help"]) else {
        panic!()
    };
    assert!(text.contains("show  shows"), "{text}");
}
