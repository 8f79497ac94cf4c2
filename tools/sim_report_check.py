#!/usr/bin/env python3
"""Runs an OpenCL program under `aethercl run --html` and drives the page in headless Chromium: timeline, keyboard, zoom, kernels, themes, 360 px.

    pip install playwright            # Chromium is the one on the path, Playwright's own, or --chromium FILE
    python tools/sim_report_check.py --aethercl target/release/aethercl --screenshots DIR

The program is a small one in C that is built here with `cc` and does not depend on AetherCL. With `--page FILE.html`, an existing page is
checked instead, but only for the parts that every page has. The script fails at the first deviation.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Error, expect, sync_playwright

KERNELS = r"""
// </script><b id="broken">a comment that must stay text</b>
#define N 64
#define TILE 16

float weigh(float x, int i) {
    // every third lane takes the long way
    if (i % 3 == 0)
        return native_exp(x) + native_sin(x) * x;
    return x;
}

kernel void matmul(global const float *a, global const float *b, global float *c) {
    local float s[TILE][TILE], t[TILE][TILE];
    int x = get_global_id(0), y = get_global_id(1), i = get_local_id(0), j = get_local_id(1);
    float sum = 0;
    for (int k = 0; k < N; k += TILE) {
        s[j][i] = a[y * N + k + i];
        t[i][j] = b[(k + j) * N + x];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int l = 0; l < TILE; l++)
            sum += s[j][l] * t[i][l];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    c[y * N + x] = sum;
}

kernel void columns(global const float *a, global float *c) {
    int i = get_global_id(0);
    float sum = 0;
    for (int k = 0; k < N; k++)
        sum += a[(i % N) * N + k];
    c[i] = weigh(sum, i);
}

kernel void reverse(global float *c) {
    int i = get_global_id(0);
    c[N * N - 1 - i] = c[i];
}
"""

HOST = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef void *handle;
#define F(type, name, ...) type (*name)(__VA_ARGS__) = (type (*)(__VA_ARGS__))dlsym(library, #name)
enum { N = 64 };
int main(int count, char **arguments) {
    void *library = dlopen(getenv("OCL_ICD_FILENAMES"), RTLD_NOW);
    if (!library) { puts(dlerror()); return 9; }
    F(int, clGetPlatformIDs, unsigned, handle *, unsigned *);
    F(int, clGetDeviceIDs, handle, unsigned long, unsigned, handle *, unsigned *);
    F(handle, clCreateContext, void *, unsigned, handle *, void *, void *, int *);
    F(handle, clCreateCommandQueue, handle, handle, unsigned long, int *);
    F(handle, clCreateBuffer, handle, unsigned long, size_t, void *, int *);
    F(int, clReleaseMemObject, handle);
    F(handle, clCreateProgramWithSource, handle, unsigned, const char **, size_t *, int *);
    F(int, clBuildProgram, handle, unsigned, handle *, const char *, void *, void *);
    F(handle, clCreateKernel, handle, const char *, int *);
    F(int, clSetKernelArg, handle, unsigned, size_t, const void *);
    F(int, clEnqueueNDRangeKernel, handle, handle, unsigned, size_t *, size_t *, size_t *, unsigned, handle *, handle *);
    F(int, clEnqueueReadBuffer, handle, handle, unsigned, size_t, size_t, void *, unsigned, handle *, handle *);
    F(int, clEnqueueWriteBuffer, handle, handle, unsigned, size_t, size_t, const void *, unsigned, handle *, handle *);
    F(int, clFinish, handle);
    static float data[N * N], out[N * N];
    static char text[1 << 16];
    FILE *file = fopen(arguments[1], "r");
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    for (int i = 0; i < N * N; i++) data[i] = (float)(i % 7) / 7;
    handle platform, device; int e; const char *one = text;
    clGetPlatformIDs(1, &platform, NULL);
    clGetDeviceIDs(platform, 4, 1, &device, NULL);
    handle context = clCreateContext(NULL, 1, &device, NULL, NULL, &e);
    handle first = clCreateCommandQueue(context, device, 0, &e), second = clCreateCommandQueue(context, device, 0, &e);
    handle program = clCreateProgramWithSource(context, 1, &one, NULL, &e);
    if (clBuildProgram(program, 0, NULL, "", NULL, NULL)) return 8;
    handle matmul = clCreateKernel(program, "matmul", &e), columns = clCreateKernel(program, "columns", &e), reverse = clCreateKernel(program, "reverse", &e);
    clCreateKernel(program, "there is none", &e);
    for (int round = 0; round < 6; round++) {
        handle a = clCreateBuffer(context, 1, sizeof data, NULL, &e), b = clCreateBuffer(context, 1, sizeof data, NULL, &e), c = clCreateBuffer(context, 1, sizeof data, NULL, &e);
        clEnqueueWriteBuffer(first, a, 1, 0, sizeof data, data, 0, NULL, NULL);
        clEnqueueWriteBuffer(first, b, 1, 0, sizeof data, data, 0, NULL, NULL);
        size_t plane[2] = { N, N }, tile[2] = { 16, 16 }, line = N * N, group = 64, half = N * N / 2 + 64;
        clSetKernelArg(matmul, 0, sizeof a, &a); clSetKernelArg(matmul, 1, sizeof b, &b); clSetKernelArg(matmul, 2, sizeof c, &c);
        if (clEnqueueNDRangeKernel(first, matmul, 2, NULL, plane, tile, 0, NULL, NULL)) return 7;
        clEnqueueReadBuffer(first, c, 1, 0, sizeof out, out, 0, NULL, NULL);
        clSetKernelArg(columns, 0, sizeof a, &a); clSetKernelArg(columns, 1, sizeof b, &b);
        if (clEnqueueNDRangeKernel(second, columns, 1, NULL, &line, &group, 0, NULL, NULL)) return 6;
        clFinish(second);
        clSetKernelArg(reverse, 0, sizeof c, &c);
        if (clEnqueueNDRangeKernel(second, reverse, 1, NULL, &half, &group, 0, NULL, NULL)) return 5;
        clEnqueueReadBuffer(second, b, 1, 0, sizeof out, out, 0, NULL, NULL);
        clReleaseMemObject(a); clReleaseMemObject(b);
        if (round < 4) clReleaseMemObject(c);
    }
    printf("%g\n", out[1]);
    return 0;
}
"""


