"use strict";
// Texts of episodes are only ever set as textContent, so markup in them stays text.

function parsed(id) {
  return JSON.parse(document.getElementById(id).textContent);
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function themed(layout) {
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), automargin: true };
  const small = (part) => ({ ...part, title: { ...part.title, font: { size: 11 }, standoff: 6 } });
  return {
    ...layout,
    xaxis: { ...axis, ...small(layout.xaxis) },
    yaxis: { ...axis, ...small(layout.yaxis) },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--text"), family: "system-ui, sans-serif", size: 12 },
    margin: { t: 10, r: 10, b: 40, l: 50 },
    legend: { orientation: "h", y: 1.03, yanchor: "bottom", x: 0, traceorder: "normal" },
    hoverlabel: { bgcolor: colour("--card"), font: { color: colour("--text") }, namelength: -1 },
    hovermode: "x unified",
    showlegend: true,
  };
}

function draw() {
  for (const place of document.querySelectorAll(".chart")) {
    const figure = parsed(place.dataset.figure);
    Plotly.react(place, figure.data, themed(figure.layout), {
      responsive: true,
      displayModeBar: false, // it would cover the lines; dragging zooms, a double click resets
    });
  }
}

function element(kind, text, className) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function verdicts(episode) {
  const column = episode.head.indexOf("verdict");
  return column < 0 ? [] : episode.rows.map((row) => row[column]);
}

function matches(episode, kind, words) {
  const found = verdicts(episode);
  if (kind === "wrong" && !found.some((v) => v !== "right")) return false;
  if (kind === "late" && (found.length === 0 || found[found.length - 1] === "right")) return false;
  return JSON.stringify(episode).toLowerCase().includes(words.toLowerCase());
}

function table(episode) {
  const made = element("table");
  const head = made.createTHead().insertRow();
  for (const name of episode.head) head.append(element("th", name));
  const body = made.createTBody();
  for (const row of episode.rows) {
    const line = body.insertRow();
    row.forEach((cell, column) => {
      const verdict = episode.head[column] === "verdict" ? cell : "";
      line.append(element("td", cell, verdict));
    });
  }
  return made;
}

function show(episode) {
  const place = document.getElementById("episode");
  place.replaceChildren();
  if (!episode) {
    place.append(element("p", "No episode matches.", "note"));
    return;
  }
  place.append(element("h3", episode.title));
  place.append(element("p", episode.facts.map(([k, v]) => `${k}: ${v}`).join(" · "), "note"));
  for (const block of episode.blocks) {
    place.append(element("div", block.label, "note"));
    const text = element("pre");
    for (const piece of block.pieces) {
      text.append(typeof piece === "string" ? piece : element("span", `✂ ${piece.cut}`, "cut"));
    }
    place.append(text);
  }
  if (episode.rows.length) place.append(table(episode));
}

function browse() {
  const [run, file, filter, search] = ["run", "file", "filter", "search"].map((name) =>
    document.getElementById(`episode-${name}`)
  );
  if (!run) return;
  const data = parsed("episodes-data");
  const list = document.getElementById("episode-list");
  const options = (select, names) => select.replaceChildren(...names.map((n) => new Option(n, n)));
  const fill = () => {
    const found = data[run.value][file.value].filter((e) => matches(e, filter.value, search.value));
    list.replaceChildren(
      ...found.map((episode) => {
        const button = element("button");
        const right = verdicts(episode).filter((v) => v === "right").length;
        button.append(element("span", episode.title));
        button.append(element("span", `${right}/${episode.rows.length}`, right ? "right" : "wrong"));
        button.addEventListener("click", () => {
          for (const other of list.querySelectorAll("button")) other.removeAttribute("aria-current");
          button.setAttribute("aria-current", "true");
          show(episode);
        });
        const item = element("li");
        item.append(button);
        return item;
      })
    );
    const first = list.querySelector("button");
    if (first) first.click();
    else show(null);
  };
  const files = () => {
    options(file, Object.keys(data[run.value]));
    fill();
  };
  options(run, Object.keys(data));
  run.addEventListener("change", files);
  file.addEventListener("change", fill);
  filter.addEventListener("change", fill);
  search.addEventListener("input", fill);
  files();
}

draw();
browse();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
