"""How exposed the units are that the script writes: SPECIFICATION.md."""

import re
import shutil
import subprocess

import pytest

from lab import ROOT
from promises import hold

FILES = ROOT / "src/bin/better-compute/install"


@pytest.mark.parametrize("promise, unit, dropins", [
    ("unit.exposure", "bcd.service", []), ("unit.exposure.unprivileged", "bcd.service", ["unprivileged.conf"]),
    ("unit.exposure.helper", "bcd-helper.service", [])])
def test_a_unit_is_exposed_no_more_than_is_promised(tmp_path, promise, unit, dropins):
    units = tmp_path / "etc/systemd/system"
    (units / f"{unit}.d").mkdir(parents=True)
    shutil.copy(FILES / unit, units)
    for dropin in dropins:
        shutil.copy(FILES / dropin, units / f"{unit}.d")
    said = subprocess.run(["systemd-analyze", "security", "--offline=true", f"--root={tmp_path}", "--no-pager", unit],
                          capture_output=True, text=True, timeout=30)
    found = re.search(rf"Overall exposure level for {unit}: (\d+\.\d+)", said.stdout)
    assert found, said.stdout + said.stderr
    hold(promise, float(found[1]), otherwise="`systemd-analyze security --offline=true` tells what counts.")
