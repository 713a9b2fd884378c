"""Signals while `genret serve` is still importing what it needs."""

from __future__ import annotations

import signal
from functools import partial

import pytest

from service.commands.serve import _signals_before_the_server
from service.configuration.sections import LogConfig
from service.observability.logs import announce


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_the_server_runs_is_a_stop(
    capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    before = signal.getsignal(number)
    say = partial(announce, LogConfig())
    with pytest.raises(SystemExit) as caught, _signals_before_the_server(say):
        signal.raise_signal(number)
    assert caught.value.code == code
    assert capsys.readouterr().err == "genret: stopped\n"
    assert signal.getsignal(number) is before
