// The style sheets of charts and pages, and the script of report pages.
#include "engine/run/trace/report_parts.h"

namespace thinwire::report {

// Eight colours that stay apart under each of the three common colour-blindnesses (smallest CIE76 distance 11, light
// and dark); marks and dashes differ as well, and names stand beside what they name.
std::string_view chart_style() {
  return R"css(
:root,svg{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b1f27;--soft:#5c6675;--rule:#dfe3e9;--grid:#eceff3;--axis:#aab2be;
--p0:#1f5fbf;--p1:#d9560b;--p2:#12a180;--p3:#e0a300;--p4:#b0479f;--p5:#56b4e9;--p6:#5c3317;--p7:#7b8494;--bad:#c9302c;--good:#1a7f4b;--warn:#a86500}
@media (prefers-color-scheme:dark){:root,svg{--bg:#12151b;--card:#1a1f27;--ink:#e7eaef;--soft:#9aa5b4;--rule:#2c333e;--grid:#262d37;--axis:#566071;
--p0:#6ea3f5;--p1:#ff8a4a;--p2:#3fc9a5;--p3:#f2cf5b;--p4:#d98fd0;--p5:#9bd8ff;--p6:#b9846a;--p7:#a4adb9;--bad:#f2726d;--good:#4ecb8b;--warn:#e3b341}}
svg{font-family:system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,sans-serif}
svg text{fill:var(--soft);font-size:11px;font-variant-numeric:tabular-nums}
svg text.ink{fill:var(--ink)}svg text.bold{fill:var(--ink);font-weight:600}svg text.head{fill:var(--ink);font-weight:600;font-size:13px}
svg text.on{fill:var(--ink);paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
svg a{cursor:pointer}svg a:hover text{text-decoration:underline}
.c0{--c:var(--p0)}.c1{--c:var(--p1)}.c2{--c:var(--p2)}.c3{--c:var(--p3)}.c4{--c:var(--p4)}.c5{--c:var(--p5)}.c6{--c:var(--p6)}.c7{--c:var(--p7)}
.grid{stroke:var(--grid)}.axis{stroke:var(--axis)}.zero{stroke:var(--axis);stroke-dasharray:2 3}.mark{stroke:var(--bad);stroke-width:1.5}
.line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.faint{stroke-width:1;opacity:.38}.dashed{stroke-width:1.4;stroke-dasharray:4 3}.d1{stroke-dasharray:6 3}.d2{stroke-dasharray:2 3}.d3{stroke-dasharray:8 3 2 3}
.band{fill:var(--c);opacity:.14}.dot{fill:var(--c);stroke:var(--card);stroke-width:1.2}.small{opacity:.5}.fill{fill:var(--c)}.paper{fill:var(--card)}
.lead{stroke:var(--axis);stroke-width:.7;fill:none}.whisker{stroke:var(--ink);stroke-width:1.2;fill:none}
.front{fill:none;stroke:var(--axis);stroke-width:1.5;stroke-dasharray:5 3}
)css";
}

std::string_view page_style() {
  return R"css(
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:26px;line-height:1.2;margin:0 12px 0 0;display:inline-block;overflow-wrap:anywhere}
h2{font-size:18px;margin:32px 0 12px}
h3{font-size:14px;margin:0;font-weight:600}
.sub{color:var(--soft);margin:4px 0 0;overflow-wrap:anywhere}
.pill{display:inline-block;border-radius:99px;padding:2px 11px;font-size:13px;font-weight:600;border:1px solid currentColor;vertical-align:4px}
.pill.good{color:var(--good)}.pill.bad{color:var(--bad)}.pill.warn{color:var(--warn)}.pill.live{color:var(--p0)}
.facts{display:flex;flex-wrap:wrap;gap:6px 22px;margin:14px 0 0;padding:0;font-size:14px}
.facts div{display:flex;gap:6px}.facts dt{color:var(--soft)}.facts dd{margin:0;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin:22px 0 12px}
.tile{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:12px 14px}
.tile b{display:block;font-size:23px;line-height:1.25;font-weight:600;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}.tile em{display:block;font-style:normal;color:var(--soft);font-size:12.5px;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:14px}
.card{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:14px 16px 10px;min-width:0;break-inside:avoid}
figcaption{margin-bottom:6px}figcaption p{margin:0;color:var(--soft);font-size:12.5px}
.empty{color:var(--soft);padding:40px 0;text-align:center}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12.5px;color:var(--soft);margin-top:3px}
.key{display:inline-flex;align-items:center;gap:6px;overflow-wrap:anywhere}
.key i{width:16px;height:0;border-top:2.5px solid var(--c);flex:none}
.key .boxkey{height:10px;width:10px;border:0;border-radius:2px;background:var(--c)}
.key .dotkey{border:0;width:8px;height:8px;border-radius:50%;background:var(--c)}
.key .faintkey{opacity:.4}
.key .tick{border:0;width:2px;height:10px;background:var(--bad)}
.plot{position:relative}
svg{display:block;width:100%;height:auto;overflow:visible}
.cross{stroke:var(--axis);stroke-dasharray:3 3;pointer-events:none}
.tip{position:absolute;pointer-events:none;background:var(--card);border:1px solid var(--rule);border-radius:7px;padding:5px 9px;font-size:12.5px;
box-shadow:0 3px 14px #0003;white-space:nowrap;display:none;z-index:2;font-variant-numeric:tabular-nums}
.tip i{display:inline-block;width:8px;height:8px;border-radius:50%;background:var(--c);margin-right:6px}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--rule);border-radius:10px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:7px 14px;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th{color:var(--soft);font-weight:600;font-size:13px}th:first-child,td:first-child{text-align:left}tr:last-child td{border-bottom:0}
td i{display:inline-block;width:10px;height:10px;border-radius:2px;background:var(--c);margin-right:8px}
.wide th,.wide td{padding:7px 9px;font-size:13px}
.words td+td,.words th+th{text-align:left;white-space:normal;min-width:150px}
td.words{text-align:left;white-space:normal;min-width:200px}
td.w,th.w{text-align:left}td.reason{text-align:left;white-space:normal}td.bad{color:var(--bad);font-weight:600}td.good{color:var(--good)}.best{font-weight:700}.base td{background:var(--grid)}
a{color:var(--p0)}
.notice{border:1px solid var(--warn);border-radius:10px;padding:9px 14px 9px 32px;margin:18px 0 0;background:var(--card)}
details{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:10px 16px;margin-top:12px}
summary{cursor:pointer;font-weight:600}pre{overflow-x:auto;font:12.5px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
footer{color:var(--soft);font-size:13px;margin-top:32px}
section+section{margin-top:48px;border-top:1px solid var(--rule);padding-top:28px}
@media print{body{background:#fff}.card,.tile{border-color:#ccc}}
)css";
}

std::string_view report_script() {
  return R"js(
(function(){
function short(v,u,base){var i=0;while(Math.abs(v)>=base*0.99995&&i<u.length-1){v/=base;i++}return (i||v%1?v.toPrecision(4):v)+u[i]}
var say={number:function(v){return Math.abs(v)>=1e5?short(v,["","k","M","G","T"],1000):String(+v.toPrecision(5))},
step:function(v){return v<1e7?String(v):say.number(v)},
bytes:function(v){return short(v,[" B"," KiB"," MiB"," GiB"," TiB"],1024)},
scientific:function(v){return v.toExponential(3)},time:function(v){return +v.toPrecision(4)+" ms"}};
function nearest(xs,x){var a=0,b=xs.length-1;while(b-a>1){var m=a+b>>1;if(xs[m]<x)a=m;else b=m}return x-xs[a]<xs[b]-x?a:b}
document.querySelectorAll(".plot").forEach(function(plot){
var src=plot.querySelector("script");if(!src)return;
var d=JSON.parse(src.textContent),svg=plot.querySelector("svg"),box=svg.viewBox.baseVal;
var tip=document.createElement("div");tip.className="tip";plot.appendChild(tip);
var cross=document.createElementNS("http://www.w3.org/2000/svg","line");cross.setAttribute("class","cross");
cross.setAttribute("y1",d.foot[0]);cross.setAttribute("y2",d.foot[1]);cross.style.display="none";svg.appendChild(cross);
function hide(){tip.style.display=cross.style.display="none"}
svg.addEventListener("pointerleave",hide);
svg.addEventListener("pointermove",function(e){
var r=svg.getBoundingClientRect(),px=(e.clientX-r.left)*box.width/r.width,A=d.x;
if(px<A[2]-4||px>A[3]+4)return hide();
var x=A[0]+(px-A[2])/(A[3]-A[2])*(A[1]-A[0]),at=null;
d.series.forEach(function(s){if(!s.x)return;var n=s.x[nearest(s.x,x)];if(at===null||Math.abs(n-x)<Math.abs(at-x))at=n});
if(at===null)return hide();
tip.textContent="";var head=document.createElement("b");head.textContent=(d.xf==="number"?say.step(at):say[d.xf](at));tip.appendChild(head);
d.series.forEach(function(s){if(!s.x)return;var i=nearest(s.x,at);
if(Math.abs(s.x[i]-at)>(A[1]-A[0])*0.02)return;
var row=document.createElement("div");row.className="c"+s.color;row.appendChild(document.createElement("i"));
row.appendChild(document.createTextNode(s.name+": "+(s.y[i]===null?"none":say[d.yf](s.y[i]))));tip.appendChild(row)});
var cx=A[2]+(at-A[0])/(A[1]-A[0])*(A[3]-A[2]);cross.setAttribute("x1",cx);cross.setAttribute("x2",cx);
cross.style.display="";tip.style.display="block";
var left=cx*r.width/box.width,w=tip.offsetWidth;tip.style.left=(left+w+24>r.width?left-w-12:left+12)+"px";tip.style.top="14px"})})})();
)js";
}

std::string follow_script(double reload_s) {
  return R"js((function(reload){
var key="thinwire "+location.pathname,all=document.querySelectorAll("details"),was=null;
try{was=JSON.parse(sessionStorage.getItem(key))}catch(e){}
if(was){all.forEach(function(d,i){d.open=!!was.open[i]});scrollTo(0,was.y)}
function again(){try{sessionStorage.setItem(key,JSON.stringify({y:scrollY,open:[].map.call(all,function(d){return d.open})}))}catch(e){}
location.reload()}
if(reload)setTimeout(function(){if(document.hidden)document.addEventListener("visibilitychange",again,{once:true});else again()},reload)
})()js" + std::to_string(static_cast<int64_t>(reload_s * 1000)) +
         ");\n";
}

}  // namespace thinwire::report
