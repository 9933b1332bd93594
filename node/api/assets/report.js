// Draws the curves that the report holds. It follows charts.js in the same script.
const curves = JSON.parse(document.getElementById("curves").textContent);
for (const [name, series] of Object.entries(curves)) draw(document.getElementById(`chart-${name}`), series);
