"""Machines whose clock is wrong join and hold a session all the same: certificates are judged by trusted time."""

import re

import pytest

from qemu.machine import days_ahead

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("base", [
    pytest.param("1980-01-01", id="no-battery"),
    pytest.param(days_ahead(-0.2), id="local-time-as-utc"),
    pytest.param(days_ahead(1), id="a-day-ahead"),
    pytest.param(days_ahead(366 * 15), id="fifteen-years-ahead"),
])
def test_a_machine_joins_and_connects_whatever_its_clock_says(node_guest, base):
    guest = node_guest()
    guest.start("-rtc", f"base={base}")
    guest.connected()
    # It was as wrong as it was made.
    assert f"guest: the clock says {base[:7]}" in guest.guest.output()


def test_a_clock_three_years_ahead_is_named_beside_the_certificate_it_cannot_believe(node_guest):
    """Nearer than ten years, such a clock could be right: then the certificate would have expired."""
    guest = node_guest()
    base = days_ahead(366 * 3)
    guest.start("-rtc", f"base={base}")
    guest.guest.wait_for(r"^guest: joined with exit code 1$")
    said = re.search(r"^bcd join: .* expired at (\S+), and it is (\S+) \(trusted time\); .*set this host's clock.*$",
                     guest.guest.output(), re.M)
    assert said and said[2].startswith(base[:10]), guest.guest.output()
