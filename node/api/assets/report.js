// Draws the curves that lie in the report; stands behind charts.js in one script.
const curves = JSON.parse(document.getElementById("curves").textContent);
for (const [name, series] of Object.entries(curves)) draw(document.getElementById(`chart-${name}`), series);
