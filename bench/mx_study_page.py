"""The page of bench/mx_study.py: intervals of each regime and mxfp8's difference along the curve."""

import html
import math

# Results of arXiv 2506.08027, at sizes that are not reached here.
PAPER = [
    (
        "E4M3 for all tensors, scales rounded up, 8 B parameters, 15 T tokens",
        "perplexity always within 0.50 % of BF16's",
    ),
    ("scales rounded down, as OCP v1.0 suggests", "the loss ends higher or diverges"),
]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; } td, th { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
td:first-child, th:first-child { text-align: left; }
svg line { stroke: #ddd; } svg text { font-size: 11px; fill: #666; } svg circle { fill: #36c; }
svg .bar { stroke: #36c; stroke-width: 1.6; } svg .bound { stroke: #c33; stroke-dasharray: 5 3; }
"""

BOUND_PERCENT = 0.5  # arXiv 2506.08027


def percent(log_perplexity: float) -> float:
    """Return the relative difference of perplexity in per cent for a difference of losses."""
    return 100 * math.expm1(log_perplexity)


def cells(row: dict) -> str:
    ends = (
        ""
        if row["half"] is None
        else " to ".join(f"{percent(row['mean'] + sign * row['half']):+.2f}" for sign in (-1, 1))
    )
    return f"<td>{row['pairs']}</td><td>{percent(row['mean']):+.2f} %</td><td>{ends}</td>"


def curve_chart(curve: list[dict], regime: str) -> str:
    """Intervals of mxfp8 minus bf16 at each validation as an SVG."""
    width, height, left, bottom = 720, 240, 60, 30
    ends = [percent(p["mean"] + sign * (p["half"] or 0)) for p in curve for sign in (-1, 1)]
    top, low = max([*ends, BOUND_PERCENT * 1.2]), min([*ends, -BOUND_PERCENT * 1.2])
    last = curve[-1]["tokens"]

    def x(tokens):
        return left + (width - left - 20) * tokens / last

    def y(value):
        return 10 + (height - bottom - 10) * (top - value) / (top - low)

    title = f"Perplexity of mxfp8 over bf16 in per cent, 95 % intervals, {regime}"
    svg = [f'<h3>{title}</h3><svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}">']
    for value, kind in ((0, ""), (BOUND_PERCENT, "bound"), (-BOUND_PERCENT, "bound")):
        svg.append(f'<line class="{kind}" x1="{left}" x2="{width - 10}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        svg.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:+.1f} %</text>')
    for point in curve:
        at, half = x(point["tokens"]), point["half"] or 0
        a, b = (y(percent(point["mean"] + sign * half)) for sign in (-1, 1))
        svg.append(f'<line class="bar" x1="{at:.1f}" x2="{at:.1f}" y1="{a:.1f}" y2="{b:.1f}"/>')
        svg.append(f'<circle cx="{at:.1f}" cy="{y(percent(point["mean"])):.1f}" r="3"/>')
    svg.append(f'<text x="{width - 10}" y="{height - 8}" text-anchor="end">{last / 1e6:.1f} M tokens</text></svg>')
    return "".join(svg)


def section(regime: str, found: dict, units: list[dict]) -> str:
    machines = sorted({f"{u['cpu']}, {u['simd']}" for u in units})
    rows = "".join(f"<tr><td>{row['arm']}</td>{cells(row)}</tr>" for row in found["ends"])
    return (
        f"<h2>{regime}</h2><p>{units[0]['parameters']:,} parameters; {html.escape('; '.join(machines))}.</p>"
        "<table><tr><th>arm</th><th>pairs</th><th>perplexity against mxfp8</th><th>95 % interval</th></tr>"
        f"{rows}</table>{curve_chart(found['curve'], regime) if found['curve'] else ''}"
    )


def page(found: dict, sentences: list[str], units: dict) -> str:
    """HTML of all regimes. `found` and `units` are by regime; `sentences` are the verdicts."""
    paper = "".join(f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>" for a, b in PAPER)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Precision recipes</title><style>{STYLE}</style>"
        f"<h1>Precision recipes</h1><p>{'<br>'.join(map(html.escape, sentences))}</p>"
        f"{''.join(section(name, found[name], units[name]) for name in found)}"
        f"<h2>The paper's figures (arXiv 2506.08027)</h2><table>{paper}</table></html>"
    )
