#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
use std::path::Path;

use super::*;
use crate::facts::report::Reporter;
use crate::journal::Limits;
use crate::proto::{
    CommandState, CommandUpdate, EventBody, FileSource, LogsCollectParams, LogsCollectParamsSource,
    Message, NodeFrameKind, OutputChunk, OutputRequest, RebootParams,
};
use crate::sys::fs::Dir;
use crate::sys::fs::tests::scratch;

const ID: &str = "cmd_01kb7w3x9qn5v8m2r6t4y0sdfh";
const OTHER: &str = "cmd_01kb7w3x9qn5v8m2r6t4y0sdfj";

struct Daemon {
    journal: Journal,
    commands: Commands,
    frames: Receiver<NodeFrame>,
    engine: rt::JoinHandle<()>,
}

/// Starts what `bcd node` starts for commands, on the journal in `data_dir`.
fn start(data_dir: &Path) -> Daemon {
    let limits = Limits {
        max_bytes: 1 << 20,
        max_events: 100,
    };
    let dir = Dir::open(data_dir).unwrap();
    // The threads of the daemon before let go of it in their own time.
    let deadline = Instant::now() + Duration::from_secs(10);
    let (journal, recovered) = loop {
        match Journal::open(&dir, "node_1", limits) {
            Ok(opened) => break opened,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let (sender, frames) = channel(4);
    let parts = Parts {
        facts: Reporter::new(journal.clone(), &recovered.entries),
        journal: journal.clone(),
        clocks: Clocks {
            now_ms: Box::new(clock::wall_ms),
            trusted_ms: Box::new(clock::wall_ms),
            signed_ms: Box::new(|| 0),
        },
        data_dir: data_dir.to_owned(),
        boot_id: clock::boot_id().unwrap(),
        frames: sender,
        node_id: "node_1".into(),
        role: Role::NODE,
        image_cache: None,
        signers: Box::new(|| Rc::new([])),
        site: None,
        signer: crate::deploy::receipt::signer().0,
        parting: crate::command::parting::Parting::default(),
        helper: None,
        machine: None,
    };
    let (engine, commands) = Engine::new(parts, &recovered);
    let engine = rt::spawn(engine.run());
    Daemon {
        journal,
        commands,
        frames,
        engine,
    }
}

impl Daemon {
    async fn send(&self, id: &str, kind: &str, params: Vec<u8>) {
        let command = Command {
            id: id.to_owned(),
            kind: kind.to_owned(),
            params,
            deadline_ms: i64::try_from(clock::wall_ms() + 60_000).unwrap(),
            order: None,
        };
        self.commands.command(command, false).await;
    }

    /// The updates, once there are `count` events.
    async fn updates(&self, count: u64) -> Vec<CommandUpdate> {
        let enough = self.journal.news(count - 1);
        rt::timeout(Duration::from_secs(20), enough)
            .await
            .unwrap()
            .unwrap();
        let stored = self.journal.read(0, 1 << 20).await.unwrap();
        let update = |body: &[u8]| match crate::proto::Event::decode(body).unwrap().body {
            Some(EventBody::CommandUpdate(update)) => Some(update),
            Some(EventBody::Facts(_)) => None,
            other => panic!("{other:?}"),
        };
        let updates = stored.iter().filter_map(|stored| update(&stored.body));
        updates.collect()
    }

    async fn states(&self, count: u64) -> Vec<(CommandState, String)> {
        let updates = self.updates(count).await;
        updates
            .into_iter()
            .map(|update| (update.state, update.reason))
            .collect()
    }

    async fn chunk(&mut self) -> OutputChunk {
        let frame = rt::timeout(Duration::from_secs(20), self.frames.recv()).await;
        match frame.unwrap().unwrap().kind {
            Some(NodeFrameKind::Output(chunk)) => chunk,
            other => panic!("{other:?}"),
        }
    }

    /// As a crash would: nothing is told.
    async fn stop(self) {
        self.engine.cancel();
        let journal = self.journal;
        drop((self.commands, self.frames));
        rt::yield_now().await;
        drop(journal);
    }
}

fn missing_file() -> Vec<u8> {
    let source = FileSource {
        path: "no-such/bcd-test".to_owned(),
    };
    let params = LogsCollectParams {
        source: Some(LogsCollectParamsSource::File(source)),
        max_bytes: 0,
    };
    params.encode_to_vec()
}

fn slow_reboot() -> Vec<u8> {
    let params = RebootParams {
        delay_s: 600,
        reason: "a test that cancels it".to_owned(),
    };
    params.encode_to_vec()
}

#[test]
fn a_command_runs_and_its_end_is_in_the_journal_for_ever_after() {
    let data_dir = scratch("engine");
    rt::block_on(async {
        let daemon = start(&data_dir);
        daemon.send(ID, "logs.collect", missing_file()).await;
        let updates = daemon.updates(2).await;
        assert_eq!(updates[0].state, CommandState::RUNNING);
        assert_eq!(updates[1].state, CommandState::FAILED);
        assert!(updates.iter().all(|update| update.id == ID));
        daemon.send(ID, "logs.collect", missing_file()).await;
        daemon.send(OTHER, "node.dance", vec![]).await;
        let states = daemon.states(3).await;
        assert_eq!(states[2].1, "CommandUnsupported");
        daemon.stop().await;
    });
    rt::block_on(async {
        let daemon = start(&data_dir);
        for id in [ID, OTHER] {
            daemon.send(id, "logs.collect", missing_file()).await;
        }
        rt::sleep(Duration::from_millis(100)).await;
        assert_eq!(daemon.states(3).await.len(), 3, "nothing ran again");
        daemon.stop().await;
    });
}

#[test]
fn the_facts_are_a_result() {
    let data_dir = scratch("engine-facts");
    rt::block_on(async {
        let daemon = start(&data_dir);
        daemon.send(ID, "node.facts", vec![]).await;
        // The facts are news, and are told as such too.
        let updates = daemon.updates(3).await;
        assert_eq!(updates[1].state, CommandState::SUCCEEDED);
        let facts = crate::proto::Facts::decode(&updates[1].result).unwrap();
        assert!(facts.memory_bytes > 0);
        daemon.stop().await;
    });
}

#[test]
fn a_delayed_reboot_can_be_called_off() {
    let data_dir = scratch("engine-cancel");
    rt::block_on(async {
        let daemon = start(&data_dir);
        daemon.send(ID, "node.reboot", slow_reboot()).await;
        assert_eq!(daemon.updates(1).await[0].state, CommandState::RUNNING);
        daemon.commands.cancel(OTHER).await;
        daemon.commands.cancel("nonsense").await;
        daemon.commands.cancel(ID).await;
        let states = daemon.states(2).await;
        assert_eq!(states[1], (CommandState::FAILED, "Cancelled".to_owned()));
        daemon.stop().await;
    });
}

#[test]
fn what_the_daemon_left_running_is_not_run_again() {
    let data_dir = scratch("engine-restart");
    rt::block_on(async {
        let daemon = start(&data_dir);
        daemon.send(ID, "node.reboot", slow_reboot()).await;
        daemon.updates(1).await;
        daemon.stop().await;
    });
    rt::block_on(async {
        let daemon = start(&data_dir);
        daemon.send(ID, "node.reboot", slow_reboot()).await;
        // Of the same boot: it is not known yet whether the machine goes down.
        daemon.send(OTHER, "node.reboot", slow_reboot()).await;
        let states = daemon.states(2).await;
        assert_eq!(states[1], (CommandState::FAILED, "Busy".to_owned()));
        daemon.stop().await;
    });
}

#[test]
fn an_output_is_fetched_in_pieces_again_and_again_until_it_is_released() {
    let data_dir = scratch("engine-output");
    let id = Id::parse(ID).unwrap();
    let text: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    rt::block_on(async {
        let mut daemon = start(&data_dir);
        // The start takes what it does not know.
        daemon.send(OTHER, "node.dance", vec![]).await;
        daemon.updates(1).await;
        let mut spool = Outputs::of(&data_dir).begin(id, 1 << 20).unwrap();
        spool.push(&text).unwrap();
        spool.finish(false).unwrap();
        let request = |offset, max_bytes| OutputRequest {
            command_id: ID.to_owned(),
            offset,
            max_bytes,
            release: false,
        };
        let commands = daemon.commands.clone();
        let fetching = rt::spawn(async move { commands.output(request(0, 1 << 20)).await });
        let mut got = Vec::new();
        while got.len() < text.len() {
            let chunk = daemon.chunk().await;
            assert_eq!((chunk.offset, chunk.size), (got.len() as u64, 200_000));
            assert!(chunk.data.len() <= 64 * 1024 && !chunk.gone);
            got.extend(chunk.data);
        }
        assert_eq!(got, text);
        fetching.await;
        // A piece from the middle, and one past the end.
        daemon.commands.output(request(100_000, 10)).await;
        assert_eq!(daemon.chunk().await.data, text[100_000..100_010]);
        daemon.commands.output(request(1 << 40, 10)).await;
        let past = daemon.chunk().await;
        assert!(past.data.is_empty() && past.size == 200_000 && !past.gone);
        // Released twice: an answer may get lost.
        for _ in 0..2 {
            let release = OutputRequest {
                release: true,
                ..request(0, 0)
            };
            daemon.commands.output(release).await;
        }
        for gone in [ID, OTHER, "../../etc/passwd", ""] {
            let request = OutputRequest {
                command_id: gone.to_owned(),
                ..request(3, 10)
            };
            daemon.commands.output(request).await;
            let chunk = daemon.chunk().await;
            assert!(chunk.gone && chunk.command_id == gone && chunk.offset == 3);
        }
        daemon.stop().await;
    });
}
