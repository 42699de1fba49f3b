"""Charts and cards of a report, read from its HTML."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field

# Widths of DejaVu Sans, the widest usual font of pages, in parts of the 12 pixels of a chart's text.
WIDTHS = {**dict.fromkeys("0123456789", 0.636), **dict.fromkeys(".,:; il|'", 0.32), "%": 0.95, "m": 0.974, "w": 0.818}


def width(text):
    return 12 * sum(WIDTHS.get(c, 0.61) for c in text)


@dataclass
class Chart:
    title: str
    svg: ElementTree.Element
    legend: list[str] = field(default_factory=list)

    def all(self, tag):
        return list(self.svg.iter(tag))

    def numbers(self, tag, key):
        return [float(element.get(key)) for element in self.all(tag)]

    def boxes(self):
        """Each text with its anchor, its left and right end and its base line."""
        for element in self.all("text"):
            size, x = width(element.text), float(element.get("x"))
            anchor = element.get("text-anchor")
            left = {"start": x, "middle": x - size / 2, "end": x - size}[anchor]
            yield element.text, anchor, left, left + size, float(element.get("y"))


def charts_of(html):
    out = {}
    for title, legend, svg in re.findall(
        r'<h3>(.*?)</h3><span class="legend">(.*?)</span></div>(<svg class="plot".*?</svg>)', html, re.DOTALL
    ):
        words = re.findall(r'<span style="--mark:[^"]*">(.*?)</span>', legend + "</span>")
        out[title] = Chart(title, ElementTree.fromstring(svg), words)
    return out


def tiles_of(html):
    """Value, remark and whether the value is in small print, by label."""
    found = re.findall(
        r'<div class="tile"><div class="label">(.*?)</div><div class="value( long)?">(.*?)</div>'
        r'<div class="note">(.*?)</div>',
        html,
    )
    return {label: (value, note, bool(small)) for label, small, value, note in found}


def assert_readable(html):
    """Each value fits its card. Each text of a chart lies inside it, and marks do not touch each other."""
    assert html.count('<div class="tile">') == len(tiles_of(html)) > 0
    for label, (value, _, small) in tiles_of(html).items():
        assert small or len(value) <= 8, (label, value)
        assert "inf" not in value and "nan" not in value, (label, value)
    charts = charts_of(html)
    assert html.count("<svg") == len(charts) > 0
    for title, chart in charts.items():
        _, _, right, bottom = map(float, chart.svg.get("viewBox").split())
        boxes = list(chart.boxes())
        for text, _, begin, end, y in boxes:
            assert begin >= 0 and end <= right and 10 <= y <= bottom, (title, text, begin, end, y)
        marks = [box for box in boxes if box[1] != "start"]  # numbers of centres may touch
        assert len(marks) > 2, title
        for i, (text, _, begin, end, y) in enumerate(marks):
            for other, _, from_, to, height in marks[:i]:
                apart = end <= from_ or to <= begin or abs(y - height) >= 11
                assert apart, (title, text, other)
        for tag, keys in [("circle", ("cx", "cy")), ("rect", ("x", "y"))]:
            for element in chart.all(tag):
                x, y = (float(element.get(key)) for key in keys)
                assert 0 <= x <= right and 0 <= y <= bottom, title
                assert float(element.get("height", 0)) >= 0 and float(element.get("width", 0)) >= 0, title
    return charts
