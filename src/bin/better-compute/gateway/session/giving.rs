//! What a session gives its node: commands, cancellations, the spec, and requests for outputs.
//!
//! The records know what is owed; a session asks them at its start and whenever it is told to look, and
//! remembers how far it has come. So nothing that is owed lies in a queue that a crash or a full buffer
//! could lose.

use bcd::proto::{CancelCommand, Command, Envelope, GatewayFrameKind, Message, OutputChunk};
use bcd::rt;
use bcd::sys::log::{self, Level, Value};
use bcd::wire::grpc::Status;

use super::super::live::Ending;
use super::dialogue::{STORE_AGAIN, Session, status_of};
use super::fetch::{Next, Step, release};
use crate::registry::{Answer, Given, Owed, RegistryError};
use crate::store::Kept;

/// A node that goes on beating has read what was sent this many beats before: it ends a session in which
/// nothing answers for two.
const BEATS: u32 = 3;

/// How far a session has come.
pub struct Giving {
    given: Given,
    /// The records are being asked.
    pub asking: Option<Answer<Result<Owed, RegistryError>>>,
    /// They are to be asked again.
    again: bool,
    /// Outputs whose release was sent, and the beats since.
    releasing: Vec<(i64, u32)>,
}

impl Giving {
    pub fn new(given: Given) -> Self {
        Self {
            given,
            asking: None,
            again: false,
            releasing: Vec::new(),
        }
    }

    /// The node beats: the outputs whose release it must have read by now.
    pub fn beat(&mut self) -> Vec<i64> {
        for (_, beats) in &mut self.releasing {
            *beats += 1;
        }
        let read = |(_, beats): &(i64, u32)| *beats >= BEATS;
        let done = self.releasing.iter().filter(|release| read(release));
        let done = done.map(|(command, _)| *command).collect();
        self.releasing.retain(|release| !read(release));
        done
    }
}

impl Session {
    /// Asks the records what is owed, unless they are being asked: then once more afterwards.
    pub(super) fn look(&mut self) {
        match self.giving.asking {
            Some(_) => self.giving.again = true,
            None => {
                self.giving.again = false;
                let owed = self.place.gateway.sessions.owed(&self.giving.given);
                self.giving.asking = Some(owed);
            }
        }
    }

    /// Sends what is owed.
    pub(super) async fn give(&mut self, owed: Result<Owed, RegistryError>) -> Result<(), Status> {
        self.giving.asking = None;
        let owed = match owed {
            Ok(owed) => owed,
            Err(error) => {
                log::event(
                    Level::Debug,
                    "session.owed",
                    &[
                        ("node", Value::Text(&self.place.node_id)),
                        ("error", Value::Chain(&error)),
                    ],
                );
                let again = self.place.gateway.sessions.clone();
                let given = self.giving.given.clone();
                self.giving.asking = Some(Box::pin(async move {
                    rt::sleep(STORE_AGAIN).await;
                    again.owed(&given).await
                }));
                return Ok(());
            }
        };
        if owed.deleted {
            // It was deleted before this session could be told so.
            return Err(status_of(Ending::Deleted));
        }
        let more = owed.due.more || self.giving.again;
        if let Some((generation, envelope)) = owed.spec {
            self.giving.given.spec_generation = Some(generation);
            if let Ok(envelope) = Envelope::decode(&envelope) {
                self.send(GatewayFrameKind::Spec(envelope)).await?;
            }
        }
        for command in owed.due.commands {
            self.giving.given.command = command.number;
            let command = Command {
                id: command.id,
                kind: command.kind,
                params: command.params,
                deadline_ms: command.deadline_ms,
                order: command
                    .order
                    .and_then(|signed| Envelope::decode(&signed).ok()),
            };
            self.send(GatewayFrameKind::Command(command)).await?;
        }
        for (order, id) in owed.due.cancels {
            self.giving.given.cancel = order;
            self.send(GatewayFrameKind::Cancel(CancelCommand { id }))
                .await?;
        }
        for (number, id) in owed.releases {
            self.release(number, id).await?;
        }
        if let Some(output) = owed.fetch
            && let Some(request) = self.fetching.begin(output)
        {
            self.send(GatewayFrameKind::OutputRequest(request)).await?;
        }
        if more {
            self.look();
        }
        Ok(())
    }

    async fn release(&mut self, number: i64, id: String) -> Result<(), Status> {
        self.giving.given.release = self.giving.given.release.max(number);
        self.giving.releasing.push((number, 0));
        self.send(GatewayFrameKind::OutputRequest(release(id)))
            .await
    }

    /// Takes a piece of output.
    pub(super) fn take_output(&mut self, chunk: OutputChunk) -> Result<(), Status> {
        match self.fetching.take(chunk)? {
            Step::Wait => {}
            Step::Gone { command } => {
                self.place.gateway.sessions.output_gone(command);
                self.look();
            }
            Step::Keep {
                command,
                start,
                data,
            } => {
                let sessions = self.place.gateway.sessions.clone();
                self.keeping = Some(Box::pin(async move {
                    loop {
                        match sessions.keep(command, start, data.clone()).await {
                            Ok(kept) => return kept,
                            Err(RegistryError::Stopped) => return Kept::Unwanted,
                            Err(_) => rt::sleep(STORE_AGAIN).await,
                        }
                    }
                }));
            }
        }
        Ok(())
    }

    /// Goes on with an output once a piece of it is stored.
    pub(super) async fn fetch_on(&mut self, kept: Kept) -> Result<(), Status> {
        self.keeping = None;
        match self.fetching.kept(kept) {
            Next::Ask(request) => self.send(GatewayFrameKind::OutputRequest(request)).await,
            Next::Stop => {
                self.look();
                Ok(())
            }
            Next::Release {
                command,
                request,
                damaged,
            } => {
                if damaged {
                    log::event(
                        Level::Error,
                        "output.damaged",
                        &[
                            ("node", Value::Text(&self.place.node_id)),
                            ("command", Value::Text(&request.command_id)),
                        ],
                    );
                }
                self.place.gateway.news.ring();
                self.release(command, request.command_id).await?;
                self.look();
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_counts_as_read_after_three_more_beats() {
        let mut giving = Giving::new(Given::default());
        assert!(giving.beat().is_empty());
        giving.releasing.push((7, 0));
        assert!(giving.beat().is_empty());
        giving.releasing.push((8, 0));
        assert!(giving.beat().is_empty());
        assert_eq!(giving.beat(), [7]);
        assert_eq!(giving.beat(), [8]);
        assert!(giving.beat().is_empty());
    }
}
