"""`bcd facts` beside other programs' view of the same machine: lscpu, lsblk, ip, uname and /proc, here and in
network namespaces that are made for it. docs/facts.md says what is told and what is left out."""

import ipaddress
import json
import os
import pathlib
import secrets
import subprocess
import tempfile
import threading

import pytest

LASTING = {"bond", "team", "vlan", "bridge", "ipoib"}


def output(*command, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60, **more)
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def facts(bcd):
    """facts(*prefix) runs `bcd facts --json`, behind the words of the prefix."""

    def run(*prefix, **more):
        return json.loads(output(*prefix, bcd, "facts", "--json", **more))

    return run


@pytest.fixture
def namespace():
    """A network namespace's name, and how to run something in it."""
    name = f"bcd-facts-{secrets.token_hex(4)}"
    output("ip", "netns", "add", name)
    try:
        yield name, ("ip", "netns", "exec", name)
    finally:
        output("ip", "netns", "del", name)


def expected_interfaces(inside=()):
    """What is to be told of the interfaces, made from iproute2's JSON."""
    details = json.loads(output(*inside, "ip", "-json", "-details", "link"))
    addresses = {}
    for link in json.loads(output(*inside, "ip", "-json", "addr")):
        own = []
        for one in link["addr_info"]:
            unsettled = any(one.get(flag) for flag in ("temporary", "tentative", "deprecated", "dadfailed"))
            if one["family"] == "inet" or not (unsettled or ipaddress.ip_address(one["local"]).is_link_local):
                address = ipaddress.ip_address(one["local"])
                own.append((address.version, int(address), one["prefixlen"], one["local"]))
        addresses[link["ifname"]] = [f"{text}/{length}" for _, _, length, text in sorted(own)]
    expected = {}
    for link in details:
        kind = link.get("linkinfo", {}).get("info_kind", "")
        own = addresses[link["ifname"]]
        is_card = not kind and link["link_type"] != "loopback"
        if is_card or kind in LASTING or own:
            mac = link.get("address", "")
            expected[link["ifname"]] = {
                "kind": kind or ("loopback" if link["link_type"] == "loopback" else "physical"),
                "mac": "" if set(mac) <= set("0:") else mac,
                "mtu": link["mtu"],
                "up": "UP" in link["flags"],
                "carrier": "LOWER_UP" in link["flags"],
                "addresses": own,
            }
    return expected


def told_interfaces(facts):
    names = ("kind", "mac", "mtu", "up", "carrier", "addresses")
    return {one["name"]: {name: one[name] for name in names} for one in facts["interfaces"]}


