#!/usr/bin/env python3
"""Writes docs/first-screen.svg, the picture at the head of README.md: the loss of a run on a CPU, and speed compared with peers.

The numbers come from docs/log/training.md, from the sections named below. Gray and blue are chosen for contrast on white and on
black, so that one file serves light and dark pages.

    python3 tools/readme_picture.py
"""

import pathlib

# Section "nanoGPT's character recipe for processors": 2 cores of an AMD EPYC (Zen 3), PoCL 3.1; the recipe reports about 1.88.
LOSS = [(250, 2.4445), (500, 2.2755), (750, 2.1586), (1000, 2.0616), (1250, 1.9782), (1500, 1.9370), (1750, 1.9112), (2000, 1.8876)]
PUBLISHED = 1.88

# GPT-2 124M, T = 1024, tokens/s, NVIDIA H200, driver 580.159.04, PyTorch 2.11, the peer measured in the same call.
SPEED = [
    # "Seven models compared with torch.compile"
    ("bf16, batch 64", "torch.compile", 635_828, 514_952),
    ("bf16, batch 16", "torch.compile", 619_695, 456_043),
    # "f32, tf32 and bf16 steps of GPT-2 124M"
    ("bf16, batch 64", "llm.c with cuDNN", 630_031, 497_900),
    ("tf32, batch 4", "torch.compile", 179_059, 136_037),
    ("f32, batch 4", "torch.compile", 98_076, 49_538),
]

TEXT, FAINT, OWN, PEER = "#767d86", "#9aa1a9", "#2f81f7", "#9aa1a9"
WIDTH, HEIGHT = 860, 330


def text(x, y, words, anchor="start", colour=TEXT, size=13, weight="normal"):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}" font-weight="{weight}">{words}</text>'


def loss(left, top, width, height):
    low, high, last = 1.8, 2.5, LOSS[-1][0]
    x = lambda step: left + width * step / last
    y = lambda value: top + height * (high - value) / (high - low)
    out = [text(left, top - 30, "Validation loss, training on two CPU cores", weight="bold")]
    for value in [1.8, 2.0, 2.2, 2.4]:
        out.append(f'<line x1="{left}" x2="{left + width}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="{FAINT}" stroke-opacity="0.35"/>')
        out.append(text(left - 8, y(value) + 4, f"{value:.1f}", "end"))
    for step in range(0, last + 1, 500):
        out.append(text(x(step), top + height + 20, step, "middle"))
    out.append(text(left + width / 2, top + height + 40, "step", "middle"))
    dashed = f'x1="{left}" x2="{left + width}" y1="{y(PUBLISHED):.1f}" y2="{y(PUBLISHED):.1f}"'
    out.append(f'<line {dashed} stroke="{TEXT}" stroke-dasharray="5 4"/>')
    out.append(text(left + 6, y(PUBLISHED) - 6, f"nanoGPT's own: about {PUBLISHED}"))
    points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in LOSS)
    out.append(f'<polyline points="{points}" fill="none" stroke="{OWN}" stroke-width="2.5"/>')
    out += [f'<circle cx="{x(step):.1f}" cy="{y(value):.1f}" r="3" fill="{OWN}"/>' for step, value in LOSS]
    out.append(text(x(last), y(LOSS[-1][1]) - 12, f"{LOSS[-1][1]:.2f}", "end", OWN, weight="bold"))
    return out


def speed(left, top, width, height):
    most = max(own for _, _, own, _ in SPEED)
    row = height / len(SPEED)
    out = [text(left, top - 30, "Training GPT-2 124M on an H200, thousand tokens per second", weight="bold")]
    for i, (what, peer, own, other) in enumerate(SPEED):
        y = top + i * row
        out.append(text(left, y + 2, f"{what}, {own / other:.2f} times {peer}", size=12))
        for j, (name, value, colour) in enumerate([("netcl", own, OWN), (peer, other, PEER)]):
            bar = (width - 150) * value / most
            at = y + 7 + j * 15
            out.append(f'<rect x="{left}" y="{at:.1f}" width="{bar:.1f}" height="12" rx="2" fill="{colour}"/>')
            out.append(text(left + bar + 6, at + 10, f"{value / 1000:.0f} {name}", colour=OWN if j == 0 else TEXT, size=12))
    return out


def main():
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        "<title>Loss of a run on a CPU, and training speed compared with torch.compile and llm.c</title>",
        *loss(44, 48, 330, 224),
        *speed(430, 48, 420, 265),
        "</svg>",
    ]
    path = pathlib.Path(__file__).parent.parent / "docs" / "first-screen.svg"
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
