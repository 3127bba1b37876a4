"""config.toml's subset against Python's tomllib: what bcd accepts, tomllib reads to the same values;
what lies outside the subset is refused with its line; nothing crashes.

Keys that bcd does not know are listed in newer_keys, and `bcd config check --json` shows the values it
read for them: so any document can be compared, through the program that ships.
"""

import concurrent.futures
import json
import random
import subprocess
import tomllib

import pytest

PIN = "sha256/47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
REQUIRED = {
    "gateway_url": "https://gw.eu.example.com",
    "site": "fsn1",
    "serving_ca_spki_pin": PIN,
    "join_signing_key_pin": PIN,
    "join_encryption_key_pin": PIN,
}
BARE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
ESCAPES = {"\b": r"\b", "\t": r"\t", "\n": r"\n", "\f": r"\f", "\r": r"\r", '"': r"\"", "\\": r"\\"}


def check(bcd, path):
    """The exit code and the JSON answer of `bcd config check`."""
    done = subprocess.run([bcd, "config", "check", "--json", "--config", path], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=20)
    assert done.returncode in (0, 2), f"exit {done.returncode} on {path.read_bytes()!r}: {done.stderr!r}"
    assert not done.stderr, done.stderr
    answer = json.loads(done.stdout)
    assert answer["ok"] == (done.returncode == 0)
    return answer


def check_all(bcd, directory, documents):
    """Pairs of document and answer."""
    def one(numbered):
        number, document = numbered
        path = directory / f"{number}.toml"
        path.write_bytes(document)
        answer = check(bcd, path)
        path.unlink()
        return document, answer

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        yield from pool.map(one, enumerate(documents))


def read_values(answer):
    """Every value bcd read, by qualified name; defaults included."""
    return {**answer["config"], **answer["newer_keys"]}


def tomllib_values(document):
    values = {}
    for key, value in tomllib.loads(document.decode()).items():
        if isinstance(value, dict):
            values.update({f"{key}.{inner}": of_inner for inner, of_inner in value.items()})
        else:
            values[key] = value
    return values


def assert_same(document, answer):
    ours = read_values(answer)
    for key, value in tomllib_values(document).items():
        assert key in ours and type(ours[key]) is type(value) and ours[key] == value, (
            f"{key}: bcd read {ours.get(key)!r}, tomllib {value!r}, in {document!r}")


