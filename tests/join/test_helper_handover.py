"""A join as root for an unprivileged `bcd node` ([helper]): key and identity are the account's afterwards, and no trick
with a name gives it anything else.
"""

import os
import pwd

import pytest

from join.conftest import token_file

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")

ACCOUNT = "nobody"
FILES = ("node.key", "identity.json")


@pytest.fixture
def node(machine):
    node = machine()
    node.config.write_text(f'{node.config.read_text()}\n[helper]\nsocket = "{node.dir}/helper.sock"\nuser = "{ACCOUNT}"\n')
    return node


def owner(path):
    status = path.lstat()
    return status.st_uid, status.st_gid


def account():
    entry = pwd.getpwnam(ACCOUNT)
    return entry.pw_uid, entry.pw_gid


def test_key_and_identity_belong_to_the_account_after_a_join(fleet, node):
    node.join(fleet.token())
    assert [owner(node.data_dir / name) for name in FILES] == [account()] * 2
    assert [(node.data_dir / name).stat().st_mode & 0o777 for name in FILES] == [0o600] * 2
    assert owner(node.config) == (0, 0), "the configuration stays root's"


def test_a_join_that_was_cut_off_before_is_mended_by_joining_again(fleet, node):
    file = token_file(node.dir, fleet.token())
    done = node.run("join", "--token-file", file)
    assert done.returncode == 0, done.stderr
    for name in FILES:
        os.chown(node.data_dir / name, 0, 0)
    again = node.run("join")
    assert again.returncode == 0 and "already joined as" in again.stdout
    assert [owner(node.data_dir / name) for name in FILES] == [account()] * 2


def test_without_the_section_the_files_stay_roots(fleet, machine):
    node = machine()
    node.join(fleet.token())
    assert [owner(node.data_dir / name) for name in FILES] == [(0, 0)] * 2


def test_an_account_that_is_not_there_is_named_and_the_join_is_not_lost(fleet, node):
    node.config.write_text(node.config.read_text().replace(ACCOUNT, "no-such-account"))
    token = fleet.token()
    done = node.run("join", token=token)
    assert done.returncode == 1
    assert "no-such-account" in done.stderr and "create the account" in done.stderr
    node.config.write_text(node.config.read_text().replace("no-such-account", ACCOUNT))
    again = node.run("join")
    assert again.returncode == 0 and "already joined as" in again.stdout, again.stderr
    assert [owner(node.data_dir / name) for name in FILES] == [account()] * 2


@pytest.mark.parametrize("name", FILES)
def test_a_name_swapped_for_a_link_gives_away_nothing_else(fleet, node, tmp_path, name):
    """The account may write in data_dir; root's own files must not become its, whatever it puts there."""
    node.join(fleet.token())
    theirs = tmp_path / "roots-own"
    (node.data_dir / name).rename(theirs)
    os.chown(theirs, 0, 0)
    (node.data_dir / name).symlink_to(theirs)
    again = node.run("join", token=fleet.token())
    assert again.returncode == 0 and f"{name}.corrupt-" in again.stderr, "a symlink in a file's place is moved aside"
    assert owner(theirs) == (0, 0), "what a symlink led to was given away"

    ours = node.data_dir / name
    theirs.write_bytes(ours.read_bytes())
    ours.unlink()
    os.link(theirs, ours)
    again = node.run("join")
    assert again.returncode == 1 and "hard link" in again.stderr and "move it away" in again.stderr, again.stderr
    assert owner(theirs) == (0, 0), "root's own file was given away"

    ours.unlink()
    ours.write_bytes(theirs.read_bytes())
    ours.chmod(0o600)
    assert node.run("join").returncode == 0
    assert [owner(node.data_dir / file) for file in FILES] == [account()] * 2
