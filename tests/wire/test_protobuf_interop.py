"""proto-gen's codec against Python's protobuf, both ways.

Thousands of random messages of every kind in the contract and in a schema of every shape go
through Rust and back, and so do bytes that a peer might send to hurt: mutated, cut, joined and
random ones. Both sides must take or refuse the same bytes, and read the same message from
what they take.

SEED repeats a run that failed; MESSAGES is how many random messages of each kind are made.
"""

import math
import os
import pathlib
import random
import struct
import subprocess

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError
from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("SEED", "2029"))
MESSAGES = int(os.environ.get("MESSAGES", "250"))

INTEGERS = {
    Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    Field.CPPTYPE_UINT32: (0, 2**32 - 1),
    Field.CPPTYPE_UINT64: (0, 2**64 - 1),
    Field.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
TEXTS = ["", "a", "node_01hx", "größe", "\u0000", "\U0001f5a5 and more", "\ud7ff\ue000", "x" * 200]


@pytest.fixture(scope="module")
def program():
    """The Rust side. It is built here: it is no program that ships."""
    given = os.environ.get("PROTO_ROUNDTRIP")
    if given:
        return pathlib.Path(given)
    subprocess.run(["cargo", "build", "-q", "-p", "proto-interop"], cwd=ROOT, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    return target / "debug" / "proto-roundtrip"


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    """Both schemas, as protoc understands them."""
    out = tmp_path_factory.mktemp("schema") / "all.pb"
    roots = [ROOT / "proto-gen/proto", ROOT / "proto-gen/interop/proto"]
    files = sorted(str(path.relative_to(root)) for root in roots for path in root.rglob("*.proto"))
    failed = protoc.main(
        ["protoc", *[f"-I{root}" for root in roots], f"--descriptor_set_out={out}", *files])
    assert not failed, "protoc refuses the schemas"
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def classes_of(schema):
    """Python's classes for every message of a schema, by full name."""
    pool = descriptor_pool.DescriptorPool()
    names = []

    def nested(prefix, messages):
        for message in messages:
            if not message.options.map_entry:
                names.append(f"{prefix}.{message.name}")
            nested(f"{prefix}.{message.name}", message.nested_type)

    for file in schema.file:
        pool.Add(file)
        nested(file.package, file.message_type)
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(n)) for n in sorted(names)}


@pytest.fixture(scope="module")
def classes(schema, program):
    """Python's classes for every message of both schemas, by full name."""
    classes = classes_of(schema)
    listed = subprocess.run([program, "--list"], check=True, capture_output=True, text=True)
    assert sorted(listed.stdout.split()) == sorted(classes), "the two sides know different messages"
    return classes


@pytest.fixture(scope="module")
def twins(schema):
    """The same messages with each map as what it is on the wire, a repeated message."""
    plain = descriptor_pb2.FileDescriptorSet()
    plain.CopyFrom(schema)

    def unmap(messages):
        for message in messages:
            message.options.ClearField("map_entry")
            unmap(message.nested_type)

    for file in plain.file:
        unmap(file.message_type)
    return classes_of(plain)


def through_rust(program, requests):
    """What Rust makes of each (name, bytes): bytes, or None and why it refuses them."""
    def block(data):
        return struct.pack("<I", len(data)) + data

    stream = b"".join(block(name.encode()) + block(data) for name, data in requests)
    done = subprocess.run([program], input=stream, capture_output=True, timeout=100)
    assert done.returncode == 0, f"the Rust side died: {done.stderr.decode(errors='replace')}"
    answers, at = [], 0
    while at < len(done.stdout):
        refused, length = struct.unpack_from("<BI", done.stdout, at)
        at += 5
        answer = done.stdout[at:at + length]
        at += length
        answers.append((None, answer.decode()) if refused else (answer, None))
    assert len(answers) == len(requests)
    return answers


def value(rng, field, depth):
    """A random value for one element of a field, edges more often than chance has it."""
    kind = field.cpp_type
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        edges = [0, 1, -1, 127, 128, 2**14, low, high, low + 1, high - 1]
        if field.enum_type:
            edges += [known.number for known in field.enum_type.values]
        picked = rng.choice(edges) if rng.random() < 0.6 else rng.randint(low, high)
        return min(max(picked, low), high)
    if kind == Field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == Field.CPPTYPE_DOUBLE:
        edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.5]
        return rng.choice(edges) if rng.random() < 0.5 else rng.gauss(0, 1e9)
    if kind == Field.CPPTYPE_FLOAT:
        edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-149, 1.5]
        picked = rng.choice(edges) if rng.random() < 0.5 else rng.gauss(0, 1e9)
        return struct.unpack("<f", struct.pack("<f", picked))[0]
    if kind == Field.CPPTYPE_STRING:
        if field.type == Field.TYPE_BYTES:
            return rng.randbytes(rng.choice([0, 1, 3, 65, 127, 128, 300]))
        return rng.choice(TEXTS)
    raise AssertionError(f"{field.full_name}: no values of this kind")


