#!/usr/bin/env python3
"""Drives the chat page of `netcl serve` in headless Chromium: send, stream, stop, retry, edit, reload, keyboard, 360 px, and a server that stops.

    pip install playwright            # Chromium itself may be the system's: --chromium /usr/bin/chromium
    python tools/serve_page_check.py --netcl target/release/netcl --model FOLDER --screenshots DIR

FOLDER is a model with or without a chat template; the answers do not matter. The script starts the server on a free port, and stops it. It
fails at the first deviation. With --axe FILE, the axe.min.js of the npm package axe-core, both pages are also checked by its rules, in
light and dark.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import expect, sync_playwright


def start(netcl, model, more=()):
    """Returns the server and its address, which is its first line of output."""
    server = subprocess.Popen([netcl, "serve", "-m", model, "--port", "0", *more], stdout=subprocess.PIPE, text=True)
    return server, server.stdout.readline().strip()


def wait(page, what, seconds=60):
    """Waits until an expression is true. The page's policy forbids `eval`, which Playwright's own wait needs."""
    end = time.monotonic() + seconds
    while not page.evaluate(what):
        assert time.monotonic() < end, what
        time.sleep(0.05)


def accessible(page, axe, what):
    """Checks that no rule of axe-core is violated, in both color schemes."""
    if axe is None:
        return
    page.evaluate(axe)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate("axe.run(document)")
        broken = [f"{rule['id']} ({rule['impact']}): {rule['help']}: {node['html'][:120]}" for rule in found["violations"] for node in rule["nodes"]]
        assert not broken, f"{what}, {scheme}:\n" + "\n".join(broken)
        print(f"axe-core: {what}, {scheme}: {len(found['passes'])} rules pass, {len(found['incomplete'])} are undecided")


def check(page, url, server, pictures, axe):
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "Content Security Policy" in message.text else None)
    page.goto(url)
    wait(page, "document.querySelectorAll('#model option').length > 0")
    answers, own = page.locator(".message.assistant"), page.locator(".message.user")

    # Keyboard only: the box has the focus, Enter sends.
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("[name=max_tokens]").fill("20")
    page.locator("[name=seed]").fill("7")
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("#text").focus()
    page.keyboard.type("Once upon a time")
    page.keyboard.press("Enter")
    expect(page.locator(".message.assistant .actions")).to_be_visible(timeout=120_000)
    assert "tokens/s" in answers.last.inner_text(), answers.last.inner_text()
    assert page.locator("#spoken").inner_text(), "the answer's end is not announced"
    first = page.evaluate("current.messages[1].content")
    page.screenshot(path=pictures / "chat-light.png")
    accessible(page, axe, "a conversation")
    page.emulate_media(color_scheme="light")

    # The same seed gives the same answer again.
    page.get_by_role("button", name="Answer again").click()
    expect(page.locator(".message.assistant .actions")).to_be_visible(timeout=60_000)
    assert page.evaluate("current.messages.length") == 2 and page.evaluate("current.messages[1].content") == first

    # Stop ends the answer and keeps its text so far.
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("[name=max_tokens]").fill("")
    page.get_by_role("button", name="Settings", exact=True).click()
    # A small model finishes before a program outside of the browser can see that it writes.
    page.evaluate("""() => new MutationObserver((_, observer) => { if (document.querySelector('#state').textContent === 'Writing') {
        observer.disconnect(); document.querySelector('#text').dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true })); } }
        ).observe(document.querySelector('#state'), { childList: true, characterData: true, subtree: true })""")
    page.locator("#text").fill("Lily")
    page.keyboard.press("Enter")
    wait(page, "current.messages.length === 4")
    expect(page.locator("#go")).to_have_text("Send")
    assert page.evaluate("current.messages.at(-1).note").endswith("stopped")

    # Edit: what follows is replaced.
    page.locator("#text").fill("")
    own.first.get_by_role("button", name="Edit this message").click()
    page.get_by_label("Edited message").fill("Tim went **out**\n```c\nint x;\n```")
    page.keyboard.press("Enter")
    wait(page, "document.querySelector('#state').textContent === 'Writing'")
    page.keyboard.press("Escape")
    expect(own).to_have_count(1)

    # A model's output is shown as text, never as markup.
    page.evaluate("""() => { current.messages.push({ role: 'assistant', content:
        '<img src=x onerror=alert(1)> **bold** [x](javascript:alert(1)) [y](https://example.com/)\\n\\n- one\\n- two\\n\\n```python\\nprint(1)\\n```' }); save(); drawTalk(); }""")
    assert answers.last.locator("img").count() == 0 and answers.last.locator("a").count() == 1
    assert answers.last.locator("strong, li, pre").count() == 4

    page.get_by_role("button", name="Settings", exact=True).click()
    accessible(page, axe, "a conversation with marks, and settings")
    page.get_by_role("button", name="Settings", exact=True).click()
    page.emulate_media(color_scheme="light")

    # A reload keeps conversation and settings.
    before = page.evaluate("JSON.stringify(current.messages)")
    page.reload()
    wait(page, "document.querySelectorAll('#model option').length > 0")
    assert page.evaluate("JSON.stringify(current.messages)") == before
    assert page.locator("[name=seed]").input_value() == "7"
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=pictures / "chat-dark.png")

    # A narrow window does not contain anything wider, also with open panels.
    page.set_viewport_size({"width": 360, "height": 700})
    page.get_by_role("button", name="Settings", exact=True).click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("button", name="Settings", exact=True).click()
    page.keyboard.press("Control+k")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.press("Control+k")
    page.screenshot(path=pictures / "chat-360.png")
    accessible(page, axe, "360 px")
    page.goto(url + "/device")
    expect(page.locator("#up")).not_to_have_text("…")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.screenshot(path=pictures / "device-360.png")
    accessible(page, axe, "the device's page")
    page.set_viewport_size({"width": 1000, "height": 800})

    # If the server stops, the page says so and keeps the typed text.
    page.goto(url)
    wait(page, "document.querySelectorAll('#model option').length > 0")
    server.terminate()
    assert server.wait(60) == 0, "the server did not end with 0"
    page.locator("#text").fill("Is anybody there?")
    page.keyboard.press("Enter")
    expect(page.locator(".error[role=alert]")).to_contain_text("does not answer")
    assert page.evaluate("current.messages.at(-1).content") == "Is anybody there?"
    unexpected = [error for error in errors if "Failed to load" not in error and "ERR_CONNECTION" not in error]
    assert not unexpected, unexpected


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--netcl", default="target/release/netcl")
    parser.add_argument("--model", required=True)
    parser.add_argument("--chromium", help="browser executable [default: Playwright's own]")
    parser.add_argument("--axe", type=Path, help="axe.min.js of axe-core")
    parser.add_argument("--screenshots", type=Path, default=Path(tempfile.mkdtemp()))
    args = parser.parse_args()
    args.screenshots.mkdir(parents=True, exist_ok=True)
    server, url = start(args.netcl, args.model)
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
            check(browser.new_page(viewport={"width": 1000, "height": 800}), url, server, args.screenshots, args.axe and args.axe.read_text())
            browser.close()
    finally:
        server.kill()
    print(f"all checks of the page passed; pictures are in {args.screenshots}")


if __name__ == "__main__":
    sys.exit(main())
