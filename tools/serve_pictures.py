#!/usr/bin/env python3
"""Takes pictures of the pages of `netcl serve` for the book, in light, dark and 360 px: docs/serve-*.png.

    python tools/serve_pictures.py --netcl target/release/netcl --model FOLDER [--chromium /usr/bin/chromium] [--out docs]

FOLDER is a model with a chat template; the pictures show its answers and its device. Needs `pip install playwright`.
"""

import argparse
import json
import threading
import urllib.request
from pathlib import Path

from playwright.sync_api import expect, sync_playwright
from serve_page_check import start, wait


def load(url, ends):
    """Runs some clients until `ends` is set, so that the device is busy."""
    def client(seed):
        while not ends.is_set():
            body = {"prompt": "Once upon a time", "max_tokens": 100 + 20 * seed, "seed": seed, "ignore_eos": True}
            data = json.dumps(body).encode()
            urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", data, {"Content-Type": "application/json"})).read()
            ends.wait(0.2 * seed)
    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
    [thread.start() for thread in threads]
    return threads


def pictures(page, name, out):
    """Takes pictures of one page: light, dark, and dark at 360 px."""
    height = 1000 if name == "device" else 620
    page.mouse.move(450, height - 1)
    for scheme, size, kind in [("light", (900, height), "light"), ("dark", (900, height), "dark"), ("dark", (360, 700), "360")]:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.wait_for_timeout(2500 if name == "device" else 100)
        page.screenshot(path=out / f"serve-{name}-{kind}.png")


def chat(page, url, out):
    page.goto(url)
    wait(page, "document.querySelectorAll('#model option').length > 0")
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("[name=max_tokens]").fill("60")
    page.locator("[name=seed]").fill("5")
    page.locator("[name=temperature]").fill("0.6")
    page.get_by_role("button", name="Settings", exact=True).click()
    for text in ["Once upon a time there was a dog", "One day the dog saw a cat"]:
        page.locator("#text").fill(text)
        page.keyboard.press("Enter")
        wait(page, "document.querySelector('#state').textContent !== 'Writing' && current.messages.at(-1).role === 'assistant'")
        expect(page.locator("#go")).to_have_text("Send")
    pictures(page, "chat", out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--netcl", default="target/release/netcl")
    parser.add_argument("--model", required=True)
    parser.add_argument("--chromium")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    args = parser.parse_args()
    server, url = start(args.netcl, args.model, ["--profile"])
    ends, threads = threading.Event(), []
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 900, "height": 620})
            chat(page, url, args.out)
            threads = load(url, ends)
            page.set_viewport_size({"width": 900, "height": 620})
            page.goto(url + "/device")
            page.wait_for_timeout(20_000)
            pictures(page, "device", args.out)
            browser.close()
    finally:
        ends.set()
        [thread.join() for thread in threads]
        server.terminate()
        server.wait(60)
    for file in sorted(args.out.glob("serve-*.png")):
        assert file.stat().st_size <= 100_000, f"{file} has {file.stat().st_size} bytes"
        print(file, file.stat().st_size)


if __name__ == "__main__":
    main()
