"use strict";
// While the pointer is over a chart, all charts show their values at that step.
const data = JSON.parse(document.getElementById("curves").textContent);
const cards = [...document.querySelectorAll("[data-chart]")];
const at = document.getElementById("at");

function nearest(x) {
  let best = 0;
  data.places.forEach((place, index) => {
    if (Math.abs(place - x) < Math.abs(data.places[best] - x)) best = index;
  });
  return best;
}

function show(index) {
  for (const card of cards) {
    const values = data.charts[card.dataset.chart];
    const cross = card.querySelector(".cross");
    cross.classList.toggle("on", index !== null);
    if (index !== null) {
      cross.setAttribute("x1", data.places[index]);
      cross.setAttribute("x2", data.places[index]);
    }
    card.querySelectorAll("output").forEach((output, place) => {
      output.textContent = index === null ? output.dataset.last : values[place][index] || "-";
    });
  }
  at.textContent = index === null ? "" : "step " + data.steps[index];
}

for (const card of cards) {
  const chart = card.querySelector("svg");
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    show(nearest(((event.clientX - box.left) / box.width) * data.width));
  });
  chart.addEventListener("pointerleave", () => show(null));
}

// A link to an episode opens it.
function openLinkedEpisode() {
  const episode = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (episode instanceof HTMLDetailsElement) episode.open = true;
}
addEventListener("hashchange", openLinkedEpisode);
openLinkedEpisode();