class Documents:
    """Random documents of the subset."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def name(self):
        return "".join(self.random.choices(BARE, k=self.random.randint(1, 12)))

    def character(self):
        kind = self.random.random()
        if kind < 0.6:
            return chr(self.random.randint(0x20, 0x7e))
        if kind < 0.75:
            return self.random.choice("\b\t\n\f\r\"\\'#=[]{},.")
        if kind < 0.8:
            return chr(self.random.choice([0, 1, 0x1f, 0x7f, 0x80, 0x9f, 0xa0, 0xfeff, 0x2028, 0xffff, 0x10ffff]))
        while True:
            code = self.random.randint(0x80, 0x10ffff if kind > 0.95 else 0xffff)
            if not 0xd800 <= code <= 0xdfff:
                return chr(code)

    def basic_string(self):
        out = []
        for _ in range(self.random.randint(0, 20)):
            c = self.character()
            code = ord(c)
            must = c in '"\\' or (code < 0x20 and c != "\t") or code == 0x7f
            if must or self.random.random() < 0.1:
                forms = [f"\\U{code:08X}", f"\\U{code:08x}"]
                if code <= 0xffff:
                    forms += [f"\\u{code:04x}", f"\\u{code:04X}"]
                if c in ESCAPES:
                    forms.append(ESCAPES[c])
                c = self.random.choice(forms)
            out.append(c)
        return '"' + "".join(out) + '"'

    def literal_string(self):
        characters = (self.character() for _ in range(self.random.randint(0, 20)))
        plain = [c for c in characters if c != "'" and (c == "\t" or ord(c) >= 0x20) and ord(c) != 0x7f]
        return "'" + "".join(plain) + "'"

    def integer(self):
        bits = self.random.choice([1, 4, 8, 16, 32, 63])
        digits = list(str(self.random.getrandbits(bits)))
        for at in range(len(digits) - 1, 0, -1):
            if self.random.random() < 0.15:
                digits.insert(at, "_")
        return self.random.choice(["", "", "+", "-"]) + "".join(digits)

    def value(self):
        return self.random.choice([
            self.basic_string, self.basic_string, self.literal_string, self.integer,
            lambda: self.random.choice(["true", "false"])])()

    def blank(self):
        return "".join(self.random.choices(" \t", k=self.random.choice([0, 0, 1, 1, 3])))

    def comment(self):
        if self.random.random() < 0.7:
            return ""
        text = (self.character() for _ in range(self.random.randint(0, 10)))
        return "#" + "".join(c for c in text if c == "\t" or (ord(c) >= 0x20 and ord(c) != 0x7f))

    def line(self, key, value):
        return f"{self.blank()}{key}{self.blank()}={self.blank()}{value}{self.blank()}{self.comment()}"

    def lines(self):
        """The lines of a document, and those that a further line may follow at the top level."""
        top = [self.line(key, f'"{value}"') for key, value in REQUIRED.items()]
        newer = []
        names = {*REQUIRED, "newer_keys"}
        for _ in range(self.random.randint(0, 6)):
            name = self.name()
            if name not in names:
                names.add(name)
                newer.append(name)
                top.append(self.line(name, self.value()))
        sections = []
        for _ in range(self.random.randint(0, 3)):
            section = self.name()
            if section in names:
                continue
            names.add(section)
            newer.append(f"{section}.*")
            sections.append(f"{self.blank()}[{self.blank()}{section}{self.blank()}]{self.blank()}{self.comment()}")
            keys = {self.name() for _ in range(self.random.randint(0, 5))}
            sections += [self.line(key, self.value()) for key in sorted(keys)]
        top.append(self.line("newer_keys", '"' + ", ".join(newer) + '"'))
        self.random.shuffle(top)
        return top, sections

    def document(self):
        top, sections = self.lines()
        lines = []
        for line in top + sections:
            while self.random.random() < 0.15:
                lines.append(self.random.choice(["", self.blank(), "# " + self.blank(), self.comment()]))
            lines.append(line)
        end = self.random.choice(["\n", "\n", "\r\n"])
        text = end.join(lines) + self.random.choice([end, end, ""])
        return text.encode()


def test_what_bcd_accepts_tomllib_reads_to_the_same_values(bcd, tmp_path):
    documents = Documents(1)
    for document, answer in check_all(bcd, tmp_path, (documents.document() for _ in range(1500))):
        assert answer["ok"], f"{answer['problems']} in {document!r}"
        assert_same(document, answer)


# One line each, outside the subset or outside TOML; all are lines of their own.
OUTSIDE = [
    "a = []", "a = [1]", 'a = ["x", "y"]', "a = {}", "a = {b = 1}", "a = 1.0", "a = -1.5e3", "a = 1e3", "a = 1E-3",
    "a = inf", "a = +inf", "a = -nan", "a = nan", "a = 1979-05-27", "a = 1979-05-27T07:32:00Z", "a = 07:32:00",
    "a = 1979-05-27 07:32:00", "a = 0x10", "a = 0o17", "a = 0b11", 'a = """x"""', "a = '''x'''", 'a = """', "a = '''",
    "a.b = 1", "a . b = 1", '"a" = 1', "'a' = 1", '"" = 1', "'a'.b = 1", "[a.b]", "[ a . b ]", '["a"]', "['a']", "[[a]]",
    "[]", "[a", "[a]]", "[a] 1", "a", "a =", "a = ", "a = # 1", "= 1", "a = b", "a = yes", "a = True", "a = TRUE",
    "a = null", "a = 01", "a = -01", "a = 1__0", "a = _1", "a = 1_", "a = +", "a = --1", "a = 1 2", 'a = "x" "y"',
    'a = "x', "a = 'x", 'a = "x\\"', 'a = "\\x41"', 'a = "\\e"', 'a = "\\u12"', 'a = "\\ud800"', 'a = "\\U00110000"',
    'a = "\\u+123"', 'a = "\x01"', "a = '\x1f'", 'a = "\x7f"', "# \x00", "# \x7f", "a = 1 # \x08", "a = 1\r2", "\x0ca = 1",
    "a: 1", "a b = 1", "é = 1", "a = “x”", "a = 9223372036854775808", "a = -9223372036854775809", "a = 1,", "a = 1;",
    "\ufeffa = 1", "a\x00 = 1", "a = tru", "a = truefalse", "a = 1_000_", "a = 1 [b]", "[b] a = 1", "/* a */", "// a", "a == 1",
]