def report(aethercl, folder, profile):
    """Checks the page of the program above, and its data."""
    folder.mkdir()
    (folder / "host.c").write_text(HOST)
    (folder / "kernels.cl").write_text(KERNELS)
    subprocess.run(["cc", "-w", folder / "host.c", "-o", folder / "host", "-ldl"], check=True)
    page, data = folder / "report.html", folder / "report.json"
    command = [aethercl, "run", "--check", "all", "--profile", profile, "--html", page, "--json", data, "--", folder / "host", folder / "kernels.cl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    # 7: it ended well, and there are findings: `reverse` has a race.
    assert done.returncode == 7, (done.returncode, done.stderr)
    return page, json.loads(data.read_text())["report"]


def listen(page, errors):
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("request", lambda request: errors.append("asks for " + request.url) if not request.url.startswith(("file:", "data:")) else None)


def fits(page):
    width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1], f"wider than the window: {width}"


def any_page(page, pictures):
    """Checks the parts that every page has."""
    fits(page)
    assert page.locator("h1").count() == 1 and page.locator("main section").count() >= 5
    assert page.locator("nav a").count() >= 4
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    unnamed = page.evaluate("[...document.querySelectorAll('button, select, canvas[tabindex]')].filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).length")
    assert unnamed == 0, f"{unnamed} controls do not have a name"
    page.screenshot(path=pictures / "report-light.png", full_page=True)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 24, 26)"
    page.screenshot(path=pictures / "report-dark.png", full_page=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 360, "height": 740})
    fits(page)
    page.screenshot(path=pictures / "report-360.png", full_page=True)
    page.set_viewport_size({"width": 1280, "height": 900})


def busy_ns(device, unit):
    """Returns the modeled time for which a compute unit ran groups."""
    return sum(run["end_ns"] - run["start_ns"] for c in device["commands"] for run in c["units"] if run["first"] <= unit <= run["last"])


