//! A database whose rows are not as this program writes them: every route that reads answers or says what is
//! wrong, and the control plane goes on.
use std::sync::LazyLock;
use std::time::Duration;

use bcd::proto::{Event, EventBody, Facts, JoinRequest, Message, Role};
use bcd::rt;
use better_compute::joinservice::Call;
use better_compute::registry::now_ms;
use better_compute::store::{Incoming, Section, Spec, Store};
use rusqlite::Connection;
use rusqlite::types::Value;

use super::api::{is_sound, request};
use super::fleet::{self, Fleet, Scratch};

pub const HEAP: super::Heap = super::Heap {
    base: 8 << 20,
    per_byte: 512,
};

const COMMAND: &str = "cmd_01hf7yat000000000000000000";
const WAIT: Duration = Duration::from_secs(5);

/// A database with a row in each table.
struct Whole {
    fleet: Fleet,
    bytes: Vec<u8>,
    /// Each column of each table.
    columns: Vec<(String, String)>,
}

impl Whole {
    fn new() -> Self {
        let fleet = Fleet::new();
        let node = fleet.node_id.as_str();
        let api = fleet.api(|| fleet.store());
        let body = format!(r#"{{"id":"{COMMAND}","kind":"logs.collect"}}"#);
        for (method, target, body) in [
            ("POST", format!("/api/v1/nodes/{node}/commands"), body),
            (
                "POST",
                format!("/api/v1/commands/{COMMAND}/cancel"),
                String::new(),
            ),
        ] {
            let answer = rt::block_on(api.answer(request(method, &target, &body)));
            assert!(answer.status < 300, "{target}: {}", answer.status);
        }
        drop(api);
        let mut store = fleet.store();
        let written = store.together(|store| {
            let facts = Event {
                sequence: 1,
                time_ms: 1,
                body: Some(EventBody::Facts(Facts::default())),
            };
            let incoming = Incoming {
                sequence: 3,
                bytes: facts.encode_to_vec(),
            };
            store.add_events(node, &[1; 16], &[incoming], now_ms(), |_, _| Ok(()))?;
            store.note_facts(node, &facts.encode_to_vec(), 1, 1)?;
            let section = Section {
                name: "log".to_owned(),
                changed_generation: 1,
                ..Section::default()
            };
            let spec = Spec {
                generation: 1,
                envelope: Vec::new(),
                changed_ms: 1,
                sections: vec![section],
            };
            store.set_spec(node, 0, &spec)
        });
        assert!(written.is_ok_and(|written| written));
        drop(store);
        let path = fleet.path();
        let raw = Connection::open(&path).expect("a database");
        raw.execute_batch(
            "UPDATE commands SET output_size = 5, output_received = 3, output_state = 'fetching'; \
             INSERT INTO outputs VALUES (1, 0, x'010203'); PRAGMA wal_checkpoint(truncate);",
        )
        .expect("an output");
        let mut statement = raw
            .prepare(
                "SELECT t.name, c.name FROM pragma_table_list t, pragma_table_info(t.name) c \
                 WHERE t.schema = 'main' AND t.name NOT LIKE 'sqlite%' ORDER BY 1, 2",
            )
            .expect("a question");
        let columns = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        let columns: Result<Vec<_>, _> = columns.expect("an answer").collect();
        drop(statement);
        drop(raw);
        Self {
            bytes: std::fs::read(path).expect("a database"),
            columns: columns.expect("columns"),
            fleet,
        }
    }
}

thread_local! {
    static WHOLE: LazyLock<Whole> = LazyLock::new(Whole::new);
}

/// Changes, each a byte for the column, one for the type, a length, and so many bytes.
pub fn run(data: &[u8]) {
    WHOLE.with(|whole| run_on(whole, data));
}

fn run_on(whole: &Whole, data: &[u8]) {
    let scratch = Scratch::new();
    let path = scratch.join("state.db");
    std::fs::write(&path, &whole.bytes).expect("a copy");
    let raw = Connection::open(&path).expect("a database");
    raw.execute_batch("PRAGMA synchronous = off; PRAGMA foreign_keys = off;")
        .expect("a setting");
    let mut rest = data;
    while let [column, kind, length, more @ ..] = rest {
        let (bytes, after) = more.split_at(usize::from(*length).min(more.len()));
        rest = after;
        let (table, column) = &whole.columns[usize::from(*column) % whole.columns.len()];
        let value = match kind % 4 {
            0 => Value::Null,
            1 => {
                let mut number = [0; 8];
                number[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
                Value::Integer(i64::from_le_bytes(number))
            }
            2 => Value::Text(String::from_utf8_lossy(bytes).into_owned()),
            _ => Value::Blob(bytes.to_vec()),
        };
        // What the schema itself refuses is not in any file.
        let _ = raw.execute(&format!("UPDATE {table} SET {column} = ?1"), [value]);
    }
    drop(raw);
    let fleet = &whole.fleet;
    let Ok(store) = Store::open(&path) else {
        return;
    };
    drop(store);
    let store = || Store::open(&path).expect("it opened before");
    let asking = JoinRequest {
        attestor: "join-token".to_owned(),
        role: Role::NODE,
        csr: fleet.csr.clone(),
        credential: Some(fleet.seal(&fleet.csr, &fleet.used_token)),
        ..JoinRequest::default()
    };
    let mut service = fleet.service(store());
    if let Err(refusal) = fleet::ask(&mut service, Call::Join, &asking.encode_to_vec()) {
        super::one_line(&refusal);
    }
    let api = fleet.api(store);
    let (node, token) = (&fleet.node_id, &fleet.token_id);
    for target in [
        "tokens".to_owned(),
        "site-keys".to_owned(),
        "machines".to_owned(),
        format!("machines/{}", super::fleet::MAC),
        format!("tokens/{token}"),
        format!("nodes/{node}"),
        format!("nodes/{node}/facts"),
        format!("nodes/{node}/spec"),
        "commands".to_owned(),
        format!("commands/{COMMAND}"),
        format!("commands/{COMMAND}/output"),
        "events".to_owned(),
        format!("events?node={node}&after=0"),
        "nodes".to_owned(),
    ] {
        let asked = request("GET", &format!("/api/v1/{target}"), "");
        let answer = rt::block_on(rt::timeout(WAIT, api.answer(asked)));
        let answer = answer.unwrap_or_else(|_| panic!("{target}: no answer"));
        assert!(
            [200, 404, 503].contains(&answer.status),
            "{}",
            answer.status
        );
        let said = is_sound(&target, answer).unwrap_or_default();
        assert!(
            !said.contains("is stopping"),
            "{target}: its thread is gone"
        );
    }
}
