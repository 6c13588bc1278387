"""The one style of the report, the viewer and notebooks: light and dark, from 420 pixels up, visible keyboard focus.

Colours have a contrast of at least 4.5 to 1 against what they are drawn on, in both schemes (axe checks the viewer's
pages). `.tok` are tokens, `.loss-0` and `.loss-1` whether a token counts in the loss, `.seg-0` to `.seg-5` segments of
a pack, `.line-0` to `.line-5` series of a chart.
"""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #566374; --line: #dfe4ec; --ground: #f6f7f9; --card: #fff;
  --bar: #3c7dd9; --code: #f1f4f8; --bad: #a83a1b; --link: #1f5fbf; --mark: #ffe08a; --mark-ink: #1c2430;
  --a: #cfe3ff; --b: #fde3c8; --c: #d3f0d4; --d: #eadcf9; --e: #fbd5dc; --f: #d5eef0; --off: #8b96a5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #a3afbf; --line: #2d3643; --ground: #12161c;
  --card: #1a2029; --bar: #5b9bf0; --code: #141a21; --bad: #f08a66; --link: #8ab8ff; --mark: #6b5510;
  --mark-ink: #fff; --a: #1f3c63; --b: #573a18; --c: #1f4a2a; --d: #43305c; --e: #592733; --f: #1b4850;
  --off: #6d7a8b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 36px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 12px; }
h3 { font-size: 15px; margin: 16px 0 6px; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; border-radius: 3px; }
h2.part { font-size: 21px; margin: 30px 0 12px; }
.lead { color: var(--soft); margin: 0 0 24px; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin: 0 0 18px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 0 0 18px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.tile b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.tile span, .note { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 5px 12px 5px 0; border-top: 1px solid var(--line); }
tr:first-child > * { border-top: 0; }
th { font-weight: 500; color: var(--soft); white-space: nowrap; width: 1%; padding-right: 28px; }
.wide th { white-space: normal; min-width: 7.5em; max-width: 14em; overflow-wrap: anywhere; }
td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
thead th { width: auto; }
.wide { overflow-x: auto; }
svg.chart { display: block; margin: 4px 0 14px; overflow: visible; }
svg text { font: 12px system-ui, sans-serif; text-anchor: middle; fill: var(--soft); }
svg text.start { text-anchor: start; } svg text.end { text-anchor: end; }
svg .count { fill: var(--ink); } .bar { fill: var(--bar); } .hit { fill: transparent; } g:hover .bar { opacity: .75; }
.track { fill: var(--code); } .axis { stroke: var(--line); } .cut { stroke: var(--bad); stroke-dasharray: 4 3; }
svg .cut-label { fill: var(--bad); }
.box { fill: var(--code); stroke: var(--line); } .edge { stroke: var(--off); stroke-width: 2; }
svg .strong { fill: var(--ink); font-weight: 600; } svg .lost { fill: var(--bad); }
polyline { fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; }
.line-0 { stroke: var(--bar); } .line-1 { stroke: #d98a3c; } .line-2 { stroke: #3fa45b; } .line-3 { stroke: #a06bd3; }
.line-4 { stroke: #d35574; } .line-5 { stroke: #2a9aa6; } .key { stroke-width: 4; }
figure { margin: 0; } .legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); }
.legend svg { margin-right: 5px; }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(110px, 1fr)); gap: 8px; }
.row div { font-variant-numeric: tabular-nums; } .row span { display: block; color: var(--soft); font-size: 12px; }
article + article { margin-top: 16px; }
article header { display: flex; justify-content: space-between; gap: 16px; font-size: 13px; color: var(--soft);
  overflow-wrap: anywhere; }
article header span:last-child { white-space: nowrap; }
pre { margin: 4px 0 0; padding: 10px 12px; background: var(--code); border-radius: 6px;
  font: 13px/1.5 ui-monospace, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; max-height: 260px; overflow: auto; }
.bad { color: var(--bad); }
footer { color: var(--soft); font-size: 13px; }
.foot { max-width: 960px; margin: -40px auto 20px; padding: 0 20px; }
mark { background: var(--mark); color: var(--mark-ink); }
.cut-here { color: var(--bad); font-style: italic; }
.tok:nth-child(6n+1), .seg-0 { background: var(--a); } .tok:nth-child(6n+2), .seg-1 { background: var(--b); }
.tok:nth-child(6n+3), .seg-2 { background: var(--c); } .tok:nth-child(6n+4), .seg-3 { background: var(--d); }
.tok:nth-child(6n+5), .seg-4 { background: var(--e); } .tok:nth-child(6n), .seg-5 { background: var(--f); }
.tok { border-radius: 2px; color: var(--ink); }
.loss-0 { opacity: .75; text-decoration: line-through dotted; }
nav { display: flex; flex-wrap: wrap; align-items: center; gap: 2px 6px; max-width: 960px; margin: 0 auto;
  padding: 14px 20px 0; }
