"""The five minutes of README.md do what they show, as they stand there."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOWN = (
    r"^joined as spiffe://.*\nalready joined as spiffe://",
    r"^session +connected since",
    r"^node_\S+ .* connected +node +tour +dev",
    r"^verdict: ",
    r"^log +applied ",
    r"section_status log applied",
    r"^session +waiting since .* next try in",
    r"^ok +identity ",
    r"^fail +gateway .*Connection refused",
)


def test_the_tour_of_the_readme_works_as_pasted(bcd, better_compute, tmp_path):
    tour = re.search(r"^## Five minutes\n.*?^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)[1]
    arch = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "dist").mkdir()
    (tmp_path / "target/operator").mkdir(parents=True)
    (tmp_path / f"dist/bcd_0.1.0_linux_{arch}").symlink_to(bcd.resolve())
    (tmp_path / "target/operator/better-compute").symlink_to(better_compute.resolve())
    shell = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)}, start_new_session=True)
    try:
        told, _ = shell.communicate(tour, timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    for wanted in SHOWN:
        assert re.search(wanted, told, re.M), f"no {wanted!r} in what the tour showed:\n{told}"
    assert shell.returncode == 0, told
