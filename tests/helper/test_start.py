"""Where a helper starts, and where it says why it does not."""

import os
import subprocess

import pytest

from .conftest import ACCOUNT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another account")


def starts(helper):
    helper.start().serves()
    helper.process.terminate()


@pytest.mark.parametrize("path", ["config.toml", "slots", "run", "."])
def test_what_somebody_else_could_change_is_named_with_what_to_do(stopped, path):
    """The configuration, the socket's directory, the slots', and one above them all."""
    stopped.slots.mkdir(mode=0o755)
    place = stopped.dir / path
    mode = place.stat().st_mode & 0o7777
    os.chown(place, ACCOUNT.pw_uid, -1)
    code, said = stopped.refuses()
    assert code == 1 and f"{place.resolve()} is of user {ACCOUNT.pw_uid}, not root's: run chown root" in said, said
    os.chown(place, 0, -1)
    for bits, who in ((0o020, "its group"), (0o002, "others"), (0o1022, "its group and others")):
        place.chmod(mode | bits)
        code, said = stopped.refuses()
        assert code == 1 and f"can be written by {who}: run chmod " in said, said
    place.chmod(mode)
    starts(stopped)


def test_a_way_through_somebody_elses_directory_is_none(stopped):
    """The directory at the end is root's alone; a link on the way to it is not."""
    theirs = stopped.dir / "theirs"
    theirs.mkdir()
    (theirs / "run").symlink_to(stopped.run_dir)
    os.chown(theirs, ACCOUNT.pw_uid, ACCOUNT.pw_gid)
    stopped.config.write_text(stopped.config.read_text().replace(str(stopped.socket), f"{theirs}/run/helper.sock"))
    code, said = stopped.refuses()
    assert code == 1 and f"{theirs} is of user" in said, said
    os.chown(theirs, 0, 0)
    stopped.start()


def test_all_that_is_wrong_is_said_at_once(stopped):
    stopped.slots.mkdir()
    stopped.slots.chmod(0o777)
    stopped.run_dir.rmdir()
    stopped.config.chmod(0o666)
    code, said = stopped.refuses()
    assert code == 1 and said.count(": run ") == 3 and f"{stopped.run_dir} is missing: run mkdir -m 0755" in said, said


def test_a_configuration_that_is_a_link_is_refused(stopped):
    real = stopped.dir / "real.toml"
    stopped.config.rename(real)
    stopped.config.symlink_to(real)
    code, said = stopped.refuses()
    assert code == 1 and "is no regular file" in said


def test_something_else_at_the_sockets_place_stays(stopped):
    stopped.socket.write_text("mine")
    done = subprocess.run(stopped.command(), capture_output=True, text=True, timeout=10)
    assert done.returncode == 1 and "something else than a socket is there" in done.stderr
    assert stopped.socket.read_text() == "mine"


def test_without_rights_a_section_or_the_account_it_says_so(stopped):
    rights = ["setpriv", f"--reuid={ACCOUNT.pw_uid}", f"--regid={ACCOUNT.pw_gid}", "--clear-groups"]
    os.chown(stopped.config, -1, ACCOUNT.pw_gid)
    done = subprocess.run([*rights, *stopped.command()], capture_output=True, text=True, timeout=10)
    assert done.returncode == 1 and f"runs as user {ACCOUNT.pw_uid}, not as root" in done.stderr, done.stderr
    stopped.write(user="no-such-account")
    code, said = stopped.refuses()
    assert code == 1 and "no-such-account" in said and "create the account" in said
    stopped.config.write_text(stopped.config.read_text().split("[helper]")[0])
    code, said = stopped.refuses()
    assert code == 2 and "has no [helper] section" in said and "systemctl disable" in said
