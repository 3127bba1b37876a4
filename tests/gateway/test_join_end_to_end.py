"""A machine joins a fleet: the static bcd, a real control plane, TLS and gRPC between them."""

import re
import stat

from lab import wait_for


def test_a_node_joins_and_is_listed_from_joining_to_connected_to_disconnected(dev, join):
    node = join()
    assert node.id.startswith("node_")
    assert dev.state(node.id) == "joining"

    process = node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    listed = dev.node(node.id)
    assert listed["state"] == "connected"

    assert process.terminate() == 0
    wait_for("the node to be disconnected", lambda: dev.state(node.id) == "disconnected")


def test_the_node_list_shows_version_address_and_last_seen(dev, join):
    node = join()
    node.start()
    wait_for("the node to be connected", lambda: dev.state(node.id) == "connected")
    table = dev.run("nodes", "list").stdout
    line = next(line for line in table.splitlines() if node.id in line)
    assert "connected" in line
    assert "127.0.0.1" in line
    assert re.search(r"\d+\.\d+\.\d+", line)


def test_a_joined_node_keeps_its_key_and_identity_private(join):
    node = join()
    for name in ("node.key", "identity.json"):
        mode = stat.S_IMODE((node.data_dir / name).stat().st_mode)
        assert mode == 0o600, f"{name} has mode {mode:o}"
    assert (node.data_dir / "node.key").read_text().startswith("-----BEGIN PRIVATE KEY-----")


def test_joining_again_answers_already_joined_and_changes_nothing(join):
    node = join()
    before = {p.name: p.read_bytes() for p in node.data_dir.iterdir() if p.is_file()}
    again = node.run("join")
    assert again.returncode == 0
    assert "already joined as" in again.stdout + again.stderr
    assert {p.name: p.read_bytes() for p in node.data_dir.iterdir() if p.is_file()} == before


def test_a_token_joins_one_machine(make_node, token):
    secret = token()
    make_node("first").join(secret)
    second = make_node("second").run("join", token=secret)
    assert second.returncode == 1
    assert "used" in second.stderr
    assert secret not in second.stdout + second.stderr


def test_a_token_on_the_command_line_is_refused_and_not_echoed(make_node, token):
    secret = token()
    done = make_node().run("join", secret)
    assert done.returncode == 2
    assert "takes no positional arguments" in done.stderr
    assert secret not in done.stdout + done.stderr


def test_a_control_plane_killed_at_any_moment_loses_no_token_node_or_certificate(dev, make_node, token):
    unused = token()
    first = make_node("first")
    first_id = first.join(token())
    dev.kill()
    dev.start()

    # The node, its certificate and the token made before the kill are still there.
    assert dev.state(first_id) == "joining"
    first.start()
    wait_for("the node that joined before the kill", lambda: dev.state(first_id) == "connected")
    second = make_node("second")
    second_id = second.join(unused)
    assert second_id != first_id

    # And what came after it survives the next one: the token stays used.
    dev.kill()
    dev.start()
    assert {first_id, second_id} <= {n["id"] for n in dev.nodes()}
    refused = make_node("third").run("join", token=unused)
    assert refused.returncode == 1


def test_a_node_comes_back_by_itself_after_the_control_plane_was_killed(dev, join):
    node = join()
    node.start()
    wait_for("the first session", lambda: dev.state(node.id) == "connected")
    dev.kill()
    dev.start()
    wait_for("the session to come back", lambda: dev.state(node.id) == "connected", seconds=90)
    assert node.process.running()


def test_a_deleted_node_is_refused_at_its_next_session(dev, join):
    node = join()
    dev.run("nodes", "delete", node.id, "--yes")
    process = node.start()
    wait_for("the refusal in the log", lambda: "PERMISSION_DENIED" in process.output().upper().replace(" ", "_"))
    assert dev.state(node.id) in (None, "deleted")


def test_the_arm64_binary_joins_and_holds_a_session(dev, make_node, token, bcd_arm64):
    node = make_node("arm64", command=["qemu-aarch64-static", bcd_arm64])
    node_id = node.join(token())
    process = node.start()
    wait_for("the arm64 node to be connected", lambda: dev.state(node_id) == "connected", seconds=40)
    assert process.terminate(20) == 0
