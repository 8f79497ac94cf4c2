#!/usr/bin/env python3
"""Animates a drawing: edges whose class is step1, step2, … light up in this order, with the node that they point to.

    tools/animate_drawing.py docs/drawings/NAME.svg OUT.svg     # NAME.svg by Graphviz; the edges have classes in NAME.dot

The animation is CSS inside the SVG, so it runs where the SVG is shown as an image. Readers who prefer less motion see the still drawing.
"""
import re
import sys

SECONDS_PER_STEP = 1.4
COLOR = "#d1242f"
EDGE, NODE = "#767d86", "#8a9bb0"  # colors of the drawing


def animated(svg):
    """Returns the drawing with a style sheet that highlights one step after the other."""
    edges = re.findall(r'<g id="(edge\d+)" class="edge step(\d+)">\s*<title>[^<]*&gt;([^<]*)</title>', svg)
    if not edges:
        raise SystemExit("animate_drawing.py: no edge has a class step1, step2, …")
    nodes = {name: node for node, name in re.findall(r'<g id="(node\d+)" class="node">\s*<title>([^<]*)</title>', svg)}
    steps = {}
    for edge, step, target in edges:
        steps.setdefault(edge, []).append(int(step))
        if target in nodes:
            steps.setdefault(nodes[target], []).append(int(step))
    last = max(max(numbers) for numbers in steps.values())
    rules = []
    for element, numbers in sorted(steps.items()):
        lit = f"stroke: {COLOR}; stroke-width: 2.6"
        dark = f"stroke: {EDGE if element.startswith('edge') else NODE}; stroke-width: 1"
        frames = [f"0%, 100% {{ {dark} }}"]
        for number in sorted(set(numbers)):
            begin, end = 100 * (number - 1) / last, 100 * number / last
            frames.append(f"{begin + 0.1:.1f}% {{ {dark} }} {begin + 0.5:.1f}%, {end - 0.5:.1f}% {{ {lit} }} {end - 0.1:.1f}% {{ {dark} }}")
        rules.append(f"@keyframes {element} {{ {' '.join(frames)} }}")
        rules.append(f"#{element} path, #{element} polygon {{ animation: {element} {last * SECONDS_PER_STEP:g}s linear infinite }}")
    style = "@media (prefers-reduced-motion: no-preference) {\n" + "\n".join(rules) + "\n}"
    head = re.search(r"<svg[^>]*>", svg)
    return svg[: head.end()] + f"\n<style>\n{style}\n</style>" + svg[head.end() :]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as source:
        result = animated(source.read())
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        out.write(result)
