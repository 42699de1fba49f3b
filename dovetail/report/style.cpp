#include "dovetail/report/page.h"

namespace dovetail::report {

const std::string_view kReportStyle = R"css(
:root {
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2330; --soft: #5d6879; --line: #dfe3ea; --grid: #eceff3;
  --accent: #2f5fd0; --c0: #2f5fd0; --c1: #d9622b; --c2: #2b9a66; --c3: #8a4fc4; --bad: #c8323c; --code: #f1f3f6;
  --good-bg: #e3f4ea; --good: #1f7a4d; --wait-bg: #fdf1dc; --wait: #8f5b0a;
  --m0: #5b7fd6; --m1: #a78bda; --m2: #e69a5c; --m3: #6cbf98; --m4: #d9c46a; --m5: #b7bfcb; --m6: #d98aa8;
}
:root[data-theme="dark"] {
  --page: #11151c; --card: #1a2029; --ink: #e4e8ef; --soft: #98a3b5; --line: #2c3542; --grid: #242c37;
  --accent: #7ea2ff; --c0: #7ea2ff; --c1: #ff9a62; --c2: #5fd09a; --c3: #c497f2; --bad: #ff7a82; --code: #141922;
  --good-bg: #173327; --good: #6fd8a2; --wait-bg: #3a2d13; --wait: #f0bd62;
  --m0: #4a69b8; --m1: #8368b8; --m2: #c27a41; --m3: #3f9470; --m4: #a8953f; --m5: #66717f; --m6: #b0607f;
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 24px 56px; }
header { display: flex; gap: 16px; align-items: flex-start; justify-content: space-between; }
h1 { font-size: 28px; line-height: 1.2; margin: 2px 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 36px 0 12px; }
h3 { font-size: 13.5px; font-weight: 600; margin: 0; }
.brand { color: var(--soft); font-size: 13px; }
.brand b { color: var(--accent); letter-spacing: 0.02em; }
.state { display: inline-block; padding: 1px 9px; border-radius: 99px; font-size: 12px; font-weight: 600; vertical-align: 6px;
  margin-left: 10px; background: var(--wait-bg); color: var(--wait); }
.state.finished { background: var(--good-bg); color: var(--good); }
.verdict { font-size: 16.5px; margin: 6px 0 0; max-width: 90ch; }
.where { color: var(--soft); margin: 2px 0 0; font-size: 13.5px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 1px; margin-top: 22px; overflow: hidden;
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { box-shadow: 0 0 0 1px var(--line); padding: 12px 14px 11px; }
.tile .label { color: var(--soft); font-size: 12px; }
.tile .value { font-size: 21px; font-weight: 620; letter-spacing: -0.01em; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile .value.long { font-size: 15px; line-height: 1.35; white-space: normal; overflow-wrap: anywhere; }
.tile .note { color: var(--soft); font-size: 12px; }
.bar { position: sticky; top: 0; z-index: 5; display: flex; flex-wrap: wrap; gap: 8px 22px; align-items: center; margin: 26px 0 12px;
  padding: 9px 0; background: var(--page); color: var(--soft); font-size: 13px; }
.bar label { display: inline-flex; gap: 8px; align-items: center; }
.bar input[type="range"] { width: 130px; accent-color: var(--accent); }
.bar output { min-width: 2.6em; font-variant-numeric: tabular-nums; }
.bar .hint { margin-left: auto; }
button { font: inherit; font-size: 12.5px; color: var(--soft); background: var(--card); border: 1px solid var(--line); border-radius: 7px;
  padding: 3px 10px; cursor: pointer; }
button:hover { color: var(--ink); border-color: var(--soft); }
button:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
.group { display: inline-flex; }
.group button { border-radius: 0; margin-left: -1px; }
.group button:first-child { border-radius: 7px 0 0 7px; margin-left: 0; }
.group button:last-child { border-radius: 0 7px 7px 0; }
button[aria-pressed="true"] { color: var(--accent); background: var(--code); font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px; }
.chart { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px 8px; position: relative; min-width: 0; }
.chart.wide { grid-column: 1 / -1; }
.chart .top { display: flex; align-items: center; gap: 14px; margin-bottom: 6px; }
.chart .legend { display: flex; flex-wrap: wrap; gap: 2px 14px; color: var(--soft); font-size: 12.5px; margin-left: auto; }
.legend span::before { content: ""; display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 6px; vertical-align: 3px;
  background: var(--mark); }
.chart canvas { display: block; width: 100%; height: 220px; cursor: crosshair; touch-action: pan-y; }
.chart.wide canvas { height: 320px; }
.plot { display: block; width: 100%; height: auto; font-size: 12px; font-variant-numeric: tabular-nums; }
.plot text { fill: var(--soft); }
.plot .grid { stroke: var(--grid); }
.chart table { margin-bottom: 10px; }
.chart th, .chart td:not(:last-child) { white-space: nowrap; overflow-wrap: normal; }
.tip { position: absolute; pointer-events: none; display: none; z-index: 4; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 6px 10px; font-size: 12.5px; box-shadow: 0 4px 16px rgb(0 0 0 / 14%); white-space: nowrap; font-variant-numeric: tabular-nums; }
.tip .at { color: var(--soft); }
.tip i { display: inline-block; width: 8px; height: 8px; border-radius: 50%; margin-right: 7px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 4px 16px; overflow-x: auto; }
th, td { text-align: left; padding: 7px 18px 7px 0; border-bottom: 1px solid var(--grid); vertical-align: top; overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
th { color: var(--soft); font-weight: 500; font-size: 12.5px; }
td.key { color: var(--soft); white-space: nowrap; width: 1%; }
code, pre { font-family: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px; }
pre { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 13px 16px; overflow-x: auto; line-height: 1.45; }
pre.sample { white-space: pre-wrap; overflow-wrap: anywhere; margin-bottom: 12px; }
pre.sample b { color: var(--accent); font-weight: 600; }
.command { position: relative; margin-bottom: 10px; }
.command pre { padding-right: 84px; white-space: pre-wrap; overflow-wrap: anywhere; }
.command button { position: absolute; right: 9px; top: 9px; }
details > summary { cursor: pointer; color: var(--soft); margin-bottom: 10px; }
footer { color: var(--soft); font-size: 12.5px; margin-top: 40px; }
@media (max-width: 800px) { .charts { grid-template-columns: minmax(0, 1fr); } .bar .hint { display: none; } main { padding: 18px 14px 40px; } }
@media print { .bar, button { display: none; } .chart, .card, pre { break-inside: avoid; } }
)css";

}  // namespace dovetail::report