def units(page, device, pictures):
    """Checks the compute units: one row each, in collapsible blocks if there are many; by keyboard, by mouse, and as a table."""
    line, said, whole = page.locator("#commands"), page.locator("#timeline [role=status]"), max(c["end_ns"] for c in device["commands"]) - min(c["queued_ns"] for c in device["commands"])
    launches = [c for c in device["commands"] if c["kind"] == "kernel"]
    groups = {k["name"]: k["longest"]["groups"] for k in device["kernels"]}
    for c in launches:
        assert sum((run["last"] - run["first"] + 1) * run["groups"] for run in c["units"]) == groups[c["name"]], c
        assert all(run["last"] < device["units"] and c["start_ns"] <= run["start_ns"] < run["end_ns"] <= c["end_ns"] for run in c["units"]), c
    many = device["units"] > 32
    folds = page.locator("#timeline button[aria-expanded]")
    assert folds.count() == (-(-device["units"] // 16) if many else 1)
    height = lambda: line.bounding_box()["height"]
    # Folding changes what is drawn, and what is said of it.
    first, before = folds.first, height()
    rows = 16 if many else device["units"]
    assert first.get_attribute("aria-expanded") == ("false" if many else "true")
    first.click()
    assert first.get_attribute("aria-expanded") == ("true" if many else "false")
    assert height() - before == (16 if many else -16) * rows, (before, height())
    if not many:
        first.click()
    # By keys: page down goes to the block and then to its units, space folds.
    line.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("Home")
    page.keyboard.press("PageDown")
    assert said.inner_text().startswith("units 0–"), said.inner_text()
    page.keyboard.press("PageDown")
    words = said.inner_text()
    share = 100 * busy_ns(device, 0) / whole
    assert words.startswith("unit 0: ") and abs(float(words.split(": ")[1].split(" %")[0]) - share) <= 0.5, (words, share)
    assert f"{len(launches)} launches" in words, words
    page.keyboard.press(" ")
    assert first.get_attribute("aria-expanded") == "false" and "folded" in said.inner_text()
    page.keyboard.press(" ")
    assert first.get_attribute("aria-expanded") == "true"
    # By mouse: a span of a unit says what that unit ran.
    box = line.bounding_box()
    c, row = launches[0], page.evaluate("D.commands.reduce((s, c) => s.add('q' + c.queue).add(c.engine === null ? 'q' + c.queue : 'e' + c.engine), new Set()).size")
    run = c["units"][0]
    begin, named = min(c["queued_ns"] for c in device["commands"]), min(box["width"] * 0.3, 110)
    x = named + ((run["start_ns"] + run["end_ns"]) / 2 - begin) / whole * (box["width"] - named)
    page.mouse.click(box["x"] + x, box["y"] + 20 + 26 * row + 20 + 8)
    assert said.inner_text().startswith(f"unit 0, {c['name']}: "), said.inner_text()
    # A busy unit is painted in color. A unit that is never busy is not painted.
    painted = """([x, y]) => { const c = document.getElementById("commands"), d = devicePixelRatio; return [...c.getContext("2d").getImageData(Math.round(x * d), Math.round(y * d), 1, 1).data]; }"""
    assert page.evaluate(painted, [x, 20 + 26 * row + 20 + 4])[3] == 255
    # The same as a table.
    page.locator("#timeline summary", has_text="Compute units").click()
    used = page.locator("#timeline details", has_text="Compute units, as a table")
    table = used.locator("tbody tr")
    while used.locator("button").count():
        used.locator("button").first.click()
    assert table.count() == device["units"] + (folds.count() if many else 0)
    cells = table.filter(has=page.locator("th", has_text="unit 0")).first.locator("td")
    assert abs(float(cells.nth(0).inner_text().split(" %")[0]) - share) <= 0.5, (cells.all_inner_texts(), share)
    assert cells.nth(1).inner_text() == str(len(launches))
    last = table.last.locator("td")
    assert (last.nth(0).inner_text() == "0 %") == (busy_ns(device, device["units"] - 1) == 0), last.all_inner_texts()
    page.locator("#timeline").screenshot(path=pictures / f"report-units-{device['name']}.png")
    page.locator("#timeline summary", has_text="Compute units").click()


def own_page(page, data, pictures):
    """Checks the parts of the page of the program above."""
    device = data["devices"][0]
    kernels = {k["name"]: k for k in device["kernels"]}
    assert set(kernels) == {"matmul", "columns", "reverse"}
    rows = page.locator("#kernels tbody tr")
    assert [row.get_attribute("data-kernel") for row in rows.all()] == [k["name"] for k in device["kernels"]]

    # Use the timeline with the keyboard only: zoom, move, select, and show everything again.
    line, view, said = page.locator("#commands"), page.locator("#timeline .bar .view"), page.locator("#timeline [role=status]")
    whole = view.inner_text()
    line.focus()
    for key in ("+", "+", "ArrowRight"):
        page.keyboard.press(key)
    part = view.inner_text()
    assert part != whole, part
    page.screenshot(path=pictures / "report-zoomed.png")
    page.keyboard.press("ArrowDown")
    first = said.inner_text()
    assert "queued" in first and "took" in first, first
    page.keyboard.press("ArrowDown")
    assert said.inner_text() != first
    page.keyboard.press("Enter")
    assert view.inner_text() != part
    page.keyboard.press("Home")
    assert view.inner_text() == whole

    # By mouse: a click chooses, dragging moves, the wheel with Ctrl zooms; the strip below is a scrub bar.
    page.locator("#timeline").get_by_role("button", name="Zoom in").click()
    box, part = line.bounding_box(), view.inner_text()
    page.mouse.move(box["x"] + 600, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 40, steps=3)
    page.mouse.up()
    assert view.inner_text() != part
    page.locator("#timeline canvas.all").scroll_into_view_if_needed()
    strip = page.locator("#timeline canvas.all").bounding_box()
    page.mouse.click(strip["x"] + 3, strip["y"] + 5)
    assert view.inner_text().startswith("0 ns to"), view.inner_text()
    page.locator("#timeline").get_by_role("button", name="All", exact=True).click()

    # The same as a table: each command of the data once.
    page.locator("#timeline summary", has_text="Visible spans").click()
    listed = page.locator("#timeline details", has_text="Visible spans as a table").locator("tbody tr")
    assert listed.count() == min(100, len(device["commands"])), listed.count()

    # A kernel by keyboard; its lines have the data's figures, and its finding stands below its line.
    page.locator("#kernels tbody button", has_text="reverse").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#kernel h2")).to_have_text("Kernel reverse")
    assert page.locator("#code tr.found").count() >= 1
    assert "race" in page.locator("#code tr.found").first.inner_text()
    page.locator("#findings").get_by_role("button", name="Show line").first.click()
    page.locator("#kernels tbody button", has_text="columns").click()
    far = max(kernels["columns"]["lines"], key=lambda l: l["did"]["cycles"])
    cells = page.locator("#code tbody tr", has_text="sum += a[(i % N) * N + k];").locator("td")
    assert cells.nth(5).inner_text() == str(far["line"]), (cells.all_inner_texts(), far)
    assert far["did"]["global_sectors"] > 2 * far["did"]["ideal_sectors"]
    diverges = next(l["did"] for l in kernels["columns"]["lines"] if "native_exp" in KERNELS.split("\n")[l["line"] - 1])
    assert 0.3 < diverges["lanes_active"] / diverges["lanes_issued"] < 0.4
    page.locator("#metric").select_option("idle")
    page.locator("#kernel").screenshot(path=pictures / "report-kernel.png")
    page.locator("#kernels tbody button", has_text="matmul").click()
    assert kernels["matmul"]["all"]["local_passes"] > kernels["matmul"]["all"]["local_requests"]
    assert page.locator("#kernel svg[role=img]").get_attribute("aria-label").startswith("matmul:")

    # The output of a program is shown as text.
    assert page.locator("#broken").count() == 0 and "</script><b id=" in page.locator("#code").inner_text()

    # Its own theme wins over the system's.
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 24, 26)"
    page.locator("#theme").click()

    # Calls of the host: the one that fails is in the table.
    failed = page.locator("#host tbody tr", has_text="clCreateKernel").first.locator("td")
    assert failed.nth(1).inner_text() == "1", failed.all_inner_texts()
    assert len(device["memory"]["events"]) == 6 * 3 + 6 * 2 + 4
    assert page.locator("#memory tbody tr").first.is_visible()


def launched(play, chromium):
    """Starts a browser: the named one, the system's, or Playwright's own."""
    chromium = chromium or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        return play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    except Error as error:
        sys.exit(f"{error}\nno browser starts: install one (apt-get install chromium) or name one with --chromium (make: CHROMIUM)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--aethercl", default="target/release/aethercl")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--chromium", help="browser executable [default: chromium on the path, or Playwright's own]")
    parser.add_argument("--screenshots", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    arguments.screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # The second has so few compute units that they are not folded.
        pages = [(arguments.page, None)] if arguments.page else [report(os.path.abspath(arguments.aethercl), Path(folder) / name, name) for name in ("h200", "teaching")]
        with sync_playwright() as play:
            browser = launched(play, arguments.chromium)
            for path, data in pages:
                page, errors = browser.new_page(viewport={"width": 1280, "height": 900}), []
                listen(page, errors)
                page.goto(path.resolve().as_uri())
                any_page(page, arguments.screenshots)
                if data:
                    units(page, data["devices"][0], arguments.screenshots)
                if data and path == pages[0][0]:
                    own_page(page, data, arguments.screenshots)
                assert not errors, errors
            browser.close()
    print("the page is as it should be")


if __name__ == "__main__":
    sys.exit(main())
