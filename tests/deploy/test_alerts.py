"""The alerting rules fire for what they are written for, as Prometheus evaluates them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

RULES = Path(__file__).parents[2] / "deploy" / "alerts.yaml"

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")


def assert_firing(folder: Path, series: dict[str, str], minute: int, names: list[str]) -> None:
    """Check which alerts fire at a minute, for series of server "a" that are read once a minute.

    Values are in Prometheus' notation: `0+6x60` is 0 and then 60 values, each 6 more; `1x60` is 1, 61 times.
    """
    labelled = {
        name.replace("{", '{job="genret",instance="a",').replace(",}", "}"): values
        for name, values in series.items()
    }
    firing = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names],
    }
    given = [{"series": name, "values": values} for name, values in labelled.items()]
    test = {"interval": "1m", "input_series": given, "promql_expr_test": [firing]}
    path = folder / "test.yaml"  # JSON is YAML, too
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    ran = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_nothing_fires_for_a_server_that_is_well(tmp_path: Path) -> None:
    well = {
        "up{}": "1x60",
        "genret_ready{}": "1x60",
        'genret_requests_total{method="Retrieve",code="OK"}': "0+100x60",
        'genret_index_info{name="p",digest="1"}': "1x60",
        "process_resident_memory_bytes{}": "1e9x60",
    }
    assert_firing(tmp_path, well, 59, [])


ANSWERED = 'genret_requests_total{method="Retrieve",code="OK"}'
UNMET = 'genret_requests_total{method="Retrieve",code="FAILED_PRECONDITION"}'
REFUSED = 'genret_rejected_total{reason="queue_full"}'
ONE, OTHER = (f'genret_index_info{{name="p",digest="{digest}"}}' for digest in "12")


@pytest.mark.parametrize(
    ("name", "minute", "series"),
    [
        ("GenretDown", 5, {"up{}": "0x60"}),
        ("GenretNotReady", 8, {"genret_ready{}": "0x60"}),
        ("GenretRefusing", 30, {REFUSED: "0+6x60", ANSWERED: "0+100x60"}),
        ("GenretPreconditions", 30, {UNMET: "0+6x60", ANSWERED: "0+100x60"}),
        ("GenretVersionsDiffer", 40, {ONE: "1x60", OTHER: "1x60"}),
        ("GenretMemoryHigh", 30, {"process_resident_memory_bytes{}": "3.6e9x60"}),
    ],
)
def test_what_goes_on_for_a_while_is_told(
    tmp_path: Path, name: str, minute: int, series: dict[str, str]
) -> None:
    assert_firing(tmp_path, series, minute, [name])


@pytest.mark.parametrize(
    ("name", "counter"),
    [
        ("GenretInternalError", 'genret_requests_total{method="Retrieve",code="INTERNAL"}'),
        ("GenretEngineRestarted", "genret_engine_restarts_total{}"),
        ("GenretReloadFailed", 'genret_reloads_total{index="p",outcome="failed"}'),
    ],
)
@pytest.mark.parametrize("before", ["0x19", "7x19"])
def test_the_first_failure_is_told_for_a_quarter_of_an_hour(
    tmp_path: Path, name: str, counter: str, before: str
) -> None:
    after = 8 if before.startswith("7") else 1
    # The server shows these counts from its start, as 0, so the first failure is an increase. Among many
    # calls it is no share that another rule would tell.
    healthy = {'genret_requests_total{method="Link",code="OK"}': "0+1000x60"}
    series = healthy | {counter: f"{before} {after}x40"}
    assert_firing(tmp_path, series, 19, [])
    assert_firing(tmp_path, series, 25, [name])
    assert_firing(tmp_path, series, 50, [])