def fill(rng, message, depth=0):
    """Sets random fields of a message."""
    chance = rng.choice([0.1, 0.5, 1.0]) * (0.35 if depth > 2 else 1.0)
    for field in message.DESCRIPTOR.fields:
        if rng.random() > chance:
            continue
        is_message = field.cpp_type == Field.CPPTYPE_MESSAGE
        if is_message and depth > 5:
            continue
        if is_message and field.message_type.GetOptions().map_entry:
            entries = getattr(message, field.name)
            key, item = (field.message_type.fields_by_name[n] for n in ("key", "value"))
            for _ in range(rng.randint(1, 4)):
                k = value(rng, key, depth)
                if item.cpp_type == Field.CPPTYPE_MESSAGE:
                    fill(rng, entries[k], depth + 1)
                else:
                    entries[k] = value(rng, item, depth)
        elif field.is_repeated:
            entries = getattr(message, field.name)
            for _ in range(rng.choice([1, 2, 5] if is_message else [1, 3, 40])):
                if is_message:
                    fill(rng, entries.add(), depth + 1)
                else:
                    entries.append(value(rng, field, depth))
        elif is_message:
            inner = getattr(message, field.name)
            inner.SetInParent()
            fill(rng, inner, depth + 1)
        else:
            setattr(message, field.name, value(rng, field, depth))
    return message


def canonical(message):
    return message.SerializeToString(deterministic=True)


def has_map(descriptor, seen=()):
    if descriptor in seen:
        return False
    inner = [field.message_type for field in descriptor.fields if field.message_type]
    return descriptor.GetOptions().map_entry or any(has_map(d, (*seen, descriptor)) for d in inner)


def same(message, expected, answer):
    """Whether Rust's bytes are Python's, to the byte. In maps the order may differ (Python's sorts
    an empty key last), so there it is what Python reads in them that counts."""
    if has_map(message.DESCRIPTOR):
        answer = canonical(type(message).FromString(answer))
    return answer == expected


def test_random_messages_of_every_kind_survive_both_ways(program, classes):
    rng = random.Random(SEED)
    made = []
    for name, cls in classes.items():
        for index in range(MESSAGES):
            made.append((name, fill(rng, cls()) if index else cls()))
    answers = through_rust(program, [(name, canonical(message)) for name, message in made])
    compared, filled, octets = 0, set(), 0
    for (name, message), (answer, refusal) in zip(made, answers, strict=True):
        sent = canonical(message)
        assert answer is not None, f"{name}: Rust refuses {sent.hex()}: {refusal}"
        assert same(message, sent, answer), f"{name}: {sent.hex()} came back as {answer.hex()}"
        compared += 1
        octets += len(sent)
        if sent:
            filled.add(name)
    print(f"{compared} messages of {len(classes)} kinds, {octets} bytes, equal both ways")
    assert compared >= 5000
    without_fields = {name for name, cls in classes.items() if not cls.DESCRIPTOR.fields}
    assert filled | without_fields == set(classes), "a kind was only ever empty"


def varint(number, least=1):
    """A varint of at least so many bytes: longer than it must be is still the same number."""
    out = bytearray()
    while number >= 0x80 or len(out) + 1 < least:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def any_field(rng, depth=0):
    """A well-formed field of any number and wire type."""
    number = rng.choice([rng.randint(1, 20), rng.randint(1, 2**29 - 1), 2**29 - 1, 2047])
    wire = rng.choice([0, 1, 2, 5] + ([3] if depth < 4 else []))
    tag = varint(number << 3 | wire, rng.choice([1, 1, 1, 5]))
    if wire == 0:
        return tag + varint(rng.choice([0, 1, 2**31, 2**32, rng.getrandbits(64)]), rng.choice([1, 1, 10]))
    if wire in (1, 5):
        return tag + rng.randbytes(8 if wire == 1 else 4)
    inner = b"".join(any_field(rng, depth + 1) for _ in range(rng.randint(0, 3)))
    if wire == 3:
        return tag + inner + varint(number << 3 | 4)
    if rng.random() < 0.3:
        inner = rng.randbytes(rng.randint(0, 12))
    return tag + varint(len(inner), rng.choice([1, 1, 4])) + inner


def hostile(rng, base, other):
    """Bytes close to a message: most are refused late, many are taken."""
    data = bytearray(base)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randint(0, len(data))
        how = rng.randrange(10)
        if how == 0:
            del data[at:]
        elif how == 1 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif how == 2 and data:
            data[at % len(data)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, 0x0B, 0x0C, 0x07])
        elif how == 3:
            data[at:at] = rng.randbytes(rng.randint(1, 4))
        elif how == 4:
            del data[at:at + rng.randint(1, 3)]
        elif how == 5:
            data += other
        elif how == 6:
            data[0:0] = other
        elif how == 7:
            data += any_field(rng)
        elif how == 8:
            data[at:at] = any_field(rng)
        else:
            end = rng.randint(at, len(data))
            data[at:at] = data[at:end]
    return bytes(data[:20000])


