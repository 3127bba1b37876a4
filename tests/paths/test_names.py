"""How a gateway's name is found where the network's names are odd. What counts is the C library in the static bcd."""

import pytest

from lab import wait_for

V4 = ("10.202.1.2/24", "10.202.1.1/24")
V6 = ("fd72::2/64", "fd72::1/64")
GATEWAY = "10.202.1.1"
# More than fit into 512 bytes; the last one is the gateway's, and the others answer nothing.
MANY = [f"10.202.1.{n}" for n in range(100, 140)]


def joined(path, see, name, **settings):
    port = path.dev.gateway.rsplit(":", 1)[1]
    node = path.node("node", *see, gateway_url=f"https://{name}:{port}", gateway_server_name="localhost", **settings)
    return node.run("join", "--timeout", "20", token=path.dev.token())


def test_ipv6_alone(path):
    """No IPv4 address anywhere, and a name server that is asked over IPv6."""
    lab = path("[fd72::1]", V6)
    see = lab.names("fd72::1", {"gw.test": {"AAAA": ["fd72::1"]}}, "nameserver fd72::1\n")
    assert joined(lab, see, "gw.test").returncode == 0
    node = lab.node("second")
    assert node.config.read_text().count("[fd72::1]") == 1
    node.id = node.join(lab.dev.token())
    node.start()
    wait_for("the node to be connected", lambda: lab.dev.state(node.id) == "connected")


@pytest.mark.parametrize("how", ["normal", "truncated", "empty"])
def test_an_answer_of_more_than_512_bytes_is_used(path, how):
    lab = path(GATEWAY, V4)
    # The gateway stands first: of forty addresses sixteen are tried.
    rules = {"gw.test": {"A": [GATEWAY, *MANY], "how": how}}
    done = joined(lab, lab.names(GATEWAY, rules, f"nameserver {GATEWAY}\n"), "gw.test")
    assert done.returncode == 0, done.stderr + lab.asked()


def test_a_server_that_denies_the_name_because_it_has_no_ipv6(path):
    lab = path(GATEWAY, V4)
    rules = {"gw.test": {"A": [GATEWAY], "how": "nxdomain-aaaa"}}
    done = joined(lab, lab.names(GATEWAY, rules, f"nameserver {GATEWAY}\n"), "gw.test")
    assert done.returncode == 0, done.stderr + lab.asked()


def test_search_domains_are_tried_in_their_order(path):
    lab = path(GATEWAY, V4)
    rules = {"gw.second.test": {"A": [GATEWAY]}}
    see = lab.names(GATEWAY, rules, f"search first.test second.test third.test\nnameserver {GATEWAY}\n")
    done = joined(lab, see, "gw")
    assert done.returncode == 0, done.stderr + lab.asked()
    asked = lab.asked()
    assert asked.index("gw.first.test") < asked.index("gw.second.test") and "third" not in asked


def test_the_hosts_file_comes_before_the_name_server(path):
    lab = path(GATEWAY, V4)
    see = lab.names(GATEWAY, {"gw.test": {"A": ["10.202.1.250"]}}, f"nameserver {GATEWAY}\n")
    (lab.dir / "hosts").write_text(f"127.0.0.1 localhost\n{GATEWAY} gw.test\n")
    assert joined(lab, see, "gw.test").returncode == 0
    assert "gw.test" not in lab.asked()


def test_a_second_name_server_is_asked_where_the_first_is_dead(path):
    lab = path(GATEWAY, V4)
    see = lab.names(GATEWAY, {"gw.test": {"A": [GATEWAY]}}, f"nameserver 10.202.1.99\nnameserver {GATEWAY}\n")
    assert joined(lab, see, "gw.test").returncode == 0


@pytest.mark.slow
def test_a_name_server_that_never_answers_is_named_as_such(path):
    lab = path(GATEWAY, V4)
    see = lab.names(GATEWAY, {"gw.test": {"how": "silent"}}, f"nameserver {GATEWAY}\noptions timeout:30\n")
    port = lab.dev.gateway.rsplit(":", 1)[1]
    node = lab.node("node", *see, gateway_url=f"https://gw.test:{port}")
    done = node.run("join", "--timeout", "1", token=lab.dev.token())
    assert done.returncode == 1 and "looking up the name gw.test took longer than 10 s" in done.stderr, done.stderr


def test_a_name_that_does_not_exist_is_named_as_such(path):
    lab = path(GATEWAY, V4)
    see = lab.names(GATEWAY, {}, f"nameserver {GATEWAY}\n")
    done = joined(lab, see, "gw.test", data_dir=str(lab.dir / "other"))
    assert done.returncode == 1 and "the name gw.test cannot be looked up" in done.stderr, done.stderr
