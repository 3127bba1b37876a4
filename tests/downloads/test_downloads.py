"""The releases' files as machines get them: from directories and from an S3 server, whole and in parts, and nothing else."""

import contextlib
import http.client
import os
import pathlib
import ssl
import subprocess

import pytest

from lab import Background, ControlPlane, clean_env, program, wait_for

ROOT = "/api/compute/downloads/"
BCD, IPMI = "bcd/1.2.3/linux-amd64", "bcx-ipmi/1.2.3/linux-arm64"
REGION, KEY, SECRET = "eu-test-1", "AKIAEXAMPLE", "a/secret+with=signs"


class Serving:
    """A control plane with these flags; `get` asks it."""

    def __init__(self, better_compute, directory, flags, env):
        class Plane(ControlPlane):
            pass

        directory.mkdir()
        Plane.flags = flags
        Plane.prefix = ["env", *(f"{name}={value}" for name, value in env.items())]
        self.plane = Plane(better_compute, directory).start()
        self.trust = ssl.create_default_context(cafile=directory / "serving-ca.pem")

    @contextlib.contextmanager
    def ask(self, path, method="GET", **headers):
        host, port = self.plane.ports["http"].rsplit(":", 1)
        connection = http.client.HTTPSConnection(host, int(port), context=self.trust, timeout=60)
        connection.putrequest(method, ROOT + path)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        yield connection.getresponse()
        connection.close()

    def get(self, path, method="GET", **headers):
        with self.ask(path, method, **headers) as answer:
            return answer.status, answer.headers, answer.read()

    def log(self):
        return self.plane.log.read_text()


@pytest.fixture
def serving(better_compute, tmp_path):
    """serving(*flags, **env)"""
    started = []

    def serve(*flags, **env):
        started.append(Serving(better_compute, tmp_path / f"dev{len(started)}", flags, env))
        return started[-1]

    yield serve
    for one in started:
        one.plane.kill()


@pytest.fixture
def tree(tmp_path):
    """A blob store that is a directory."""
    root = tmp_path / "tree"
    # More than what waits in sockets.
    for name, content in [("bcd/1.2.3/bcd_1.2.3_linux_amd64", os.urandom(8_000_000)), ("bcx-ipmi/1.2.3/bcx-ipmi_1.2.3_linux_arm64.tar.gz", b"archive"),
                          ("bcd/1.2.4+b/bcd_1.2.4+b_linux_amd64", b"built")]:
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(content)
    return root


class Bucket:
    """The same files in an S3 server."""

    def __init__(self, tree, directory, token):
        self.tree, self.log = tree, directory / "s3.log"
        python = program("MOTO_PYTHON", "target/moto/bin/python")
        store = os.path.join(os.path.dirname(__file__), "store.py")
        self.process = Background([python, store, tree, REGION, KEY, SECRET, *([token] if token else [])], self.log)

        def port():
            assert self.process.running(), self.process.output()
            return self.process.output().split("\n")[0].isdigit() and self.process.output().split("\n")[0]

        try:
            self.url = f"http://127.0.0.1:{wait_for('the S3 server', port, 90)}/releases"
        except BaseException:
            self.process.kill()
            raise

    def now(self, what):
        """`cut` or `down`, from now on."""
        self.tree.with_name(f"{self.tree.name}.{what}").touch()


@pytest.fixture(params=[None, "a session's token/+="], ids=["key", "session"])
def bucket(request, tree, tmp_path):
    bucket = Bucket(tree, tmp_path, request.param)
    bucket.env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    if request.param:
        bucket.env["AWS_SESSION_TOKEN"] = request.param
    yield bucket
    bucket.process.kill()


