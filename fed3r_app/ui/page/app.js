// The page: it asks this server for values and shows them; it has no other source.

import { curves, matrix, scaled } from "./charts.js";
import { cell, choice, counted, h, searchField, sortable } from "./elements.js";

const LIVE_SECONDS = 1.5;
const LIST_SECONDS = 3;
const CLIENTS_ON_A_PAGE = 100;
const main = document.getElementById("main");
const trouble = document.getElementById("trouble");

async function get(path, options) {
  const response = await fetch(path, options).catch(() => {
    throw new Error("The server does not answer. Is fed3r ui still running?");
  });
  if (response.status === 204) return null;
  const value = await response.json();
  if (!response.ok) throw new Error(value.error);
  return value;
}

const runPath = (name) => `api/runs/${encodeURIComponent(name)}`;
const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
const state = (word) => h("span", { class: `state ${word}` }, word);
const dayOf = (text) => new Date(text).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
const hourOf = (text) => new Date(text).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
const dateOf = (text) => (text ? `${dayOf(text)}, ${hourOf(text)}` : "");

/** Ask again and again while this page is open; what fails is said, and asked again. */
function poll(seconds, refresh) {
  let timer = 0, open = true;
  const again = async () => {
    if (!document.hidden) {
      try {
        await refresh();
        if (open) trouble.hidden = true;
      } catch (error) {
        if (open) say(error.message);
      }
    }
    if (open) timer = setTimeout(again, 1000 * seconds);
  };
  again();
  return () => { open = false; clearTimeout(timer); };
}

function say(sentence) {
  trouble.textContent = sentence;
  trouble.hidden = false;
}

// ---- the list of runs

function listPage() {
  const picked = new Set();
  let runs = [], seen = "";
  const search = searchField("Search runs", () => draw());
  const count = h("span", { class: "soft" }), folder = h("p", { class: "path", title: "The folder of the runs" });
  const compare = h("button", { class: "action", type: "button", disabled: "", click: () => { location.hash = link("compare", ...picked); } }, "Compare two");
  const { table, show } = sortable("runs", [
    [null, "", false, (run) => cell(pick(run), "pick")],
    ["name", "name", false, (run) => cell(h("a", { href: link("run", run.name) }, run.name), "name")],
    ["method", "method", false, (run) => cell(run.method)],
    ["dataset", "data", false, (run) => cell(run.dataset)],
    ["accuracy", "accuracy", true, (run) => cell(run.accuracy_text, "number accuracy")],
    ["clients", "clients", true, (run) => h("td", { class: "number", "data-unit": run.clients_text && "clients" }, run.clients_text)],
    ["began", "date", false, (run) => h("td", { class: "date" }, dayOf(run.began), h("span", { class: "hour" }, `, ${hourOf(run.began)}`))],
    ["state", "state", false, (run) => h("td", { title: run.reason || null }, state(run.state))],
  ], "began", true);
  const empty = h("p", { class: "empty" }, "No runs yet. A run that is started appears here by itself.");
  main.replaceChildren(h("h1", {}, "Runs"), folder, h("div", { class: "controls" }, search, compare, count), table, empty);

  function pick(run) {
    const box = h("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, change: () => {
      if (box.checked) picked.add(run.name); else picked.delete(run.name);
      compare.disabled = picked.size !== 2;
    } });
    box.checked = picked.has(run.name);
    return box;
  }

  function draw() {
    const found = runs.filter((run) => search.finds([run.name, run.method, run.dataset, run.state].join(" ")));
    show(found);
    count.textContent = counted(found.length, runs.length, "run", "runs");
    table.hidden = !runs.length;
    empty.hidden = runs.length > 0;
  }

  return poll(LIST_SECONDS, async () => {
    const view = await get(`api/runs?seen=${seen}`);
    if (!view) return;
    ({ runs, version: seen } = view);
    folder.textContent = view.folder;
    draw();
  });
}

// ---- one run

const AXES = [
  ["round", "Rounds", { label: "rounds", tick: String, whole: true }],
  ["upload_bytes", "Bytes", { label: "bytes uploaded by all clients", tick: (value) => scaled(value, ["B", "kB", "MB", "GB", "TB"]) }],
  ["flops_per_client", "FLOPs", { label: "FLOPs, mean of the clients", tick: (value) => scaled(value, ["", "k", "M", "G", "T", "P"]) }],
  ["seconds", "Time", { label: "seconds", tick: (value) => scaled(value, [""]) }],
];
const TABS = [["", "Overview"], ["clients", "Clients"], ["classes", "Classes"], ["settings", "Settings"], ["classify", "Classify"]];

