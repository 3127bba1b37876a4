"""`bcd join` while its system calls go wrong, one by one: what it says is true, and no token and no identity is lost."""

import shutil
import subprocess

import pytest

from faults.conftest import UNSEEN, campaign, says
from join.conftest import fleet, machine, token_file  # noqa: F401
from join.test_crash import whole_or_none
from lab import POOL, SITE


@pytest.fixture(scope="module")
def tokens(fleet):  # noqa: F811
    """Fresh tokens, made many at a time."""
    def made():
        while True:
            yield from fleet.run("tokens", "create", "--pool", POOL, "--site", SITE, "--count", "200").stdout.split()
    return made()


def join(node, run, token, *faults):
    """One join under the injector, with its token in a file: how it ended, and what was counted."""
    run.arm(*faults)
    file = token_file(node.dir, token)
    plain, node.command = node.command, [*run.prefix, *node.command]
    try:
        return node.run("join", "--token-file", file, "--timeout", "20"), run.report(), file
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"{faults}: it hangs\n{late.stderr}")
    finally:
        node.command = plain


def judge(fault, done, node, file):
    """What must be true of a join, whatever happened to it."""
    said = done.stderr
    assert done.returncode in (0, 1, 2) and "panicked" not in said, f"{fault}: exit {done.returncode}\n{said}"
    lines = [line for line in said.splitlines() if not line.startswith("bcd join: ")]
    assert not lines, f"{fault}: {lines}"
    identity = whole_or_none(node.data_dir)
    if done.returncode == 0:
        assert identity and identity["spiffe_id"] in done.stdout, f"{fault}: {done.stdout}"
        assert not file.exists() or "delete it yourself" in said, f"{fault}: the token file is left\n{said}"
    else:
        assert identity or file.exists(), f"{fault}: the token's file is gone"
    if fault["what"] in UNSEEN:
        assert (done.returncode, said) == (0, ""), f"{fault}: exit {done.returncode}\n{said}"
    elif done.returncode != 0:
        assert says(said.splitlines()[-1], fault["what"]), f"{fault}: {said}"
    return identity


@pytest.mark.timeout(3600)
def test_a_join_whose_calls_go_wrong_tells_the_truth_and_can_be_run_again(fleet, tokens, machine, injected):  # noqa: F811
    node = machine("whole")
    done, report, _ = join(node, injected("whole", node.dir), next(tokens))
    assert done.returncode == 0, done.stderr
    counts, before = report["counts"], len(fleet.nodes())
    assert counts["sync data"] >= 4 and counts["rename data"] >= 2 and counts["send socket"] >= 2, counts
    tried, wrong, failed, findings = 0, 0, 0, []
    for number, fault in enumerate(campaign(counts)):
        node = machine(f"machine{number}")
        token = next(tokens)
        run = injected(f"machine{number}", node.dir)
        try:
            done, report, file = join(node, run, token, fault)
            tried += 1
            wrong += bool(report["done"])
            failed += done.returncode != 0
            if not report["done"]:
                assert (done.returncode, done.stderr) == (0, ""), f"{fault}: {done.stderr}"
            identity = judge(fault, done, node, file)
            again = node.run("join", *(["--token-file", file] if file.exists() else []))
            assert again.returncode == 0, f"{fault}: and again: {again.stderr}"
            assert identity in (None, whole_or_none(node.data_dir)), f"{fault}: an identity changed"
            left = [path.name for path in node.data_dir.iterdir() if path.name.endswith(".new")]
            assert not left and not file.exists(), f"{fault}: left behind: {left}"
        except (AssertionError, pytest.fail.Exception) as finding:
            findings.append(f"{finding} at {report['done']}")
        shutil.rmtree(node.dir)
        shutil.rmtree(run.plan.parent)
    print(f"{tried} joins, {wrong} with a fault, {failed} failed")  # shown by -s -n 0
    assert not findings, "\n".join([f"{len(findings)} findings", *findings])
    assert wrong > tried * 3 // 4, "the faults do not come to pass"
    assert len(fleet.nodes()) - before == tried, "one node for each token"