def parts(serving, whole):
    """Everything that a client may ask of a file."""
    status, headers, body = serving.get(BCD)
    assert (status, body) == (200, whole)
    assert headers["content-type"] == "application/octet-stream"
    assert headers["cache-control"] == "public, max-age=31536000, immutable"
    assert headers["accept-ranges"] == "bytes"
    etag = headers["etag"]
    assert etag.startswith('"') and etag.endswith('"')
    status, headers, body = serving.get(BCD, "HEAD", Range="bytes=1-2")
    assert (status, headers["content-length"], headers["etag"], body) == (200, str(len(whole)), etag, b"")
    last = len(whole) - 1
    for asked, first, end in [("0-0", 0, 0), ("100-70000", 100, 70000), (f"{last}-", last, last), ("-10", last - 9, last), ("7-99999999999", 7, last),
                              ("-99999999999", 0, last)]:
        for tag in (None, etag):
            status, headers, body = serving.get(BCD, Range=f"bytes={asked}", **({"If_Range": tag} if tag else {}))
            assert (status, body) == (206, whole[first:end + 1]), asked
            assert headers["content-range"] == f"bytes {first}-{end}/{len(whole)}"
            assert (headers["content-length"], headers["etag"]) == (str(end - first + 1), etag)
    for asked in (f"{len(whole)}-", "-0", "99999999999-"):
        status, headers, _ = serving.get(BCD, Range=f"bytes={asked}")
        assert (status, headers["content-range"], headers["cache-control"]) == (416, f"bytes */{len(whole)}", "no-store"), asked
    # Several ranges, no ranges, or those of another file: the whole.
    for headers in ({"Range": "bytes=0-1,3-4"}, {"Range": "bytes=5-2"}, {"Range": "lines=1-2"}, {"Range": "bytes=0-1", "If_Range": '"other"'}):
        status, _, body = serving.get(BCD, **headers)
        assert (status, body) == (200, whole), headers
    assert serving.get(BCD, If_None_Match=f'"x", {etag}')[::2] == (304, b"")


