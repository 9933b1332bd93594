// Draws the curves that lie in the report.
const curves = JSON.parse(document.getElementById("curves").textContent);
const style = getComputedStyle(document.documentElement);
const line = style.getPropertyValue("--line").trim();
const layout = (title) => ({
  title: { text: title, font: { size: 13 }, x: 0.01, xanchor: "left" },
  margin: { l: 52, r: 8, t: 30, b: 30 },
  paper_bgcolor: "rgba(0,0,0,0)",
  plot_bgcolor: "rgba(0,0,0,0)",
  font: { color: style.getPropertyValue("--faint").trim(), size: 11 },
  xaxis: { gridcolor: line },
  yaxis: { gridcolor: line, rangemode: "tozero", exponentformat: "SI" },
  legend: { orientation: "h", y: -0.15 },
  hovermode: "x unified",
});
const titles = {
  reward: "Reward by task",
  tokens: "Tokens a second",
  traffic: "Traffic, bytes a second",
  memory: "Resident memory, bytes",
};
for (const [name, title] of Object.entries(titles)) {
  const traces = curves[name].map((each) => ({
    name: each.name,
    x: each.seconds.map((second) => new Date(1000 * second)),
    y: each.values,
    mode: "lines",
    line: { width: 1.6 },
  }));
  Plotly.newPlot(`chart-${name}`, traces, layout(title), { displaylogo: false, responsive: true });
}
