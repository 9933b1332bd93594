// Lines over time by plotly, which is loaded once the page stands: it is large, and the numbers do not wait for it.

const SOURCE = "/assets/plotly.min.js";
const EVERY_MS = 5000; // a chart is drawn anew at most so often: it costs far more than a table
const COLORS = ["#3b7ddd", "#d9822b", "#2e9e62", "#b04fc0", "#c9423b", "#7a8599", "#1aa3a3", "#9c8412"];

let loading = null;
const drawnAt = new Map();

function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = SOURCE;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      loading = null; // the node may be back for the next try
      reject(new Error("plotly could not be loaded"));
    };
    document.head.append(script);
  });
  return loading;
}

/** Draws `series`, [{name, seconds: [Unix time], values: [number or null]}], into `place`, unless it just did. */
export async function draw(place, series, { range = null } = {}) {
  const now = performance.now();
  if (now - (drawnAt.get(place) ?? -Infinity) < EVERY_MS || document.hidden) return;
  drawnAt.set(place, now);
  const Plotly = await plotly().catch(() => null);
  if (Plotly === null) {
    drawnAt.delete(place);
    return;
  }
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--faint").trim();
  const line = style.getPropertyValue("--line").trim();
  const traces = series.map(({ name, seconds, values }, index) => ({
    name: escaped(name),
    x: seconds.map((each) => new Date(1000 * each)),
    y: values,
    mode: "lines",
    line: { color: COLORS[index % COLORS.length], width: 1.8 },
    hovertemplate: "%{y:.3~g}",
  }));
  const layout = {
    margin: { l: 44, r: 8, t: 6, b: 28 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: 11 },
    xaxis: { gridcolor: line, linecolor: line, nticks: 5 },
    yaxis: { gridcolor: line, zerolinecolor: line, rangemode: "tozero", ...(range ? { range } : {}) },
    legend: { orientation: "h", y: -0.2, font: { size: 10 } },
    showlegend: series.length > 1,
    hovermode: "x unified",
    uirevision: "kept", // a zoom outlives the next drawing
  };
  await Plotly.react(place, traces, layout, { displayModeBar: false, responsive: true });
}

/** Plotly reads a few tags in names; a stranger's "<" is to be shown, not read. */
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawnAt.clear());
