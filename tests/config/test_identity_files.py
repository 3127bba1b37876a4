"""What `bcd join` makes of token sources and of the files in data_dir, before and without a gateway:
port 9 of this host is where no gateway answers, so a token that is taken ends in exit 1, a refused one in 2.
"""

import base64
import datetime
import hashlib
import json
import os
import pathlib
import pty
import re
import shutil
import subprocess
import tempfile

import pytest
from lab import clean_env
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

TOKEN = "bcjt_jt_01k5wqb3zt9v7e8r2m4n6p0s1d." + "A" * 43
OTHER = "bcjt_jt_01k5wqb3zt9v7e8r2m4n6p0s1d." + "B" * 42


def pin(key):
    spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return "sha256/" + base64.b64encode(hashlib.sha256(spki).digest()).decode()


def b64url(number):
    return base64.urlsafe_b64encode(number.to_bytes(32, "big")).decode().rstrip("=")


class Machine:
    """A machine with a configuration, a join key, and no gateway."""

    def __init__(self, bcd, directory):
        self.bcd, self.dir, self.data = bcd, directory, directory / "data"
        key = ec.generate_private_key(ec.SECP256R1())
        numbers = key.public_key().public_numbers()
        self.config = directory / "config.toml"
        self.config.write_text(
            f'gateway_url = "https://127.0.0.1:9"\nsite = "fsn1"\nserving_ca_spki_pin = "{pin(key)}"\n'
            f'join_signing_key_pin = "{pin(key)}"\njoin_encryption_key_pin = "{pin(key)}"\n'
            f'data_dir = "{self.data}"\n')
        (directory / "join-encryption.jwk").write_text(json.dumps(
            {"kty": "EC", "crv": "P-256", "x": b64url(numbers.x), "y": b64url(numbers.y)}))

    def join(self, *arguments, variable=None, stdin=subprocess.DEVNULL, text=None, **more):
        env = clean_env(**({} if variable is None else {"BCD_JOIN_TOKEN": variable}))
        source = {"stdin": stdin} if text is None else {"input": text.encode()}
        done = subprocess.run([self.bcd, "join", "--config", self.config, "--timeout", "1", *arguments], env=env,
                              capture_output=True, timeout=30, **source, **more)
        done.out = (done.stdout + done.stderr).decode()
        for secret in (TOKEN, OTHER, "A" * 43, "B" * 42):
            assert secret not in done.out, "the token is shown"
        return done

    def file(self, text=TOKEN, mode=0o600):
        path = self.dir / "join-token"
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def names(self):
        return sorted(path.name for path in self.data.iterdir())

    def store(self, key, identity_key=None):
        """An identity as a join leaves it."""
        certified = (identity_key or key).public_key()
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "node_01")])
        now = datetime.datetime.now(datetime.timezone.utc)
        leaf = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(certified)
                .serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
                .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()))
        self.data.mkdir(mode=0o700, exist_ok=True)
        for name in ("node.key", "identity.json"):
            (self.data / name).touch(0o600)
        (self.data / "node.key").write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        (self.data / "identity.json").write_text(json.dumps({
            "version": 1, "spiffe_id": "spiffe://better-compute/node/node_01", "node_id": "node_01", "role": "node",
            "site": "fsn1", "pool": "pool_01", "certificate_chain": [leaf.public_bytes(Encoding.PEM).decode()],
            "server_time_ms": 1790000000000, "of_a_newer_version": {"a": [1, "}"]}}))


@pytest.fixture
def machine(bcd, tmp_path):
    return Machine(bcd, tmp_path)


def taken(done):
    assert done.returncode == 1 and "127.0.0.1:9" in done.out, done.out


def refused(done, why):
    assert done.returncode == 2 and why in done.out, done.out
    assert len(done.stderr.decode().splitlines()) == 1


def test_a_token_comes_from_the_variable_standard_input_or_a_file(machine):
    taken(machine.join(variable=TOKEN))
    taken(machine.join(text=TOKEN + "\r\nand more\n"))
    for mode in (0o600, 0o400):
        file = machine.file(mode=mode)
        taken(machine.join("--token-file", file))
        assert file.exists(), "a join that failed keeps its token"


