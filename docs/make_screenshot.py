"""Pictures of the explorer page: the sample catalogue, the small model, a real server, a real browser.

    PYTHONPATH=benchmarks python -m docs.make_screenshot docs/images

Needs chromium, chromedriver and Pillow (the extra `plots` brings it). Writes explorer.png (auto, with
past queries) and explorer-disc.png.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image

from harness.served_process import serving
from genret.retrieval.checkpoints import DEFAULT_MODEL_VARIABLE
from genret.retrieval.defaults import sample_catalogue, sample_queries, small_model_dir
from tests.e2e.headless_browser import Page, headless_page

_NUM_COLOURS = 128


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture.

    Attributes:
        file: Its name.
        state: Query and options, as the address carries them.
        click: Selector of what is clicked first.
        scheme: "light" or "dark".
        width: Of the window, CSS pixels.
    """

    file: str
    state: dict[str, str]
    click: str = ""
    scheme: str = "light"
    width: int = 1280


AUTO = {"query": "german city where oktoberfest is held", "k": "3"}
BEAM = AUTO | {"method": "RETRIEVAL_METHOD_BEAM", "exact": "true"}
DISC = {
    "query": "which noble gas makes up about one percent of the air",
    "method": "RETRIEVAL_METHOD_DISC",
    "k": "5",
    "num_samples": "6",
    "seed": "1",
}
JSON = {"tab": "json", "query": "german city where oktoberfest is held", "shortlist": "1"}
COMPARE = {"tab": "compare", "query": "red planet", "k": "5"}
PICTURES = (
    Picture("explorer.png", AUTO, ".candidate button"),
    Picture("explorer-disc.png", DISC, ".draw"),
)
# For those who change the page: what else is worth a look.
FURTHER = (
    Picture("explorer-beam.png", BEAM, ".candidate button"),
    Picture("explorer-shortlist.png", AUTO | {"method": "RETRIEVAL_METHOD_SHORTLIST"}),
    Picture("explorer-dark.png", AUTO, ".candidate button", "dark"),
    Picture("explorer-disc-dark.png", DISC, ".draw", "dark"),
    Picture("explorer-narrow.png", AUTO, ".candidate button", width=390),
    Picture("explorer-disc-narrow.png", DISC, ".draw", width=390),
    Picture("explorer-compare.png", COMPARE, ".compared button"),
    Picture("explorer-compare-dark.png", COMPARE, ".compared button", "dark"),
    Picture("explorer-compare-narrow.png", COMPARE, ".compared button", width=390),
    Picture("explorer-json.png", JSON),
    Picture("explorer-json-narrow.png", JSON, width=390),
)


def take(page: Page, url: str, picture: Picture, out: Path) -> None:
    """Show what a picture is of, and write it."""
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": picture.width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    scheme = {"name": "prefers-color-scheme", "value": picture.scheme}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    page.open(f"{url}#{urlencode(picture.state)}")
    page.until(lambda: page.all("#results > *"), "an answer")
    if picture.click:
        page.all(picture.click)[0].click()
    page.driver.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")
    shot = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    path = out / picture.file
    with Image.open(io.BytesIO(base64.b64decode(shot["data"]))) as image:
        # A page has few colours, and a palette of them makes a file of half the size.
        image.convert("RGB").quantize(_NUM_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def main() -> None:
    """Build the sample index, serve it, take the pictures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("out", type=Path, help="folder of the pictures")
    parser.add_argument("--further", action="store_true", help="narrow, dark and JSON ones, too")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ[DEFAULT_MODEL_VARIABLE] = str(small_model_dir())  # says the same on every machine
    with tempfile.TemporaryDirectory(prefix="genret-pictures-") as folder:
        index, port = Path(folder) / "sample.index", free_port()
        build = [sys.executable, "-m", "genret", "build", str(sample_catalogue()), "--out", str(index)]
        build += ["--queries", f"{sample_queries()}#train"]
        subprocess.run(build, check=True)
        with (
            serving(index, "--http-port", str(port)),
            headless_page(Path(folder) / "profile", "--hide-scrollbars") as page,
        ):
            for picture in (*PICTURES, *(FURTHER if arguments.further else ())):
                for _ in range(2):  # the first answer of a server takes longer than those that follow
                    take(page, f"http://127.0.0.1:{port}/", picture, arguments.out)


if __name__ == "__main__":
    main()
