"""Writes findings as JSON, Markdown, one HTML page, and PNG figures."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment

from pycontrol.lab.kit import Claim, Figure, Findings, Setup, Table


@dataclasses.dataclass(frozen=True)
class Entry:
    """One experiment in a report."""

    name: str
    title: str
    findings: Findings
    wall_s: float
    quick: bool
    most_seeds: int | None = None
    """The value of `--seeds`, if given."""
    day: str = ""
    """The day of the run, as YYYY-MM-DD."""
    full: bool = False
    lacks_data: bool = True
    """Whether a public trace was not there, or that is not known."""

    def as_asked(self, setup: Setup) -> bool:
        """Whether it ran with the same settings as `setup`, and lacks nothing that data could give."""
        whole = setup.data is None or not self.lacks_data
        return whole and (self.quick, self.full, self.most_seeds) == (setup.quick, setup.full, setup.seeds)


def text(value: Any) -> str:
    """A cell's text: numbers with four significant digits, a dash for None."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return str(value)


def plain(value: Any) -> Any:
    """The value as JSON values, without NaN, infinity and numpy types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, Sequence) or hasattr(value, "tolist"):
        items = value.tolist() if hasattr(value, "tolist") else value
        return [plain(v) for v in items] if isinstance(items, list | tuple) else plain(items)
    return float(value) if math.isfinite(value) else None


def as_json(entry: Entry) -> str:
    """An experiment's findings as JSON text."""
    return json.dumps(plain(entry), indent=1)


def read(path: Path) -> Entry:
    """Read what `write` wrote, without the figures' series; raises KeyError, TypeError or ValueError otherwise."""
    data = json.loads(path.read_text(encoding="utf-8"))
    found = data["findings"]
    findings = Findings(
        tuple(Claim(**c) for c in found["claims"]),
        tuple(Table(t["title"], tuple(t["columns"]), tuple(map(tuple, t["rows"]))) for t in found["tables"]),
        tuple(Figure(**{**f, "series": ()}) for f in found["figures"]),
        tuple(found["conventions"]),
        found["seeds"],
        tuple(found["notes"]),
        found["values"],
        found.get("size", ""),
    )
    return Entry(**{**data, "findings": findings})


def draw(figure: Figure, path: Path) -> bool:
    """Draw a figure; False if matplotlib (the extra `lab`) is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        return False
    canvas = Canvas(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    for k, series in enumerate(figure.series):
        _plot(axes, figure, k, series)
    if figure.mark is not None:
        axes.axhline(figure.mark, color="0.5", linewidth=0.8, linestyle="--")
    axes.set(title=figure.title, xlabel=figure.x, ylabel=figure.y)
    if figure.log_x:
        axes.set_xscale("log")
    if figure.log_y:
        axes.set_yscale("log")
        if max(v for s in figure.series for v in s.y) < 10 * min(v for s in figure.series for v in s.y):
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
    if _named(figure):
        canvas.draw_without_rendering()  # settles the axes' limits
        _name_points(axes, figure)
    elif len(figure.series) > 1 or figure.series[0].label:
        axes.legend(fontsize="small")
    canvas.savefig(path, dpi=120)
    return True


def _named(figure: Figure) -> bool:
    """Whether each series is one point, which is then labelled with its name."""
    return figure.kind == "scatter" and all(len(s.x) == 1 for s in figure.series)


_BESIDE = ((4, 4), (-4, 4), (4, -4), (-4, -4), (4, 4))
"""Where a point's name is tried, points to the right and upwards; the last place is taken in any case."""


def _name_points(axes: Any, figure: Figure) -> None:
    """Puts each point's name beside it, inside the axes and over no other name, if there is such a place."""
    taken: list[Any] = []
    for series in figure.series:
        for tried, (dx, dy) in enumerate(_BESIDE, 1):
            text = axes.annotate(
                series.label,
                (series.x[0], series.y[0]),
                xytext=(dx, dy),
                textcoords="offset points",
                ha="left" if dx > 0 else "right",
                va="bottom" if dy > 0 else "top",
                fontsize="small",
            )
            box = text.get_window_extent()
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
            if tried == len(_BESIDE) or (inside and not any(box.overlaps(other) for other in taken)):
                taken.append(box)
                break
            text.remove()


def _plot(axes: Any, figure: Figure, k: int, series: Any) -> None:
    x, y = list(series.x), list(series.y)
    if figure.kind == "bar":
        width = 0.8 / len(figure.series)
        at = [i - 0.4 + width * (k + 0.5) for i in range(len(x))]
        axes.bar(at, y, width, label=series.label)
        axes.set_xticks(range(len(x)), [str(v) for v in x], rotation=30 if len(x) > 5 else 0)
        if series.low is not None:
            _errors(axes, at, y, series)
        return
    if figure.kind == "scatter":
        axes.scatter(x, y, label=series.label, s=14)
        return
    if figure.kind == "step":
        axes.step(x, y, where="post", label=series.label, linewidth=1.2)
        return
    axes.plot(x, y, marker="o", markersize=3, label=series.label, linewidth=1.2)
    if series.low is not None:
        axes.fill_between(x, list(series.low), list(series.high), alpha=0.15)


def _errors(axes: Any, at: Sequence[float], y: Sequence[float], series: Any) -> None:
    below = [max(0.0, v - low) for v, low in zip(y, series.low, strict=True)]
    above = [max(0.0, high - v) for v, high in zip(y, series.high, strict=True)]
    axes.errorbar(at, y, yerr=[below, above], fmt="none", ecolor="0.3", linewidth=0.8)