def test_the_file_comes_before_the_variable_and_that_before_standard_input(machine):
    taken(machine.join("--token-file", machine.file(), variable="nonsense", text="nonsense"))
    refused(machine.join("--token-file", machine.file("nonsense"), variable=TOKEN, text=TOKEN), "join-token is refused")
    taken(machine.join(variable=TOKEN, text="nonsense"))
    refused(machine.join(variable="nonsense", text=TOKEN), "BCD_JOIN_TOKEN is refused")


def test_without_a_token_the_three_places_are_named(machine):
    refused(machine.join(), "no join token: set BCD_JOIN_TOKEN, write it to standard input, or give --token-file PATH")
    refused(machine.join(variable=""), "no join token")
    main, terminal = pty.openpty()
    refused(machine.join(stdin=terminal), "no join token")
    os.close(main)
    os.close(terminal)


@pytest.mark.parametrize("text, why", [
    ("hunter2", "does not begin with bcjt_jt_"),
    ("bcjt_jt_01k5wqb3zt9v", "is cut short"),
    (OTHER, "is cut short"),
    (TOKEN + "A", "secret is too long"),
    (TOKEN[:-1] + "+", "a character that no token has"),
    (TOKEN.replace("01k5", "01K5"), "its id is not a ULID"),
    (TOKEN + " " + TOKEN, "more than one word"),
    ("\n", "it is empty"),
])
def test_each_malformed_token_is_told_apart_wherever_it_comes_from(machine, text, why):
    refused(machine.join(text=text + "\n"), why)
    refused(machine.join("--token-file", machine.file(text)), why)
    if text.strip():
        refused(machine.join(variable=text), why)
    assert machine.names() == [], "a refused token leaves nothing behind"


def test_a_token_file_that_breaks_a_rule_is_refused_before_it_is_read(machine):
    for mode in (0o644, 0o640, 0o660, 0o604, 0o700):
        refused(machine.join("--token-file", machine.file(mode=mode)), f"its mode is {mode:04o}, not 0600 or 0400")
    refused(machine.join("--token-file", machine.file("x" * 4097)), "it is over 4 KiB")
    refused(machine.join("--token-file", machine.dir / "none"), "No such file")
    refused(machine.join("--token-file", machine.dir), "is refused")
    fifo = machine.dir / "fifo"
    os.mkfifo(fifo, 0o600)
    refused(machine.join("--token-file", fifo), "is refused")
    if os.geteuid() == 0:
        file = machine.file()
        os.chown(file, 12345, -1)
        refused(machine.join("--token-file", file), "it belongs to uid 12345")


def test_a_secret_volumes_links_are_followed_and_a_link_elsewhere_is_not(machine):
    volume = machine.dir / "volume"
    (volume / "..2026_09_26").mkdir(parents=True)
    machine.file(mode=0o400).rename(volume / "..2026_09_26" / "join-token")
    (volume / "..data").symlink_to("..2026_09_26")
    (volume / "join-token").symlink_to("..data/join-token")
    taken(machine.join("--token-file", volume / "join-token"))
    (volume / "elsewhere").symlink_to(machine.file())
    (volume / "upwards").symlink_to("../join-token")
    for name in ("elsewhere", "upwards"):
        refused(machine.join("--token-file", volume / name), "leads out of")


def test_a_machine_that_has_joined_says_so_without_a_token_and_deletes_the_file(machine):
    machine.store(ec.generate_private_key(ec.SECP256R1()))
    before = (machine.data / "identity.json").read_bytes()
    file = machine.file()
    done = machine.join("--token-file", file)
    assert (done.returncode, done.out) == (0, "already joined as spiffe://better-compute/node/node_01\n")
    assert not file.exists() and (machine.data / "identity.json").read_bytes() == before
    assert machine.join("--token-file", file).returncode == 0
    # A file given by mistake is kept, with a warning.
    file = machine.file("precious")
    done = machine.join("--token-file", file)
    assert done.returncode == 0 and "warning" in done.out and file.exists()