def nested(depth, number=2):
    """A Tree within a Tree, so many times."""
    data = b""
    for _ in range(depth):
        data = varint(number << 3 | 2) + varint(len(data)) + data
    return data


def groups(depth, number=1000):
    start, end = varint(number << 3 | 3), varint(number << 3 | 4)
    return start * depth + end * depth


# Each one alone against a message with field 1 of every wire type, and against a Tree.
CORNERS = [
    b"",
    b"\x00",
    b"\x08",
    b"\x08\x80",
    b"\x08" + b"\x80" * 9 + b"\x01",
    b"\x08" + b"\xff" * 9 + b"\x01",
    b"\x08" + b"\xff" * 9 + b"\x02",
    b"\x08" + b"\xff" * 9 + b"\x7f",
    b"\x08" + b"\x80" * 10 + b"\x01",
    b"\x88\x80\x80\x80\x00\x01",
    b"\x88\x80\x80\x80\x80\x00\x01",
    b"\xf8\xff\xff\xff\x0f\x01",
    b"\xf8\xff\xff\xff\x1f\x01",
    b"\xf8\xff\xff\xff\x7f\x01",
    b"\x80\x80\x80\x80\x10\x01",
    b"\x0a\xff\xff\xff\xff\x07",
    b"\x0a\xff\xff\xff\xff\x0f",
    b"\x0a\x80\x80\x80\x80\x10",
    b"\x0a\x80\x80\x80\x80\x00",
    b"\x0a\x81\x80\x80\x80\x00a",
    b"\x0a\x81\x80\x80\x80\x80\x00a",
    b"\x0a\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00a",
    b"\x0b",
    b"\x0c",
    b"\x0b\x0c",
    b"\x0b\x14",
    b"\x0b\x0b\x0c",
    b"\x0b\x0b\x0c\x0c",
    b"\x0b\x00\x0c",
    b"\x0e",
    b"\x0f",
    b"\x0e\x00",
    b"\x09\x01\x02\x03",
    b"\x0d\x01\x02\x03",
    b"\x72\x01\xff",
    b"\x72\x02\xc0\x80",
    b"\x72\x03\xed\xa0\x80",
    b"\x72\x04\xf4\x90\x80\x80",
    b"\x72\x04\xf0\x9f\x96\xa5",
    nested(99), nested(100), nested(101), nested(150),
    groups(99), groups(100), groups(101), groups(5000),
]


def judge(program, classes, twins, requests):
    """Compares both sides' judgement of hostile bytes; returns how many were taken and refused.

    Python's decoder departs from the specification in two ways, and there it is not asked: it takes
    the field number 0 in some messages, which the conformance suite wants refused; and it sets a
    map entry aside in which there is an unknown field. (Its judgement of the map's twin, a
    repeated message, stands in for that.)
    """
    taken = refused = 0
    answers = through_rust(program, requests)
    for (name, data), (answer, refusal) in zip(requests, answers, strict=True):
        cls = classes[name]
        try:
            message = cls.FromString(data)
        except DecodeError as error:
            assert answer is None, f"{name}: only Python refuses {data.hex()}: {error}"
            refused += 1
            continue
        if refusal == "a field has the number 0":
            refused += 1
            continue
        assert answer is not None, f"{name}: only Rust refuses {data.hex()}: {refusal}"
        if has_map(cls.DESCRIPTOR):
            twin = twins[name].FromString(data)
            twin.DiscardUnknownFields()
            message = cls.FromString(twin.SerializeToString())
        message.DiscardUnknownFields()
        expected = canonical(message)
        assert same(message, expected, answer), (
            f"{name}: {data.hex()} is {expected.hex()}, in Rust {answer.hex()}")
        taken += 1
    return taken, refused


def test_both_sides_judge_corner_cases_alike(program, classes, twins):
    requests = [(name, data) for name in classes for data in CORNERS]
    taken, refused = judge(program, classes, twins, requests)
    print(f"{len(requests)} corner cases judged alike: {taken} taken, {refused} refused")
    assert taken > 100 and refused > 100


def test_both_sides_judge_hostile_bytes_alike(program, classes, twins):
    rng = random.Random(SEED + 1)
    requests = []
    for name, cls in classes.items():
        for _ in range(2 * MESSAGES):
            base, other = (canonical(fill(rng, cls(), depth=2)) for _ in range(2))
            requests.append((name, hostile(rng, base, other)))
        for _ in range(MESSAGES):
            requests.append((name, b"".join(any_field(rng) for _ in range(rng.randint(1, 5)))))
            requests.append((name, rng.randbytes(rng.randint(0, 40))))
    taken, refused = judge(program, classes, twins, requests)
    print(f"{len(requests)} hostile inputs judged alike: {taken} taken, {refused} refused")
    assert taken > 5000 and refused > 5000