MARKDOWN = """\
## {{ e.name }}: {{ e.title }}

{% for c in e.findings.claims -%}
- **{{ c.verdict }}**: {{ c.claim }} Paper: {{ c.paper }}; ours: {{ c.ours }}.{% if c.why %} {{ c.why }}{% endif %}
{% endfor %}
{% for t in e.findings.tables %}
{{ t.title }}

| {{ t.columns | join(' | ') }} |
|{% for _ in t.columns %} --- |{% endfor %}
{% for row in t.rows -%}
| {{ row | map('cell') | join(' | ') }} |
{% endfor %}
{%- endfor %}
{% for f in e.findings.figures %}
![{{ f.title }}]({{ e.name }}-{{ f.name }}.png)
{% endfor %}
{% if e.findings.conventions %}Assumed: {{ e.findings.conventions | join('; ') }}.
{% endif %}{% for n in e.findings.notes %}{{ n }}
{% endfor %}
{% if e.findings.seeds > 1 %}{{ e.findings.seeds }} seeds, 95 % confidence intervals; {% endif -%}
{% if e.findings.size %}{{ e.findings.size }}; {% endif -%}
{{ '%.0f' | format(e.wall_s) }} s{{ ' (quick)' if e.quick }}{{ ', ' ~ e.day if e.day }}.
"""

SUMMARY = """\
# The papers' claims, measured

| experiment | claim | paper | ours | |
| --- | --- | --- | --- | --- |
{% for e in entries %}{% for c in e.findings.claims -%}
| {{ e.name }} | {{ c.claim | row }} | {{ c.paper | row }} | {{ c.ours | row }} | {{ c.verdict }} |
{% endfor %}{% endfor %}"""

HTML = """\
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Isonomy: the papers' claims, measured</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
table{border-collapse:collapse;font-size:.85rem;margin:.6rem 0;display:block;overflow-x:auto}
td,th{border:1px solid #ccc;padding:.25rem .5rem;text-align:left;vertical-align:top} th{background:#f3f3f3}
.true{color:#186a1e}.false{color:#a31515}.none{color:#666} img{max-width:100%} small{color:#555}
@media (prefers-color-scheme: dark){body{background:#161616;color:#ddd}th{background:#2a2a2a}td,th{border-color:#444}
img{background:#fff}.true{color:#6fcf75}.false{color:#ff8080}.none,small{color:#999}}
</style></head><body><h1>The papers' claims, measured</h1>
<table><tr><th>experiment</th><th>claim</th><th>paper</th><th>ours</th><th></th></tr>
{% for e in entries %}{% for c in e.findings.claims %}<tr><td><a href="#{{ e.name }}">{{ e.name }}</a></td>
<td>{{ c.claim }}</td><td>{{ c.paper }}</td><td>{{ c.ours }}</td>
<td class="{{ c.holds | string | lower }}">{{ c.verdict }}</td></tr>{% endfor %}{% endfor %}</table>
{% for e in entries %}<h2 id="{{ e.name }}">{{ e.title }} <small>{{ e.name }}</small></h2>
<ul>{% for c in e.findings.claims %}<li><b class="{{ c.holds | string | lower }}">{{ c.verdict }}</b>: {{ c.claim }}
Paper: {{ c.paper }}; ours: {{ c.ours }}. {{ c.why }}</li>{% endfor %}</ul>
{% for t in e.findings.tables %}<p>{{ t.title }}</p><table><tr>{% for c in t.columns %}<th>{{ c }}</th>{% endfor %}</tr>
{% for row in t.rows %}<tr>{% for v in row %}<td>{{ v | cell }}</td>{% endfor %}</tr>{% endfor %}</table>{% endfor %}
{% for f in e.findings.figures %}<p><img src="{{ e.name }}-{{ f.name }}.png" alt="{{ f.title }}"></p>{% endfor %}
<p><small>{% if e.findings.conventions %}Assumed: {{ e.findings.conventions | join('; ') }}. {% endif %}
{% for n in e.findings.notes %}{{ n }} {% endfor %}
{% if e.findings.seeds > 1 %}{{ e.findings.seeds }} seeds, 95 % confidence intervals; {% endif %}
{% if e.findings.size %}{{ e.findings.size }}; {% endif %}
{{ '%.0f' | format(e.wall_s) }} s{{ ' (quick)' if e.quick }}{{ ', ' ~ e.day if e.day }}.</small></p>{% endfor %}
</body></html>
"""


def _templates(escape: bool) -> Environment:
    templates = Environment(autoescape=escape)
    templates.filters["cell"] = text
    templates.filters["row"] = lambda words: str(words).replace("|", "\\|")
    return templates


def markdown(entry: Entry) -> str:
    """One experiment as a section of Markdown."""
    return _templates(False).from_string(MARKDOWN).render(e=entry)


def write(entry: Entry, folder: Path) -> list[str]:
    """Write NAME.json and NAME-FIGURE.png; returns the figures that could not be drawn."""
    half = folder / f".{entry.name}.json"
    half.write_text(as_json(entry), encoding="utf-8")
    half.replace(folder / f"{entry.name}.json")
    names = {f"{entry.name}-{figure.name}.png": figure for figure in entry.findings.figures}
    return [name for name, figure in names.items() if not draw(figure, folder / name)]


def write_pages(entries: Sequence[Entry], folder: Path) -> None:
    """Write index.html and report.md: a table of all claims, then each experiment."""
    page = _templates(True).from_string(HTML).render(entries=entries)
    (folder / "index.html").write_text(page, encoding="utf-8")
    summary = _templates(False).from_string(SUMMARY).render(entries=entries)
    (folder / "report.md").write_text("\n".join([summary, *map(markdown, entries)]), encoding="utf-8")