def test_a_token_file_that_cannot_be_deleted_is_a_warning(bcd):
    """As on the read-only mount of a Secret volume; here, a directory its user may not write."""
    home = pathlib.Path(tempfile.mkdtemp(prefix="bcd-token-", dir="/tmp"))
    try:
        home.chmod(0o755)
        program = shutil.copy(bcd, home / "bcd")
        machine = Machine(program, home)
        machine.store(ec.generate_private_key(ec.SECP256R1()))
        volume = home / "volume"
        volume.mkdir()
        file = volume / "join-token"
        file.write_text(TOKEN)
        file.chmod(0o400)
        as_user = {}
        if os.geteuid() == 0:
            as_user = {"user": 65534, "group": 65534, "extra_groups": []}
            for path in [machine.config, machine.data, *machine.data.iterdir(), file]:
                os.chown(path, 65534, 65534)
        volume.chmod(0o555)
        done = machine.join("--token-file", file, **as_user)
        assert done.returncode == 0 and "already joined" in done.out
        assert "warning" in done.out and "is not deleted" in done.out and file.exists()
        volume.chmod(0o755)
    finally:
        shutil.rmtree(home)


def damage_nothing(path):
    path.write_bytes(b"")


def damage_half(path):
    path.write_bytes(path.read_bytes()[:100])


def damage_zeros(path):
    path.write_bytes(b"\0" * 4096)


def damage_link(path):
    path.unlink()
    path.symlink_to("/etc/passwd")


DAMAGE = [damage_nothing, damage_half, damage_zeros, damage_link]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_identity_is_set_aside_and_its_good_key_joins_again(machine, damage):
    key = ec.generate_private_key(ec.SECP256R1())
    machine.store(key)
    kept = (machine.data / "node.key").read_bytes()
    damage(machine.data / "identity.json")
    done = machine.join(variable=TOKEN)
    taken(done)
    assert "moved identity.json to identity.json.corrupt-" in done.out
    aside, left = machine.names()
    assert re.fullmatch(r"identity\.json\.corrupt-\d{8}T\d{6}Z", aside) and left == "node.key"
    assert (machine.data / "node.key").read_bytes() == kept


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_key_is_set_aside_with_the_identity_it_belonged_to(machine, damage):
    machine.store(ec.generate_private_key(ec.SECP256R1()))
    before = (machine.data / "node.key").read_bytes()
    damage(machine.data / "node.key")
    taken(machine.join(variable=TOKEN))
    names = [name.split("-")[0] for name in machine.names()]
    assert names == ["identity.json.corrupt", "node.key", "node.key.corrupt"]
    assert (machine.data / "node.key").read_bytes() != before


def test_an_identity_for_another_key_is_no_identity(machine):
    machine.store(ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1()))
    done = machine.join(variable=TOKEN)
    taken(done)
    assert "is not for the key in node.key" in done.out


def test_an_identity_of_a_newer_form_is_left_alone(machine):
    machine.store(ec.generate_private_key(ec.SECP256R1()))
    path = machine.data / "identity.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    done = machine.join(variable=TOKEN)
    assert done.returncode == 1 and "run a newer bcd" in done.out
    assert machine.names() == ["identity.json", "node.key"]


def test_a_reset_shows_what_it_would_move_and_moves_it_when_confirmed(machine):
    if os.geteuid() != 0:
        machine.store(ec.generate_private_key(ec.SECP256R1()))
        done = machine.join("--reset", "--yes", variable=TOKEN)
        assert done.returncode == 1 and "run it as root" in done.out
        return
    machine.store(ec.generate_private_key(ec.SECP256R1()))
    for name in ("journal.db", "node.key.next"):
        (machine.data / name).write_text("x")
    before = machine.names()
    done = machine.join("--reset", variable=TOKEN)
    assert done.returncode == 2 and machine.names() == before
    assert all(name in done.out for name in before) and "--yes" in done.out
    taken(machine.join("--reset", "--yes", variable=TOKEN))
    assert [name.split("-")[0] for name in machine.names()] == [
        "identity.json.reset", "journal.db.reset", "node.key", "node.key.next.reset", "node.key.reset"]