function seriesOf(curve, key, kind, label) {
  const known = curve.filter((point) => point[key] !== null);
  const words = (text) => [`round ${text.round}`, text.accuracy, `${text.upload_bytes} uploaded`, `${text.flops_per_client} FLOPs`, text.seconds];
  return { kind, label, points: known.map((point) => ({ x: point[key], y: point.accuracy, phase: point.phase, text: words(point.text).join("  ·  ") })) };
}

function legend(series) {
  return series.length > 1 ? h("ul", { class: "legend" }, series.map((each) => h("li", { class: each.kind }, each.label))) : null;
}

/** Return a chart of curves with a choice of what they are drawn against. */
function curveChart(list, names, axis, remember) {
  const host = h("div", { class: "chart" });
  const key = h("div");
  const draw = (chosen) => {
    remember(chosen);
    const about = AXES.find(([each]) => each === chosen)[2];
    const series = list.map((curve, i) => seriesOf(curve, chosen, i ? "other" : "first", names[i]));
    if (chosen === "upload_bytes" && list.length === 1) {
      series[0].label = "as sent";
      series.push(seriesOf(list[0], "paper_upload_bytes", "paper", "as the paper's dense matrices"));
    }
    const drawnSeries = series.filter((each) => each.points.length);
    key.replaceChildren(...[legend(drawnSeries)].filter(Boolean));
    if (drawnSeries.length) curves(host, drawnSeries, about);
    else host.replaceChildren(h("p", { class: "empty" }, "No accuracy has been measured yet."));
  };
  draw(axis);
  return h("section", {}, h("div", { class: "controls" }, choice(AXES.map(([each, label]) => [each, label]), axis, draw)), key, host);
}

function pairs(rows) {
  return h("dl", { class: "pairs" }, rows.flatMap(([label, text]) => [h("dt", {}, label), h("dd", {}, text)]));
}

function figure(label, text, small) {
  return h("div", {}, h("dt", {}, label), h("dd", {}, text || "–", small ? h("small", {}, small) : null));
}

function runPage(name, tab = "") {
  const head = h("div", {}, h("h1", {}, name)), content = h("div");
  const links = TABS.map(([key, label]) => h("a", { href: link("run", name, ...(key ? [key] : [])), "aria-current": key === tab ? "page" : null }, label));
  main.replaceChildren(head, h("nav", { class: "tabs" }, links), content);
  const show = { "": overview, clients: clientsTab, classes: classesTab, settings: settingsTab, classify: classifyTab }[tab] ?? overview;
  const update = show(content, name);
  let seen = "";
  return poll(LIVE_SECONDS, async () => {
    const view = await get(`${runPath(name)}?seen=${seen}`);
    if (!view) return;
    seen = view.version;
    head.replaceChildren(...headOf(view));
    await update(view);
  });
}

function headOf({ run, time, costs, progress }) {
  const upload = costs[0];
  const what = [run.method && `${run.method} on ${run.dataset}`, dateOf(run.began)].filter(Boolean).join(" · ");
  return [
    h("div", { class: "head" }, h("h1", {}, run.name), state(run.state)),
    h("p", { class: "soft" }, what),
    run.reason ? h("p", { class: "fault" }, run.reason) : null,
    h("dl", { class: "figures" },
      figure("accuracy", run.accuracy_text),
      figure("clients counted", run.state === "running" && progress[0]?.total ? `${progress[0].done} of ${progress[0].total}` : run.clients_text),
      figure("uploaded", upload?.ours, upload?.paper && `by the paper's formula ${upload.paper}`),
      figure("time", time, `${run.rounds} ${run.rounds === 1 ? "round" : "rounds"}`)),
    run.state === "running" ? h("div", {}, progress.filter((each) => each.total).map((each) => h("div", { class: "bar" },
      h("span", {}, each.what), h("progress", { value: each.done, max: each.total }), h("span", { class: "number" }, `${each.done} of ${each.total}`)))) : null,
  ].filter(Boolean);
}

function overview(content) {
  let axis = "round";
  return (view) => content.replaceChildren(
    curveChart([view.curve], [view.run.name], axis, (chosen) => { axis = chosen; }),
    ...(view.costs.length ? [h("h2", {}, "Cost"), h("div", { class: "wide" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th"), h("th", { class: "number" }, "sent"), h("th", { class: "number" }, "by the paper's formulas"))),
      h("tbody", {}, view.costs.map((cost) => h("tr", {}, h("td", {}, cost.what), h("td", { class: "number" }, cost.ours), h("td", { class: "number" }, cost.paper)))))),
      h("p", { class: "note" }, "Bytes of all clients together. FLOPs are counted as in the paper, as the mean of the clients.")] : []),
    ...(view.heads.length ? [h("h2", {}, "Heads"), h("div", { class: "wide" }, h("table", {},
      h("thead", {}, h("tr", {}, view.heads[0].map((label) => h("th", {}, label)))),
      h("tbody", {}, view.heads.slice(1).map((row) => h("tr", {}, row.map((text) => cell(text))))))),
      h("p", { class: "note" }, view.heads_note)] : []),
    ...(view.outcome.length ? [h("h2", {}, "Outcome"), pairs(view.outcome)] : []));
}