def test_processors_memory_and_kernel_are_those_of_lscpu_and_uname(facts):
    told = facts()
    lscpu = {row["field"].rstrip(":"): row["data"] for row in json.loads(output("lscpu", "-J"))["lscpu"]}
    assert told["cpu"] == {
        "model": lscpu["Model name"],
        "sockets": int(lscpu["Socket(s)"]),
        "cores": int(lscpu["Socket(s)"]) * int(lscpu["Core(s) per socket"]),
        "threads": int(output("nproc", "--all")),
    }
    total = next(line for line in pathlib.Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    assert told["memory_bytes"] == int(total.split()[1]) * 1024
    uname = os.uname()
    assert told["hostname"] == uname.nodename
    assert told["kernel"]["release"] == uname.release
    assert told["kernel"]["version"] == uname.version
    assert told["kernel"]["architecture"] == uname.machine
    known = {"KVM": "kvm", "Xen": "xen", "VMware": "vmware", "Microsoft": "microsoft", None: "none"}
    vendor = lscpu.get("Hypervisor vendor")
    if told["virtualization"] != "container" and vendor in known:
        # Firmware may name the machine more closely than the processor.
        assert told["virtualization"] == known[vendor] or told["firmware"]["system_vendor"]


def test_disks_are_those_of_lsblk(facts):
    columns = "NAME,SIZE,ROTA,RM,RO,LOG-SEC,TYPE"
    listed = json.loads(output("lsblk", "-J", "-b", "-d", "-o", columns))["blockdevices"]
    expected = {
        disk["name"]: (disk["size"], disk["rota"], disk["rm"], disk["ro"], disk["log-sec"])
        for disk in listed
        if disk["type"] == "disk" and disk["size"] > 0 and pathlib.Path("/sys/block", disk["name"], "device").exists()
    }
    told = facts()["disks"]
    assert {
        disk["kernel_name"]: (
            disk["size_bytes"], disk["rotational"], disk["removable"], disk["read_only"], disk["logical_block_bytes"])
        for disk in told
    } == expected
    names = [disk["stable_name"] for disk in told]
    assert all(names) and len(set(names)) == len(names)
    assert not set(names) & set(expected), "a name of this boot does not last"


def test_interfaces_are_those_of_ip(facts):
    assert told_interfaces(facts()) == expected_interfaces()


def test_in_a_namespace_what_carries_an_address_is_told(facts, namespace):
    name, inside = namespace
    for command in (
        "link set lo up",
        "link add br0 type bridge",
        "link add v0 type veth peer name v1",
        "link add v2 type veth peer name v3",
        "link set v0 master br0",
        "link add x0 type vxlan id 7 dstport 4789 remote 192.0.2.99 dev v2",
        "link set v2 mtu 9000 up",
        "link set v3 up",
        "link set br0 up",
        "address add 192.0.2.1/24 dev v2",
        "address add 192.0.2.1/32 dev lo",
        "address add 10.1.2.3 peer 10.1.2.4/32 dev v3",
        "address add 2001:db8::1/64 dev v2 nodad",
        "address add fd00::9/128 dev br0 nodad",
        "address add fe80::99/64 dev v2 nodad",
    ):
        output("ip", "-n", name, *command.split())
    told = told_interfaces(facts(*inside))
    assert told == expected_interfaces(inside)
    assert set(told) == {"lo", "br0", "v2", "v3"}
    assert told["v3"]["addresses"] == ["10.1.2.3/32"]
    # With the sysfs of another namespace before its eyes.
    assert told_interfaces(facts("nsenter", f"--net=/run/netns/{name}")) == told


def test_hundreds_of_interfaces_and_addresses_are_told_in_full_up_to_the_bounds(facts, namespace):
    name, inside = namespace
    bridges = "".join(f"link add b{i:03} type bridge\n" for i in range(200))
    few = "".join(f"address add 10.0.{i}.{i % 250 + 1}/24 dev b{i:03}\n" for i in range(200))
    output("ip", "-n", name, "-batch", "-", input=bridges + few)
    told = facts(*inside)
    assert told_interfaces(told) == expected_interfaces(inside)
    assert len(told["interfaces"]) == 200 and not [p for p in told["problems"] if p.startswith("nics:")]

    many = "".join(f"address add 172.16.{i // 250}.{i % 250 + 1}/16 dev b000\n" for i in range(500))
    more = "".join(f"link add c{i:03} type bridge\n" for i in range(100))
    output("ip", "-n", name, "-batch", "-", input=many + more)
    told = facts(*inside)
    assert [p for p in told["problems"] if p.startswith("nics:")] == [
        "nics: more than 256 interfaces: the others are left out",
        "nics: very many addresses: some are left out",
    ]
    assert len(told["interfaces"]) == 256
    first = told_interfaces(told)["b000"]["addresses"]
    assert first == expected_interfaces(inside)["b000"]["addresses"][:64]


def test_a_table_that_changes_while_it_is_read_is_read_again(facts, namespace):
    name, inside = namespace
    lasting = {f"b{i:02}" for i in range(60)}
    output("ip", "-n", name, "-batch", "-", input="".join(f"link add {one} type bridge\n" for one in sorted(lasting)))
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            batch = "".join(f"link add t{i} type bridge\n" for i in range(20))
            batch += "".join(f"link del t{i}\n" for i in range(20))
            subprocess.run(["ip", "-n", name, "-batch", "-"], input=batch, text=True, capture_output=True, timeout=60)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20):
            told = [one["name"] for one in facts(*inside)["interfaces"]]
            assert lasting <= set(told)
            assert len(told) == len(set(told)), "an interface is told twice"
    finally:
        stop.set()
        thread.join()


def test_it_needs_no_root_no_proc_and_no_sys(bcd, facts, tmp_path):
    # The checkout and pytest's directories may be closed to others.
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o755)
        program = pathlib.Path(open_to_all) / "bcd"
        program.write_bytes(bcd.read_bytes())
        program.chmod(0o755)
        told = subprocess.run([program, "facts", "--json"], user=65534, group=65534, extra_groups=[], cwd="/",
                              capture_output=True, timeout=60, check=True).stdout
        assert json.loads(told)["memory_bytes"] > 0
    program = tmp_path / "bcd"
    program.write_bytes(bcd.read_bytes())
    program.chmod(0o755)
    hidden = f"mount -t tmpfs none /sys && mount -t tmpfs none /proc && exec {program} facts --json"
    told = json.loads(output("unshare", "--mount", "sh", "-c", hidden))
    assert told["disks"] == [] and told["memory_bytes"] == 0
    areas = {problem.split(":")[0] for problem in told["problems"]}
    assert {"cpu", "memory", "disks", "kernel"} <= areas
    # Netlink needs neither.
    assert "lo" in [one["name"] for one in told["interfaces"]]


def test_secrets_on_the_command_line_stay_on_the_machine(bcd, facts, tmp_path):
    line = tmp_path / "cmdline"
    line.write_text("root=/dev/sda1 bc.token=bcjt_jt_1.hush ks=https://me:hush@host/ks.cfg quiet\n")
    told = facts("unshare", "--mount", "sh", "-c", f'mount --bind {line} /proc/cmdline && exec "$0" "$@"')
    assert told["kernel"]["command_line"] == "root=/dev/sda1 bc.token=*** ks=https://***@host/ks.cfg quiet"


def test_text_for_people_says_the_same(bcd, facts):
    told = facts()
    lines = output(bcd, "facts").splitlines()
    assert f"hostname:     {told['hostname']}" in lines
    disks = [line for line in lines if line.startswith("disk:")]
    assert len(disks) == len(told["disks"])
    assert all(disk["stable_name"] in line for disk, line in zip(told["disks"], disks))
    assert len([line for line in lines if line.startswith("interface:")]) == len(told["interfaces"])
