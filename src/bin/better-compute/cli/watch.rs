//! `better-compute nodes watch`: the list, and every change as it happens.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use bcd::cli::flags::Args;
use bcd::cli::{Failure, one_line, print};
use bcd::sys::utc::Utc;
use nanoserde::SerJson;

use super::client::{self, Patient};
use super::nodes::{render, state};
use crate::api::views::{NodeView, Nodes};
use crate::registry::now_ms;

/// How long a request waits for a change: ages on the screen are drawn anew that often.
const WAIT_S: u32 = 10;
/// Of the screen's lines, those that are not for nodes: head, count, cursor.
const OTHER_LINES: usize = 3;

/// How changes are shown.
enum Style {
    Screen,
    Lines,
    Json,
}

pub(super) fn nodes(args: &Args) -> Result<ExitCode, Failure> {
    let style = match (args.has("json"), io::stdout().is_terminal()) {
        (true, _) => Style::Json,
        (false, true) => Style::Screen,
        (false, false) => Style::Lines,
    };
    let mut patient = Patient::new(args)?;
    let mut known: BTreeMap<String, NodeView> = BTreeMap::new();
    let mut path = "nodes".to_owned();
    let mut first = true;
    loop {
        let answer = patient.get(&path, first)?;
        first = false;
        let changes: Nodes = client::parse(&answer.to_string())?;
        path = format!("nodes?after={}&wait={WAIT_S}", changes.next);
        let news = take(&mut known, changes);
        let now = now_ms();
        match style {
            Style::Screen => print(&screen(&known, now))?,
            Style::Lines => {
                let lines: String = news.iter().map(|node| line(node, now)).collect();
                print(&lines)?;
            }
            Style::Json => {
                let lines: String = news
                    .iter()
                    .map(|node| format!("{}\n", node.serialize_json()))
                    .collect();
                print(&lines)?;
            }
        }
    }
}

/// Takes changes in, and gives those that are news. A whole list replaces what was known: it is asked for
/// at the start, and comes when the control plane knows less than it did (restored from a backup).
fn take(known: &mut BTreeMap<String, NodeView>, changes: Nodes) -> Vec<NodeView> {
    let mut news = Vec::new();
    if changes.whole {
        let listed: Vec<&str> = changes.nodes.iter().map(|node| node.id.as_str()).collect();
        let gone: Vec<String> = known
            .keys()
            .filter(|id| !listed.contains(&id.as_str()))
            .cloned()
            .collect();
        for id in gone {
            if let Some(mut node) = known.remove(&id) {
                "deleted".clone_into(&mut node.state);
                news.push(node);
            }
        }
    }
    for node in changes.nodes {
        match node.state.as_str() {
            "deleted" => known.remove(&node.id),
            _ => known.insert(node.id.clone(), node.clone()),
        };
        news.push(node);
    }
    news
}

/// The whole screen: what fits of the list, and how many nodes there are.
fn screen(known: &BTreeMap<String, NodeView>, now: i64) -> String {
    let lines = rustix::termios::tcgetwinsize(io::stdout())
        .map_or(24, |size| usize::from(size.ws_row).max(OTHER_LINES + 1));
    let room = lines - OTHER_LINES;
    let table = render(known.values().take(room), now);
    let connected = known.values().filter(|node| node.state == "connected");
    let hidden = known.len().saturating_sub(room);
    let more = match hidden {
        0 => String::new(),
        hidden => format!(", {hidden} of them below the screen's end"),
    };
    format!(
        "\x1b[H\x1b[2J{table}\n{} nodes, {} connected{more}\n",
        known.len(),
        connected.count()
    )
}

fn line(node: &NodeView, now: i64) -> String {
    let parts = [
        Utc::from_ms(now.unsigned_abs()).to_string(),
        node.id.clone(),
        state(node, now),
        node.version.clone(),
        node.address.clone(),
    ];
    let parts: Vec<String> = parts.iter().map(|part| one_line(part)).collect();
    format!("{}\n", parts.join(" ").trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Node, State};

    fn node(id: &str, state: State, deleted: bool) -> NodeView {
        let mut node = crate::store::node_for_tests(id);
        node = Node {
            state,
            deleted,
            ..node
        };
        NodeView::new(&node)
    }

    fn changes(whole: bool, nodes: Vec<NodeView>) -> Nodes {
        Nodes {
            nodes,
            next: 1,
            whole,
        }
    }

    #[test]
    fn changes_are_taken_in_and_a_whole_list_replaces_what_was_known() {
        let mut known = BTreeMap::new();
        let all = vec![
            node("a", State::Joining, false),
            node("b", State::Joining, false),
        ];
        assert_eq!(take(&mut known, changes(true, all)).len(), 2);
        let news = take(
            &mut known,
            changes(
                false,
                vec![
                    node("a", State::Connected, false),
                    node("b", State::Joining, true),
                ],
            ),
        );
        let states: Vec<_> = news.iter().map(|node| node.state.as_str()).collect();
        assert_eq!(states, ["connected", "deleted"]);
        assert_eq!(known.keys().collect::<Vec<_>>(), ["a"]);
        let news = take(
            &mut known,
            changes(true, vec![node("c", State::Joining, false)]),
        );
        let shown: Vec<_> = news
            .iter()
            .map(|n| (n.id.as_str(), n.state.as_str()))
            .collect();
        assert_eq!(shown, [("a", "deleted"), ("c", "joining")]);
        assert_eq!(known.keys().collect::<Vec<_>>(), ["c"]);
    }

    #[test]
    fn the_screen_says_how_many_nodes_it_does_not_show() {
        let mut known = BTreeMap::new();
        let all = (0..500).map(|n| node(&format!("n{n:03}"), State::Connected, false));
        take(&mut known, changes(true, all.collect()));
        let screen = screen(&known, 0);
        assert!(screen.contains("500 nodes, 500 connected, "), "{screen}");
        assert!(screen.lines().count() < 500);
    }
}
