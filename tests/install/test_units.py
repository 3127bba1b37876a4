"""How exposed the units are that the script writes: SPECIFICATION.md."""

import re
import shutil
import subprocess

import pytest

from lab import ROOT

FILES = ROOT / "src/bin/better-compute/install"


@pytest.mark.parametrize("unit, dropins, most", [
    ("bcd.service", [], 5.2), ("bcd.service", ["unprivileged.conf"], 2.0), ("bcd-helper.service", [], 2.7)])
def test_a_unit_is_exposed_no_more_than_is_promised(tmp_path, unit, dropins, most):
    units = tmp_path / "etc/systemd/system"
    (units / f"{unit}.d").mkdir(parents=True)
    shutil.copy(FILES / unit, units)
    for dropin in dropins:
        shutil.copy(FILES / dropin, units / f"{unit}.d")
    said = subprocess.run(["systemd-analyze", "security", "--offline=true", f"--root={tmp_path}", "--no-pager", unit],
                          capture_output=True, text=True, timeout=30)
    found = re.search(rf"Overall exposure level for {unit}: (\d+\.\d+)", said.stdout)
    assert found, said.stdout + said.stderr
    assert float(found[1]) <= most, said.stdout