function clientsTab(content, name) {
  const asked = { state: "", search: "", offset: 0 };
  const chips = h("div"), body = h("tbody"), range = h("span", { class: "soft" });
  const search = h("input", { type: "search", placeholder: "Search clients", "aria-label": "Search clients", input: () => { asked.search = search.value; turn(-asked.offset); } });
  const before = h("button", { class: "action", type: "button", click: () => turn(-CLIENTS_ON_A_PAGE) }, "Previous");
  const after = h("button", { class: "action", type: "button", click: () => turn(CLIENTS_ON_A_PAGE) }, "Next");
  content.replaceChildren(chips, h("div", { class: "controls" }, search, range), h("div", { class: "wide" }, h("table", {},
    h("thead", {}, h("tr", {}, ["client", "state", "images", "replies", "last reply", "reason"].map((label, i) => h("th", { scope: "col", class: i === 2 || i === 3 ? "number" : null }, label)))), body)),
    h("div", { class: "controls" }, before, after));

  function turn(by) {
    asked.offset += by;
    refresh().catch((error) => say(error.message));
  }

  async function refresh() {
    const query = new URLSearchParams({ ...asked, limit: CLIENTS_ON_A_PAGE });
    const { total, offset, rows } = await get(`${runPath(name)}/clients?${query}`);
    body.replaceChildren(...rows.map((row) => h("tr", {}, h("td", { class: "name" }, row.client), h("td", {}, state(row.state)),
      h("td", { class: "number" }, row.images ?? ""), h("td", { class: "number" }, row.replies), cell(dateOf(row.time), "time"), h("td", { class: "reason" }, row.reason))));
    range.textContent = total ? `${offset + 1} to ${offset + rows.length} of ${total}` : "No client of that kind has replied.";
    before.disabled = offset === 0;
    after.disabled = offset + rows.length >= total;
    before.hidden = after.hidden = total <= CLIENTS_ON_A_PAGE;
  }

  return (view) => {
    const counts = Object.entries(view.clients);
    const all = counts.reduce((sum, [, number]) => sum + number, 0);
    const options = [["", `all ${all}`], ...counts.map(([key, number]) => [key, `${key} ${number}`])];
    chips.replaceChildren(choice(options, asked.state, (key) => { asked.state = key; turn(-asked.offset); }));
    return refresh();
  };
}

function settingsTab(content) {
  const flat = (value, prefix = "") => Object.entries(value ?? {}).flatMap(([key, each]) => (each && typeof each === "object" ? flat(each, `${prefix}${key} `) : [[prefix + key, String(each ?? "")]]));
  return (view) => {
    const changed = view.settings.filter(([, , isDefault]) => !isDefault);
    const others = view.settings.filter(([, , isDefault]) => isDefault);
    const made = flat(view.provenance).filter(([, text]) => text);
    content.replaceChildren(
      h("h2", {}, "Settings that are not the default"),
      changed.length ? pairs(changed) : h("p", { class: "soft" }, "None."),
      h("details", {}, h("summary", {}, `${others.length} settings at their defaults`), pairs(others)),
      ...(made.length ? [h("h2", {}, "Provenance"), pairs(made)] : []));
  };
}

function classesTab(content, name) {
  const empty = h("p", { class: "empty" }, "The server has no test images of this run, or it was made before their classes were kept.");
  const host = h("div", { class: "chart" }), readout = h("p", { class: "readout" }, "");
  const pictured = h("section", {}, h("h2", {}, "Confusion matrix"), host, readout);
  const confused = sortable("", [
    ["truth", "true class", false, (pair) => cell(pair.truth, "name")],
    ["guess", "taken for", false, (pair) => cell(pair.guess, "name")],
    ["images", "images", true, (pair) => cell(String(pair.images), "number")],
  ], "images", true);
  const pairsOf = h("section", {}, h("h2", {}, "Most often confused"), confused.table);
  const search = searchField("Search classes", () => draw()), count = h("span", { class: "soft" });
  const each = sortable("", [
    ["name", "class", false, (row) => cell(row.name, "name")],
    ["images", "test images", true, (row) => cell(String(row.images), "number")],
    ["correct", "right", true, (row) => cell(String(row.correct), "number")],
    ["recall", "recall", true, (row) => cell(row.recall_text, "number")],
    ["precision", "precision", true, (row) => cell(row.precision_text, "number")],
    ["taken_for", "most often taken for", false, (row) => cell(row.taken_for)],
  ], null, false);
  const known = h("div", {}, h("div", { class: "columns" }, pictured, pairsOf),
    h("h2", {}, "Classes"), h("div", { class: "controls" }, search, count), h("div", { class: "wide" }, each.table));
  let rows = [], shown = "";

  function draw() {
    const found = rows.filter((row) => search.finds(row.name));
    each.show(found);
    count.textContent = counted(found.length, rows.length, "class", "classes");
  }

  function describe(truth, guess, images, total) {
    readout.textContent = `${images} of ${total} test images of ${truth} are taken for ${guess}`;
  }

  return async () => {
    const view = await get(`${runPath(name)}/classes`);
    if (JSON.stringify(view) === shown) return;
    shown = JSON.stringify(view);
    rows = view.rows;
    content.replaceChildren(rows.length ? known : empty);
    pictured.hidden = !view.counts.length;
    pairsOf.hidden = !view.confused.length;
    if (view.counts.length) {
      matrix(host, view.names, view.counts, describe);
      readout.textContent = "Rows are true classes, columns predicted ones. The stronger the colour, the larger the share of the class.";
    }
    confused.show(view.confused);
    draw();
  };
}

