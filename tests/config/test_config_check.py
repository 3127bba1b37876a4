"""`bcd config check`, as a person and as a program use it."""

import json
import os
import subprocess
import tomllib

from test_toml_subset import REQUIRED, required_lines


def run(bcd, *arguments, **more):
    return subprocess.run([bcd, "config", "check", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=20, **more)


def config(tmp_path, *lines, mode=0o600):
    path = tmp_path / "config.toml"
    path.write_text("\n".join([*required_lines(), *lines]) + "\n")
    path.chmod(mode)
    return path


def test_the_effective_configuration_is_itself_a_configuration(bcd, tmp_path):
    path = config(tmp_path, "[log]", 'level = "debug"', "[plugins]", 'dir = "/p"', "memory_max = 1_000")
    done = run(bcd, "--config", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert 'level = "debug"\n' in done.stdout and "json = true  # default\n" in done.stdout
    values = tomllib.loads(done.stdout)
    assert values["plugins"]["memory_max"] == 1000 and values["data_dir"] == "/var/lib/bcd"
    again = tmp_path / "again.toml"
    again.write_text(done.stdout)
    again.chmod(0o600)
    first, second = (json.loads(run(bcd, "--json", "--config", p).stdout)["config"] for p in (path, again))
    assert first == second


def test_every_problem_is_a_line_of_its_own_with_file_line_and_key(bcd, tmp_path):
    path = config(tmp_path, 'data_dri = "/x"', "[journal]", "max_bytes = 999_999_999", "[log]", "level = true")
    done = run(bcd, "--config", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"bcd config check: {path}: line 6: data_dri is an unknown key; did you mean data_dir?",
        f"bcd config check: {path}: line 8: journal.max_bytes must be at most 67108864",
        f"bcd config check: {path}: line 10: log.level must be a string, not a boolean",
    ]


def test_a_missing_file_is_refused_and_named(bcd, tmp_path):
    done = run(bcd, "--config", tmp_path / "none.toml")
    assert done.returncode == 2
    assert str(tmp_path / "none.toml") in done.stderr and "No such file" in done.stderr
    # And what to do.
    assert len(done.stderr.splitlines()) == 2 and "--config" in done.stderr


def test_a_file_that_others_may_read_or_write_is_warned_of(bcd, tmp_path):
    for mode, said in [(0o600, None), (0o640, "can be read by its group"), (0o606, "can be read and written by others")]:
        done = run(bcd, "--config", config(tmp_path, mode=mode))
        assert done.returncode == 0
        if said is None:
            assert done.stderr == ""
        else:
            assert said in done.stderr and "chmod 0600" in done.stderr


def test_a_file_of_a_newer_version_is_read_and_what_is_passed_over_is_said(bcd, tmp_path):
    path = config(tmp_path, '[flux]', 'capacitor = "1.21 GW"')
    assert run(bcd, "--config", path).returncode == 2
    path = config(tmp_path, 'newer_keys = "flux.*"', '[flux]', 'capacitor = "1.21 GW"')
    done = run(bcd, "--config", path)
    assert done.returncode == 0
    assert "line 8: flux.capacitor is ignored" in done.stderr


def test_control_characters_of_a_file_never_reach_the_terminal(bcd, tmp_path):
    path = config(tmp_path, '[helper]', r'instance_bridges = "\u001b[31mred"')
    done = run(bcd, "--config", path)
    assert done.returncode == 2 and "\x1b" not in done.stderr and "is not an interface name" in done.stderr


def test_a_token_pasted_as_an_argument_is_not_echoed(bcd):
    token = "bcjt_jt_01k5wqb3zt9v7e8r2m4n6p0s1d." + "A" * 43
    for arguments in [["config", "check", token], [token], ["config", "check", "--" + token], ["config", token],
                      ["config", "check", "--config", "/nonexistent", token], ["version", f"--token={token}"]]:
        done = subprocess.run([bcd, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
        assert done.returncode == 2 and "bcjt" not in done.stdout + done.stderr


def test_a_reader_that_goes_away_ends_the_command_quietly(bcd, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([bcd, "config", "check", "--config", config(tmp_path)], stdout=writer,
                          stderr=subprocess.PIPE, timeout=20)
    os.close(writer)
    assert done.returncode == 1 and done.stderr == b""
    with open("/dev/full", "w") as full:
        done = subprocess.run([bcd, "version"], stdout=full, stderr=subprocess.PIPE, timeout=20)
    assert done.returncode == 1 and b"No space left" in done.stderr


def test_the_required_keys_are_all_asked_for_at_once(bcd, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("")
    problems = json.loads(run(bcd, "--json", "--config", path).stdout)["problems"]
    assert [problem["key"] for problem in problems] == list(REQUIRED)
