"""How the report looks."""

from __future__ import annotations

STYLE = """
:root { --ink: #1b1f24; --faint: #5b6470; --page: #ffffff; --line: #d5dae0; --shade: #f3f5f8;
  --best: #e3f1e6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --faint: #a3acb8; --page: #14171b; --line: #363d46; --shade: #1d2127;
    --best: #1f3a29; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 78rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.08rem; margin: 2rem 0 .5rem; }
p, ul, dl { max-width: 46rem; }
li + li { margin-top: .3rem; }
code { font: .92em ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
pre { background: var(--shade); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
dt { font-weight: 600; margin-top: .7rem; }
dd { margin: .1rem 0 0; color: var(--ink); }
.scroll { overflow-x: auto; margin: 1rem 0 1.4rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); padding: 0 0 .5rem; position: sticky; left: 0; }
th, td { padding: .4rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; vertical-align: top; }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; font-weight: 600;
  white-space: normal; min-width: 4.2rem; }
th[scope="row"], thead th:first-child { text-align: left; position: sticky; left: 0;
  background: var(--page); font-weight: 600; }
th[scope="row"] code { display: inline-block; width: max-content; max-width: min(18rem, 38vw);
  white-space: normal; overflow-wrap: anywhere; }
td small, th small { display: block; color: var(--faint); font-size: .8em; font-weight: 400; }
td.best { background: var(--best); font-weight: 700; }
figure { margin: 1.2rem 0 1.6rem; max-width: 50rem; overflow-x: auto; }
figure svg { width: 100%; min-width: 32rem; height: auto; display: block; }
figcaption { color: var(--faint); font-size: .9rem; position: sticky; left: 0; }
@media print {
  :root { --ink: #000; --faint: #444; --page: #fff; --line: #bbb; --shade: #f5f5f5; --best: #e3f1e6; }
  body { font-size: 10pt; } main { max-width: none; padding: 0; }
  .scroll { overflow: visible; } table { font-size: 7.5pt; } th, td { padding: .2rem .3rem; }
  thead th, figure svg { min-width: 0; }
  figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
}
"""