nav b { margin-right: 12px; } nav a { padding: 4px 10px; border-radius: 6px; text-decoration: none; }
nav a[aria-current] { background: var(--card); border: 1px solid var(--line); color: var(--ink); font-weight: 600; }
nav + main { padding-top: 18px; }
form.bar-form { display: flex; flex-wrap: wrap; gap: 8px 12px; align-items: end; margin: 0 0 12px; }
form.bar-form label { font-size: 12px; color: var(--soft); display: block; }
input, select, button { font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--off);
  border-radius: 6px; padding: 5px 9px; max-width: 100%; min-height: 34px; }
button { cursor: pointer; background: var(--code); } input[type=range] { padding: 0; width: 100%; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(118px, 1fr)); gap: 12px; }
.sheet figure { min-width: 0; }
.sheet img { display: block; width: 100%; height: auto; aspect-ratio: 1; object-fit: contain;
  background: var(--code); border-radius: 6px; }
.no-picture { display: grid; place-items: center; aspect-ratio: 1; background: var(--code); color: var(--bad);
  border-radius: 6px; font-size: 12px; text-align: center; }
.turn { margin: 0 0 8px; } .role { display: block; color: var(--soft); font-size: 12px; font-weight: 600; }
.sheet figcaption { font-size: 12px; color: var(--soft); overflow-wrap: anywhere; margin-top: 3px; }
.pager { display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center; margin: 14px 0 0; font-size: 14px; }
audio { width: 100%; display: block; margin: 6px 0; } .picture { display: block; width: 100%; height: 84px;
  background: var(--code); border-radius: 6px; margin: 0 0 4px; }
.tokens, .value { white-space: pre-wrap; overflow-wrap: anywhere; }
.tokens { padding: 10px 12px; background: var(--code); border-radius: 6px; margin: 4px 0 0; max-height: 300px;
  overflow: auto; font: 13px/1.7 ui-monospace, monospace; }
.tok { cursor: pointer; } .chosen { outline: 2px solid var(--link); } .value { max-height: 300px; overflow: auto; }
.thumb { max-width: 240px; max-height: 240px; border-radius: 6px; }
.wave { fill: var(--bar); }
.packed .tok { border-left: 1px solid var(--code); } .tok b { font-weight: 600; color: var(--soft); }
.packed .seg-0 { background: var(--a); } .packed .seg-1 { background: var(--b); }
.packed .seg-2 { background: var(--c); }
.packed .seg-3 { background: var(--d); } .packed .seg-4 { background: var(--e); }
.packed .seg-5 { background: var(--f); }
.tok.loss-0, .key-off { opacity: 1; background: transparent; color: var(--soft); text-decoration: none;
  border-bottom: 2px dotted var(--off); }
.key-on { padding: 0 3px; background: var(--a); border-radius: 2px; }
.padding { color: var(--soft); font-style: italic; padding: 0 4px; }
.packs .seg { stroke: var(--card); stroke-width: 1; } .packs .pad { fill: var(--code); stroke: var(--line); }
rect.seg-0 { fill: var(--a); } rect.seg-1 { fill: var(--b); } rect.seg-2 { fill: var(--c); }
rect.seg-3 { fill: var(--d); } rect.seg-4 { fill: var(--e); } rect.seg-5 { fill: var(--f); }
.batch article { border-top: 1px solid var(--line); padding-top: 12px; } .batch .packing { margin: 0 0 14px; }
.batch .values td { white-space: pre-wrap; } details.why { margin: 6px 0 0; font-size: 13px; }
summary { cursor: pointer; color: var(--soft); overflow-wrap: anywhere; }
.documents { margin: 8px 0; padding-left: 24px; }
.documents li { padding: 3px 6px; overflow-wrap: anywhere; } .documents li.chosen { background: var(--mark);
  color: var(--mark-ink); border-radius: 4px; } .documents li.chosen .note { color: var(--mark-ink); }
.pair { display: flex; gap: 6px; align-items: flex-start; } .shot { position: relative; flex: 1 1 0; min-width: 0;
  max-width: 260px; }
.shot img { display: block; width: 100%; height: auto; border-radius: 6px; background: var(--code); }
.shot svg { position: absolute; inset: 0; width: 100%; height: 100%; } .crop { fill: none; stroke: #fff;
  stroke-width: 2; vector-effect: non-scaling-stroke; paint-order: stroke; filter: drop-shadow(0 0 1px #000); }
.batch-sheet { grid-template-columns: repeat(auto-fill, minmax(210px, 1fr)); }
.batch-sheet .shot img { aspect-ratio: auto; } .batch-sheet details.why[open] { overflow-x: auto; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 18px; }
.sides > * { min-width: 0; } main:has(.sides) { max-width: 1400px; } .steps { flex: 1 1 320px; }
.keys { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); margin: 0 0 12px; }
@media (max-width: 560px) { main { padding: 20px 12px 40px; } section { padding: 14px 12px; }
  nav { padding: 10px 12px 0; }
  article header { flex-wrap: wrap; gap: 2px 12px; } th { white-space: normal; padding-right: 12px; } }
"""