def test_a_file_of_a_directory_whole_and_in_parts(serving, tree, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    whole = (tree / "bcd/1.2.3/bcd_1.2.3_linux_amd64").read_bytes()
    (flat / "bcd_1.2.3_linux_amd64").write_bytes(whole)
    parts(serving("--downloads", flat), whole)


def test_a_file_of_a_tree_whole_and_in_parts(serving, tree):
    served = serving("--downloads-blob", tree)
    parts(served, (tree / "bcd/1.2.3/bcd_1.2.3_linux_amd64").read_bytes())
    assert served.get(IPMI)[::2] == (200, b"archive")
    assert served.get("bcd/v1.2.4+b/linux-amd64")[::2] == (200, b"built")


def test_a_file_of_a_bucket_whole_and_in_parts(serving, tree, bucket):
    served = serving("--downloads-blob", bucket.url, "--downloads-region", REGION, **bucket.env)
    parts(served, (tree / "bcd/1.2.3/bcd_1.2.3_linux_amd64").read_bytes())
    assert served.get(IPMI)[::2] == (200, b"archive")
    assert served.get("bcd/v1.2.4+b/linux-amd64")[::2] == (200, b"built")
    assert served.get("bcd/9.9.9/linux-amd64")[0] == 404
    assert "downloads.store" not in served.log()


@pytest.mark.parametrize("kind", ["tree", "bucket"])
def test_the_store_is_asked_first_and_the_directory_then(serving, tree, tmp_path, request, kind):
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / "bcd_1.2.3_linux_amd64").write_bytes(b"the directory's")
    (flat / "bcd_1.2.3_linux_arm64").write_bytes(b"only there")
    if kind == "tree":
        served = serving("--downloads", flat, "--downloads-blob", tree)
    else:
        store = Bucket(tree, tmp_path, None)
        request.addfinalizer(store.process.kill)
        served = serving("--downloads", flat, "--downloads-blob", store.url, AWS_REGION=REGION, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
    assert served.get(BCD)[2] == (tree / "bcd/1.2.3/bcd_1.2.3_linux_amd64").read_bytes()
    assert served.get("bcd/1.2.3/linux-arm64")[::2] == (200, b"only there")
    if kind == "bucket":
        # A store that is away does not take with it what the directory has.
        store.now("down")
        assert served.get(BCD)[::2] == (200, b"the directory's")


def test_trouble_with_the_store_is_told_once_and_passed_on_as_such(serving, bucket, tree):
    wrong = {**bucket.env, "AWS_SECRET_ACCESS_KEY": "another"}
    for flags, env in [((), wrong), ((), {**bucket.env, "AWS_ACCESS_KEY_ID": "AKIAOTHER"}), (("--downloads-region", "us-west-1"), bucket.env), ((), {})]:
        served = serving("--downloads-blob", bucket.url, *(flags or ("--downloads-region", REGION)), **env)
        for _ in range(3):
            status, headers, body = served.get(BCD)
            assert (status, headers["cache-control"]) == (503, "no-store") and b"UNAVAILABLE" in body
        # Told once, with what to look at, and without a secret.
        assert served.log().count("downloads.store") == 1 and "answers 403: the credentials" in served.log()
        assert not any(secret in served.log() for secret in (SECRET, "another", "X-Amz"))
    bucket.now("down")
    served = serving("--downloads-blob", bucket.url, "--downloads-region", REGION, **bucket.env)
    assert served.get(BCD)[0] == 503 and "answers 503" in served.log()
    bucket.process.kill()
    served = serving("--downloads-blob", bucket.url, "--downloads-region", REGION, **bucket.env)
    assert served.get(BCD)[0] == 503 and "no answer of the store" in served.log()


def test_an_object_that_is_cut_is_never_taken_for_the_whole(serving, bucket, tree):
    served = serving("--downloads-blob", bucket.url, "--downloads-region", REGION, **bucket.env)
    bucket.now("cut")
    for headers in ({}, {"Range": "bytes=1000-200000"}):
        with served.ask(BCD, **headers) as answer:
            assert answer.status in (200, 206)
            with pytest.raises((http.client.IncompleteRead, ssl.SSLError, ConnectionError)):
                answer.read()


def test_a_large_file_is_never_in_memory(serving, tmp_path, tree, request):
    size = 64 << 20
    with open(tree / "bcd/1.2.3/bcd_1.2.3_linux_arm64", "wb") as file:
        file.truncate(size)
    store = Bucket(tree, tmp_path, None)
    request.addfinalizer(store.process.kill)
    for flags in [(tree,), (store.url, "--downloads-region", REGION)]:
        served = serving("--downloads-blob", *flags, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)

        def memory(what):
            return int(pathlib.Path(f"/proc/{served.plane.process.pid}/status").read_text().split(f"{what}:")[1].split()[0])

        served.get(BCD)
        before = memory("VmRSS")
        with served.ask("bcd/1.2.3/linux-arm64") as answer:
            left = size
            while piece := answer.read(1 << 20):
                left -= len(piece)
        assert left == 0
        assert memory("VmHWM") < before + (16 << 10)


def test_a_client_that_goes_away_leaves_nothing_behind(serving, bucket):
    served = serving("--downloads-blob", bucket.url, "--downloads-region", REGION, **bucket.env)

    def sockets():
        count = 0
        for file in pathlib.Path(f"/proc/{served.plane.process.pid}/fd").iterdir():
            # One that was closed meanwhile is none.
            with contextlib.suppress(FileNotFoundError):
                count += os.readlink(file).startswith("socket:")
        return count

    before = sockets()
    for _ in range(10):
        with served.ask(BCD) as answer:
            answer.read(1000)
            answer.close()
    wait_for("its connections to be closed", lambda: sockets() <= before, 30)


@pytest.mark.parametrize("path", [
    "bcd/1.2.4/linux-amd64", "bcd/1.2.5/linux-amd64", "bcd/1.2.6/linux-amd64", "bcd/1.2.7/linux-amd64", "bcd/1.2.8/linux-amd64", "bcd/1.2.3/linux-arm64",
    "bcd/1.2.3/linux-amd64%00", "bcd%2f1.2.3%2flinux-amd64", "bcd/1.2.3/linux-amd64/", "bcd/1.2.3%2f..%2f1.2.3/linux-amd64", "bcd/../bcd/1.2.3/linux-amd64",
    "bcd/./1.2.3/linux-amd64", "./bcd/1.2.3/linux-amd64", "../downloads/bcd/1.2.3/linux-amd64", "bcd/..%2f..%2fsecret/linux-amd64", "secret", "..%2fsecret",
    "bcd/1.2.3/bcd_1.2.3_linux_amd64", "bcd/1.2.3", "bcd", "", "//bcd/1.2.3/linux-amd64", "bcd\\1.2.3\\linux-amd64", "bcd/1.2.3/linux-amd64;x",
    "bcd/1.2.3/linux-amd64%23", "bcx-ipmi/1.2.3/linux-amd64", "bcx-other/1.2.3/linux-amd64", "BCD/1.2.3/linux-amd64", "bcd/1.2.3/LINUX-amd64",
    "bcd/" + "1" * 5000 + ".2.3/linux-amd64", "bcd/1.2.3-" + "../" * 8 + "secret/linux-amd64"])
def test_nothing_else_can_be_reached(serving_tree, path):
    status, _, body = serving_tree.get(path)
    assert status == 404 and b"secret" not in body


@pytest.fixture(scope="module")
def serving_tree(better_compute, tmp_path_factory):
    """A tree with traps in it."""
    directory = tmp_path_factory.mktemp("traps")
    root = directory / "tree"
    (directory / "outside/1.2.5").mkdir(parents=True)
    (directory / "secret").write_text("secret")
    (directory / "outside/1.2.5/bcd_1.2.5_linux_amd64").write_text("secret")
    (root / "bcd/1.2.3").mkdir(parents=True)
    (root / "bcd/1.2.3/bcd_1.2.3_linux_amd64").write_text("good")
    (root / "secret").write_text("secret")
    (root / "bcd/1.2.4").mkdir()
    (root / "bcd/1.2.4/bcd_1.2.4_linux_amd64").symlink_to("../../../secret")  # a file that leads out
    (root / "bcd/1.2.5").symlink_to("../../outside/1.2.5")  # a directory that does
    (root / "bcd/1.2.6").symlink_to("1.2.3")  # one that stays within
    (root / "bcd/1.2.7/bcd_1.2.7_linux_amd64").mkdir(parents=True)
    (root / "bcd/1.2.8").mkdir()
    os.mkfifo(root / "bcd/1.2.8/bcd_1.2.8_linux_amd64")
    served = Serving(better_compute, directory / "dev", ("--downloads-blob", root), {})
    assert served.get(BCD)[2] == b"good"
    yield served
    served.plane.kill()


@pytest.mark.parametrize("flags, env", [
    (["--downloads", "/missing"], {}), (["--downloads-blob", "/missing"], {}), (["--downloads-region", "eu"], {}), (["--downloads-blob", "http://h"], {}),
    (["--downloads-blob", "ftp://h/b"], {}), (["--downloads-blob", "http://h/b/../c"], {}), (["--downloads-blob", "https://u:p@h/b"], {}),
    (["--downloads", "/", "--downloads-region", "eu"], {}), (["--downloads-blob", "http://h/b"], {"AWS_ACCESS_KEY_ID": "k"}),
    (["--downloads-blob", "http://h/b"], {"AWS_SECRET_ACCESS_KEY": "k"})])
def test_what_cannot_be_served_from_is_a_bad_configuration(better_compute, tmp_path, flags, env):
    done = subprocess.run([better_compute, "dev", "--dir", tmp_path / "dev", *flags], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env=clean_env(**env), timeout=60)
    assert done.returncode == 2 and "INVALID_CONFIG" in done.stderr
