"""Command lines as nobody means them: whatever stands there, `bcd ramdisk` says on one line what is wrong, and no secret."""

import random
import re
import unicodedata

import pytest

from ramdisk.boots import OTHER, Boot, secrets

NEEDED = ["bc.gateway", "bc.site", "bc.pins", "bc.jwk", "bc.token", "bc.assertion"]


def refused(one, line, hidden=()):
    """It refuses `line`: what it says."""
    one.line = line
    code, said = one.run()
    assert code == 2 and said.startswith("bcd ramdisk: ") and said.count("\n") == 1, (line, code, said)
    assert not {"Cc", "Zl", "Zp"} & set(map(unicodedata.category, said[:-1])) and len(said) < 4096, repr(said)
    assert not any(secret in said for secret in hidden), said
    return said


def test_each_parameter_alone_missing_doubled_and_quoted(boot):
    one = boot()
    whole, hidden = one.line, secrets(one)
    words = whole.split()
    for name in NEEDED:
        own = next(word for word in words if word.startswith(f"{name}="))
        rest = " ".join(word for word in words if word != own)
        for line in (rest, f"{rest} {name}", f"{rest} {name}=", f"{rest} x{own}", f"{rest} {name.upper()}=x"):
            assert re.match(rf"bcd ramdisk: the kernel command line lacks {name}[;\n]", refused(one, line, hidden)), line
        said = refused(one, f"{whole} {name}=another", hidden)
        assert said.startswith(f"bcd ramdisk: {name} stands twice on the kernel command line, as "), said
        # A value that lost its end, or has another one's.
        for value in (own[:-9], f"{own}A", f"{own[:-1]}\u00e9", f"{own}\x1b[2J", f'{own[:len(name) + 1]}"{own[len(name) + 1:]} x"'):
            if name not in ("bc.gateway", "bc.site") or "\x1b" in value:
                refused(one, f"{rest} {value}", hidden)
    # Once more, the same, quoted in both ways, in another order, after an end of options: that is as good as plain.
    quoted = [f'"{word}"' if n % 2 else word.replace("=", '="', 1) + '"' for n, word in enumerate(reversed(words))]
    one.line = " ".join([*quoted, "--", *words, "\t", *quoted])
    one.start()
    one.connected()


@pytest.mark.parametrize("limit", [255, 511, 1023, 2047])
def test_a_line_that_anybody_cuts_anywhere_is_called_cut(boot, limit):
    one = boot()
    whole, hidden = one.line, secrets(one)
    # Where it is short enough already, the site's own parameters stand before it.
    cut = (whole if len(whole) > limit else "x" * (limit + 40 - len(whole)) + " " + whole)[:limit]
    assert f"looks cut off after {limit} bytes, in or after " in refused(one, cut, hidden)
    for end in random.Random(limit).sample(range(40, whole.index(" BOOTIF")), 6):
        said = refused(one, whole[:end], hidden)
        assert "looks cut off" in said or "the line ends in bc." in said, (end, said)


def test_bytes_that_are_no_line_are_refused_like_any_other(boot):
    one = boot()
    whole, hidden = one.line.encode(), secrets(one)
    dice = random.Random(6)
    for line in [
        b"", b"\0", b"\0" * 5000, b"\xff\xfe" * 2000, b'"' * 999, b"=" * 999, b'"bc.token=' + whole, whole.replace(b" ", b"\0"),
        whole.replace(b"bc.site=", b'bc.site="', 1), whole.replace(b"bc.", b"bc.\0"), b"a " * 30_000 + whole, b"x" * 60_000 + whole,
        whole.replace(b"https://", b"https://me:pw@"), whole.replace(b"https://", b"http://"), whole.replace(b"https://", b"https://[::1"),
        re.sub(rb"(bc.gateway=https://[^ :]+):\d+", rb"\1:99999", whole), re.sub(rb"bc.site=\S+", b"bc.site=" + b"s" * 129, whole),
        re.sub(rb"bc.site=\S+", b'bc.site="a b"', whole), re.sub(rb"(bc.pins=\S+)", rb"\1,\1", whole), whole + b" bc.server_name=" + b"a." * 200,
        whole + b" bc.cache=file:///etc/shadow", re.sub(rb"bc.token=\S+", b"bc.token=bcjt_" + b"9" * 4000, whole),
        re.sub(rb"bc.assertion=\S+", b"bc.assertion=" + b"A" * 60_000, whole),
        re.sub(rb"bc.token=", b"bc.token=bcjt_hush", whole),
        *(dice.randbytes(dice.randrange(3000)) for _ in range(20)),
    ]:
        said = refused(one, line, [*hidden, "hush", "pw@"])
        assert "panicked" not in said


def test_a_quote_that_swallows_the_token_does_not_show_it(boot, bcd, dev, tmp_path):
    """Nor do the facts of a machine whose line holds it within another parameter."""
    one = boot()
    whole, hidden = one.line, secrets(one)
    for line in (f'bc.site="{whole}" bc.site=x', f'console="ttyS0 {whole}', f'"bc.gateway {whole}"', f"{whole} bc.site={one.parameter('bc.token')}"):
        refused(one, line, hidden)


@pytest.mark.parametrize("bootif", [None, "", "x", "01-52-54", "00:00:00:00:00:00", "01:00:5e:00:00:01", OTHER, "upper", "bare"])
def test_bootif_is_a_hint_and_no_proof(boot, dev, mac, bootif):
    """The token's MAC decides; a BOOTIF that is not there, wrong or spelt otherwise joins all the same."""
    one = boot()
    own = {"upper": "01-" + mac.replace(":", "-").upper(), "bare": mac}.get(bootif, bootif)
    one.line = re.sub(r" BOOTIF=\S+", "" if own is None else f" BOOTIF={own}", one.line)
    one.start()
    node = one.connected()
    claims = dev.json("machines", "show", mac)["node"]["details"]["claims"]
    assert node["role"] == "ramdisk" and claims.get("bootMac", "") in ("", mac), claims


def test_an_address_is_taken_in_every_spelling_and_nothing_else_is(dev, mac):
    spelt = [mac.upper(), mac.replace(":", "-"), "01-" + mac.replace(":", "-").upper()]
    for text in spelt:
        token = dev.json("tokens", "create", "--pool", "p", "--site", "dev", "--mac", text)
        assert dev.json("tokens", "show", token["id"])["mac"] == mac
        assert f"BOOTIF=01-{mac.replace(':', '-')}" in dev.run("machines", "boot-params", "--mac", text).stdout
    for text in ("", "x", mac[:-1], mac + ":00", mac.replace(":", ""), "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "01:00:5e:00:00:01",
                 mac.replace(":", "."), f" {mac}", f"{mac}\n", "٥٢:54:00:00:00:01"):
        for command in (["machines", "boot-params", "--mac", text], ["machines", "show", text],
                        ["tokens", "create", "--pool", "p", "--site", "dev", "--mac", text]):
            done = dev.run(*command, check=False)
            assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") <= 2, (command, done)
