"""Rule context: a region works as a context manager."""

from ampcheck.suite import Amp, scenario


@scenario()
def test_restores_on_exit(amp: Amp) -> None:
    before = amp.state()
    with amp.region():
        amp.expect("state inside the region", amp.state(), (True, amp.dtype, True))
        amp.expect("dtype a product runs in", amp.probe(), amp.dtype)
    amp.expect("state after the region", amp.state(), before)
