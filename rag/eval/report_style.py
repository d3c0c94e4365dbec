"""The style sheet of the report page."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root { color-scheme: light dark;
  --page:#fbfaf8; --card:#fff; --ink:#1c1b1a; --soft:#5f5b55; --rule:#e4e0d9; --faint:#f3f0ea;
  --s0:#1f5fbf; --s1:#c2570c; --s2:#0f7f5f; --s3:#a21caf; --s4:#b4232c; --s5:#0e7490;
  --good:#0f7f5f; --bad:#b4232c; --read:#ffe08a; --gold:#bfe8d2; }
@media (prefers-color-scheme: dark) { :root {
  --page:#161616; --card:#1f1f1f; --ink:#ececea; --soft:#a7a39c; --rule:#38352f; --faint:#272623;
  --s0:#7db0ff; --s1:#f5a25d; --s2:#5fd3ac; --s3:#e08bf0; --s4:#ff8f8f; --s5:#63d0e6;
  --good:#5fd3ac; --bad:#ff8f8f; --read:#6b5410; --gold:#1d5a43; } }
* { box-sizing:border-box } html { -webkit-text-size-adjust:100% }
body { margin:0; background:var(--page); color:var(--ink);
  font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif }
main { max-width:1080px; margin:0 auto; padding:2.5rem 1.25rem 4rem }
h1 { font-size:1.9rem; line-height:1.2; margin:0 0 .4rem; letter-spacing:-.01em }
h2 { font-size:1.3rem; margin:3rem 0 .3rem } h3 { font-size:1rem; margin:0 0 .5rem }
p { margin:.3rem 0 .8rem; max-width:72ch } .soft, small { color:var(--soft) } .lead { font-size:1.1rem }
.lead b { font-weight:600 }
nav { display:flex; flex-wrap:wrap; gap:.3rem 1rem; margin:1rem 0 0; font-size:.92rem }
a { color:var(--s0) }
a:focus-visible, summary:focus-visible { outline:2px solid var(--s0); outline-offset:2px }
.chips { display:flex; flex-wrap:wrap; gap:.4rem; padding:0; margin:.8rem 0; list-style:none;
  font-size:.86rem }
.chips li { background:var(--faint); border:1px solid var(--rule); border-radius:99px;
  padding:.1rem .7rem; overflow-wrap:anywhere }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(134px,1fr)); gap:.7rem;
  margin:1.2rem 0 }
.tiles .tile { padding:.8rem .9rem }
.tile, .card, .plot-box { background:var(--card); border:1px solid var(--rule); border-radius:12px;
  padding:1rem 1.1rem }
.tile b { display:block; font-size:1.6rem; white-space:nowrap; line-height:1.15;
  font-variant-numeric:tabular-nums }
.tile span { font-size:.87rem; color:var(--soft); display:block }
.grid2 { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr)); gap:1rem }
.grid3 { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr)); gap:1rem;
  margin-bottom:.8rem }
.scroll { overflow-x:auto; border:1px solid var(--rule); border-radius:12px; background:var(--card) }
table { border-collapse:collapse; width:100%; font-size:.92rem; font-variant-numeric:tabular-nums }
th, td { text-align:left; padding:.45rem .8rem; border-top:1px solid var(--rule); vertical-align:middle }
thead th { border-top:0; font-size:.82rem; color:var(--soft); font-weight:600; white-space:nowrap }
tbody th { font-weight:500 }
td.num, th.num { text-align:right; white-space:nowrap }
td small, th small { display:block; font-weight:400 } .nowrap { white-space:nowrap }
.better { color:var(--good); font-weight:600 } .worse { color:var(--bad); font-weight:600 }
svg text { font:12px system-ui,sans-serif; fill:var(--soft) } svg .axis { font-size:12.5px }
.plot { width:100%; max-width:34rem; height:auto; display:block }
.y-label { font-size:.88rem; margin:0 0 .3rem; font-weight:600 } .grid { stroke:var(--rule) }
.ideal { stroke:var(--soft); stroke-dasharray:4 4 }
.line { fill:none; stroke-width:2.2; stroke-linejoin:round } .band { opacity:.16; stroke:none }
.strip { width:160px; height:16px; display:block } .range { opacity:.35 }
.s0{--c:var(--s0)} .s1{--c:var(--s1)} .s2{--c:var(--s2)} .s3{--c:var(--s3)} .s4{--c:var(--s4)}
.s5{--c:var(--s5)}
.line{stroke:var(--c)} .dot,.band,.range{fill:var(--c)}
.key { display:inline-block; width:.8rem; height:.8rem; border-radius:3px; background:var(--c);
  margin-right:.35rem; vertical-align:-1px }
.legend { display:flex; flex-wrap:wrap; gap:.2rem 1rem; font-size:.88rem; margin:.5rem 0 0 }
.stack { display:flex; height:2rem; border-radius:8px; overflow:hidden; margin:.5rem 0 }
.piece { color:#fff; font-size:.82rem; line-height:2rem; text-align:center; overflow:hidden }
.correct{background:#0f7f5f} .reading{background:#b45309} .retrieval{background:#a61e2b}
.distraction{background:#7c3aed} .both{background:#475569} .unknown{background:#78716c}
.key.correct,.key.reading,.key.retrieval,.key.distraction,.key.both,.key.unknown { --c:initial }
details { background:var(--card); border:1px solid var(--rule); border-radius:12px; margin:.6rem 0;
  padding:.7rem 1rem }
summary { cursor:pointer; font-weight:600 }
details .scroll { margin-top:.6rem }
details.q summary { font-weight:500 }
.q .said { display:grid; grid-template-columns:8.5rem 1fr; gap:.25rem .8rem; margin:.6rem 0;
  font-size:.95rem }
.said dt { color:var(--soft) } .said dd { margin:0; overflow-wrap:anywhere }
.passage { border-left:3px solid var(--rule); padding:.15rem 0 .15rem .8rem; margin:.55rem 0;
  font-size:.93rem; overflow-wrap:anywhere }
.passage.hit { border-color:var(--good) } .passage.used { border-color:var(--s1) }
mark { color:inherit; border-radius:3px; padding:0 .15em } mark.read { background:var(--read) }
mark.gold { background:var(--gold) }
.tag { display:inline-block; font-size:.76rem; border-radius:99px; padding:.02rem .55rem; color:#fff;
  vertical-align:1px }
pre { overflow-x:auto; background:var(--faint); padding:.8rem; border-radius:8px; font-size:.84rem }
footer { margin-top:3rem; border-top:1px solid var(--rule); padding-top:1rem; font-size:.88rem;
  color:var(--soft) }
@media (max-width:560px) {
table.stacked thead { display:none }
table.stacked tr { display:grid; grid-template-columns:1fr auto; border-top:1px solid var(--rule) }
table.stacked tr:first-child { border-top:0 } table.stacked th, table.stacked td { border-top:0 }
table.stacked th { grid-column:1/-1; padding-bottom:.1rem } table.stacked td { padding-top:.1rem }
table.stacked td.num::after { content:" questions"; color:var(--soft) }
table:not(.stacked) tbody th { min-width:5.2rem } table:not(.stacked) th small { display:none }
table:not(.stacked) td, table:not(.stacked) th { padding:.4rem .5rem } thead th { white-space:normal }
table:not(.stacked) td .nowrap { display:block; white-space:normal; max-width:6.3rem }
table:not(.stacked) .strip { width:96px }
main { padding:1.4rem .9rem 3rem } h1 { font-size:1.5rem }
.q .said { grid-template-columns:1fr; gap:0 } .said dd { margin-bottom:.4rem } }
@media print { details { break-inside:avoid } nav { display:none } }
""".strip()
