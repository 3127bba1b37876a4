//! The node's duties, put together: which part takes which order.
use crate::command::{Commands, capabilities};
use crate::converge::Converge;
use crate::facts;
use crate::proto::{Command, OrderAnswer, OutputRequest, Role};
use crate::session::{About, Duties, Signed, Stands, Terms};
use crate::status::Board;
use crate::sys::{log, memory};

/// What this bcd does for its control plane.
pub(super) struct Work {
    role: Role,
    converge: Converge,
    commands: Commands,
    facts: facts::report::Duty,
    board: Board,
}

impl Work {
    pub(super) fn new(
        role: Role,
        converge: Converge,
        commands: Commands,
        facts: facts::report::Duty,
        board: Board,
    ) -> Self {
        Self {
            role,
            converge,
            commands,
            facts,
            board,
        }
    }
}

impl Duties for Work {
    fn about(&self) -> About {
        About {
            capabilities: capabilities(self.role),
            spec_generation: self.converge.generation(),
        }
    }

    fn acked(&self, _position: u64) {
        self.board.news().ring();
    }

    fn stands(&self, stands: Stands<'_>) {
        // What connected is not needed again. The first facts, on a thread of their own, come after this.
        if let Stands::Open { .. } = stands {
            memory::give_back_program();
        }
        self.board.stands(stands);
    }

    fn awake(&self) {
        self.facts.look();
        self.board.beats().ring();
        log::tell_repeats();
    }

    async fn command(&self, command: Command, terms: Terms) {
        self.commands.command(command, terms.upgrade_required).await;
    }

    async fn cancel(&self, id: String) {
        self.commands.cancel(&id).await;
    }

    async fn spec(&self, spec: Signed) {
        self.converge.take(spec);
    }

    async fn output(&self, request: OutputRequest) {
        self.commands.begin_output(request).await;
    }

    async fn order_answered(&self, answer: OrderAnswer) {
        self.commands.order_answered(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_what_it_can_do() {
        let wanted = [
            "command.node.reboot",
            "command.logs.collect",
            "command.node.facts",
            "command.diag.memory",
            "command.diag.disks",
            "command.diag.network",
            "section.log",
        ];
        // diag.dcgm is said where dcgmi is.
        let said = capabilities(Role::NODE).into_iter();
        let said: Vec<String> = said.filter(|name| name != "command.diag.dcgm").collect();
        assert_eq!(said, wanted);
    }
}
