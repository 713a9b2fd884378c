"""Signals while `genret serve` is still importing what it needs."""

from __future__ import annotations

import contextlib
import signal
from functools import partial

import pytest

from genret.service.commands.serve import _signals_before_the_server
from genret.service.configuration.server_config import LogConfig
from genret.service.observability.logs import announce


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


def test_a_stop_that_an_import_swallowed_is_made_up_for(capsys: pytest.CaptureFixture[str]) -> None:
    def serve() -> None:
        with _signals_before_the_server(partial(announce, LogConfig())) as early:
            with contextlib.suppress(BaseException):  # as a bare `except:` around an optional import does
                signal.raise_signal(signal.SIGTERM)
            assert capsys.readouterr().err == ""
            early.stop_if_asked()

    with pytest.raises(SystemExit) as caught:
        serve()
    assert caught.value.code == 143
    assert capsys.readouterr().err == "genret: stopped\n"


def test_nothing_stops_a_server_that_no_signal_has_reached() -> None:
    with _signals_before_the_server(pytest.fail) as early:
        early.stop_if_asked()
