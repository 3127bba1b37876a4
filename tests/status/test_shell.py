"""Completions in a real shell, and manual pages before real formatters: both from the tables of --help."""

import re
import subprocess

import pytest

from lab import clean_env


def completed(program, name, line):
    """What bash offers after `line`."""
    script = subprocess.run([program, "completions", "bash"], capture_output=True, text=True, check=True).stdout
    words = line.split(" ")
    function = re.search(r"^complete -F (\S+)", script, re.M)[1]
    asked = script + "\n" + f"""
COMP_WORDS=({' '.join(f"'{word}'" for word in words)})
COMP_CWORD={len(words) - 1}
{function} {name} "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True, env=clean_env(), cwd="/")
    assert done.returncode == 0 and not done.stderr, done.stderr
    return set(done.stdout.split())


def commands(program, *path):
    text = subprocess.run([program, *path, "--help"], capture_output=True, text=True, check=True).stdout
    listed = text.split("Commands:\n")[1].split("\n\n")[0] if "Commands:\n" in text else ""
    return {line.split()[0] for line in listed.splitlines()}


def flags(program, *path):
    text = subprocess.run([program, *path, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  (--[a-z0-9-]+)", text.split("Flags:\n")[-1], re.M)) if "Flags:\n" in text else set()


def everything(program, *path):
    yield path
    for command in sorted(commands(program, *path)):
        yield from everything(program, *path, command)


@pytest.mark.parametrize("name", ["bcd", "better-compute"])
def test_bash_offers_each_command_and_each_flag_of_help(bcd, better_compute, name):
    program = {"bcd": bcd, "better-compute": better_compute}[name]
    seen = 0
    for path in everything(program):
        offered = completed(program, name, " ".join([name, *path, ""]))
        expected = commands(program, *path) | flags(program, *path) | {"--help"}
        assert expected <= offered and offered - expected <= {"bash", "zsh", "fish"}, path
        seen += 1
    assert seen > 10


def test_bash_offers_what_fits_and_nothing_else(bcd):
    assert completed(bcd, "bcd", "bcd st") == {"status"}
    assert completed(bcd, "bcd", "bcd config c") == {"check"}
    assert completed(bcd, "bcd", "bcd status --j") == {"--json"}
    # A value is no command: neither one that looks like it, nor a path that is asked for.
    assert completed(bcd, "bcd", "bcd status --config doctor --w") == {"--watch"}
    assert "/etc" in completed(bcd, "bcd", "bcd status --config /et")
    assert "/etc" in completed(bcd, "bcd", "bcd status --config = /et")
    assert completed(bcd, "bcd", "bcd completions f") == {"fish"}


@pytest.mark.parametrize("shell", ["zsh", "fish", "bash"])
def test_every_shell_takes_its_script(bcd, better_compute, shell, tmp_path):
    for program in (bcd, better_compute):
        script = subprocess.run([program, "completions", shell], capture_output=True, text=True, check=True).stdout
        path = tmp_path / "script"
        path.write_text(script)
        done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr


def test_fish_offers_commands_and_flags(bcd, tmp_path):
    path = tmp_path / "bcd.fish"
    path.write_text(subprocess.run([bcd, "completions", "fish"], capture_output=True, text=True, check=True).stdout)

    def offered(line):
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source {path}; complete -C '{line}'"], capture_output=True, text=True,
            env=clean_env(HOME=str(tmp_path)))
        return {word.split("\t")[0] for word in done.stdout.splitlines()}

    assert commands(bcd) <= offered("bcd ")
    assert offered("bcd config ") == {"check"}
    assert flags(bcd, "status") <= offered("bcd status --")


def test_a_shell_that_is_not_known_is_refused(bcd):
    for arguments in (["tcsh"], []):
        done = subprocess.run([bcd, "completions", *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and not done.stdout


def test_manual_pages_pass_two_formatters_and_hold_all_that_help_says(bcd, better_compute, tmp_path):
    done = subprocess.run(
        [better_compute, "man", "--dir", tmp_path / "man1"], capture_output=True, text=True, check=True)
    pages = sorted((tmp_path / "man1").iterdir())
    assert [str(page) for page in pages] == sorted(done.stdout.split())
    for program, name in ((bcd, "bcd"), (better_compute, "better-compute")):
        for path in everything(program):
            page = tmp_path / "man1" / ("-".join([name, *path]) + ".1")
            shown = subprocess.run(
                ["mandoc", "-T", "ascii", page], capture_output=True, text=True, check=True).stdout
            shown = re.sub(r".\x08", "", shown)
            for word in commands(program, *path) | flags(program, *path):
                assert word in shown, f"{page.name} says nothing of {word}"
    for page in pages:
        lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True)
        assert lint.returncode == 0, lint.stdout + lint.stderr
        groff = subprocess.run(
            ["groff", "-man", "-ww", "-Tutf8", "-z", page], capture_output=True, text=True)
        assert groff.returncode == 0 and not groff.stderr, groff.stderr