def test_everything_outside_the_subset_is_refused_with_its_line(bcd, tmp_path):
    documents = Documents(2)
    cases = []
    for bad in OUTSIDE * 8:
        top, sections = documents.lines()
        # newer_keys would let the key through: it is the form that must be refused.
        top = [line if "newer_keys" not in line else 'newer_keys = "a, b.*, x"' for line in top]
        position = documents.random.randint(0, len(top))
        cases.append((bad, position + 1, "\n".join(top[:position] + [bad] + top[position:]).encode() + b"\n"))
    for (bad, number, _), (document, answer) in zip(cases, check_all(bcd, tmp_path, (case[2] for case in cases))):
        assert not answer["ok"], f"{bad!r} is accepted in {document!r}"
        # Later lines may be refused as well: below a wrong [section] the keys are in another place.
        assert answer["problems"][0]["line"] == number, f"{bad!r} on line {number}: {answer['problems']} in {document!r}"
        assert answer["problems"][0]["message"].startswith(f"line {number}")


def test_random_damage_never_crashes_and_never_reads_otherwise_than_tomllib(bcd, tmp_path):
    documents = Documents(3)
    dice = documents.random

    def damaged():
        document = bytearray(documents.document())
        for _ in range(dice.choice([1, 1, 1, 2, 5])):
            at = dice.randrange(len(document))
            piece = dice.choice([bytes([dice.randrange(256)]), bytes(dice.choices(b"\"'[]{}=#.,_+-\\\r\n \tu0", k=2)), b""])
            document[at:at + dice.choice([0, 1, 1, 4])] = piece
        return bytes(document)

    accepted = 0
    for document, answer in check_all(bcd, tmp_path, (damaged() for _ in range(2500))):
        if answer["ok"]:
            accepted += 1
            assert_same(document, answer)
        else:
            assert answer["problems"] and all(problem["message"] for problem in answer["problems"])
    # The comparison above has to have had something to compare.
    assert accepted > 200


def test_noise_and_deep_nesting_never_crash(bcd, tmp_path):
    dice = random.Random(4)
    noise = [dice.randbytes(dice.randint(0, 2000)) for _ in range(300)]
    noise += [b"[" * 60000, b"a = " + b"[" * 60000, b"a=1\n" * 16000, b"\"" * 60000, b"\\" * 60000, b"\r" * 60000, b"#" * 65535, b""]
    for _, answer in check_all(bcd, tmp_path, noise):
        assert not answer["ok"] and len(answer["problems"]) <= 20


def required_lines():
    return [f'{key} = "{value}"' for key, value in REQUIRED.items()]


@pytest.mark.parametrize("size, ok", [(65536, True), (65537, False)])
def test_a_file_is_at_most_64_kib(bcd, tmp_path, size, ok):
    text = "\n".join(required_lines()) + "\n#"
    path = tmp_path / "config.toml"
    path.write_text(text + "x" * (size - len(text)))
    answer = check(bcd, path)
    assert answer["ok"] == ok
    if not ok:
        assert "over 64 KiB" in answer["problems"][0]["message"]


def test_the_site_section_beside_the_site_key_is_the_one_exception(bcd, tmp_path):
    """The reference has both; TOML itself does not."""
    path = tmp_path / "config.toml"
    path.write_text("\n".join([*required_lines(), "[site]", 'bmc_networks = "10.20.0.0/16"']))
    answer = check(bcd, path)
    assert answer["ok"] and answer["config"]["site"] == "fsn1"
    assert answer["config"]["site.bmc_networks"] == "10.20.0.0/16"
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(path.read_text())
    path.write_text("\n".join([*required_lines(), "[gateway_url]", "a = 1"]))
    assert "with the name of the key on line 1" in check(bcd, path)["problems"][0]["message"]