function classifyTab(content, name) {
  const pictures = h("ul", { class: "pictures" });
  const file = h("input", { type: "file", multiple: "", hidden: "", change: () => { classify(file.files); file.value = ""; } });
  const drop = h("div", { class: "drop",
    dragover: (event) => { event.preventDefault(); drop.classList.add("over"); },
    dragleave: () => drop.classList.remove("over"),
    drop: (event) => { event.preventDefault(); drop.classList.remove("over"); classify(event.dataTransfer.files); },
  }, h("div", {}, "Drop pictures here"), h("button", { class: "action", type: "button", click: () => file.click() }, "Choose files"),
    h("div", { class: "note" }, "They are classified by the model of this run, on the machine that shows this page, and not kept."));
  const none = h("p", { class: "empty" }, "This run has no model yet.");

  async function classify(files) {
    const waiting = Array.from(files, (each) => {
      const result = h("div", { class: "soft" }, "…");
      const source = URL.createObjectURL(each);
      const free = () => URL.revokeObjectURL(source);
      const image = h("img", { src: source, alt: "", load: free, error: () => { free(); image.style.visibility = "hidden"; } });
      return { each, result, item: h("li", {}, image, h("div", {}, h("h3", {}, each.name), result)) };
    });
    pictures.prepend(...waiting.map(({ item }) => item));
    for (const { each, result } of waiting) {
      try {
        const { classes } = await get(`${runPath(name)}/predict`, { method: "POST", body: each });
        result.replaceWith(...scores(classes));
      } catch (error) {
        result.className = "fault";
        result.textContent = error.message;
      }
    }
  }

  function scores(classes) {
    const most = Math.max(...classes.map(([, score]) => score), 0);
    const least = Math.min(...classes.map(([, score]) => score), 0);
    return classes.map(([label, score]) => h("div", { class: "score" }, h("span", {}, label),
      h("progress", { value: score - least, max: most - least || 1 }), h("span", { class: "number" }, score.toFixed(3))));
  }

  return (view) => {
    if (!view.has_model) content.replaceChildren(none);
    else if (!drop.isConnected) content.replaceChildren(drop, file, pictures);
  };
}

// ---- two runs

function comparePage(one, other) {
  main.replaceChildren();
  const query = new URLSearchParams({ one, other });
  let axis = "round", open = true;
  get(`api/compare?${query}`).then((view) => {
    if (!open) return;
    const names = view.runs.map((run) => run.name);
    const table = (rows) => h("div", { class: "wide" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th"), names.map((name) => h("th", { scope: "col" }, h("a", { href: link("run", name) }, name))))),
      h("tbody", {}, rows.map(([label, ...texts]) => h("tr", {}, h("td", { class: "soft" }, label), texts.map((text) => h("td", {}, text)))))));
    const settings = view.settings.map((each) => [each.key, ...each.values]);
    main.replaceChildren(
      h("h1", {}, "Two runs"),
      h("h2", {}, "Settings that differ"),
      settings.length ? table(settings) : h("p", { class: "soft" }, "None."),
      h("h2", {}, "Accuracy"),
      curveChart(view.curves, names, axis, (chosen) => { axis = chosen; }),
      h("h2", {}, "Outcome"),
      table(view.outcome));
  }).catch((error) => open && say(error.message));
  return () => { open = false; };
}

// ---- which page

let leave = () => {};
function open() {
  leave();
  trouble.hidden = true;
  const [page, ...names] = location.hash.slice(2).split("/").map(decodeURIComponent);
  document.title = names.length ? `${names[0]} – Fed3R` : "Fed3R";
  const show = { run: runPage, compare: comparePage }[page] ?? listPage;
  leave = show(...names);
}
addEventListener("hashchange", open);
open();
