// Shows the windows of DATA, one at a time. Text of the data becomes text nodes, never markup.
const HUES = [255, 150, 55, 325, 205, 25, 110, 290];
const VIEWS = ["text", "ids", "both"];
const SPECIAL = new Set(DATA.special);
const at = { part: 0, window: 0, view: "text", match: -1 };

const byId = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en-US");
const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
const part = () => DATA.parts[at.part];
const shown = () => part().windows[at.window];

function make(tag, properties, ...children) {
  const { style, data, ...others } = properties || {};
  const element = Object.assign(document.createElement(tag), others);
  for (const [name, value] of Object.entries(style || {})) element.style.setProperty(name, value);
  Object.assign(element.dataset, data);
  element.append(...children);
  return element;
}

const isHidden = (letter) => letter !== " " && /[\p{C}\p{Z}]/u.test(letter);
const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
const spelt = (letter) => "\\u{" + letter.codePointAt(0).toString(16) + "}";

// Nodes of a token's text: what cannot be seen is marked, and a mark is not copied.
function textNodes(token) {
  if (token.text === null) return [String(token.id)];
  if (token.text === "") return [make("i", {}, "‥")];
  const isBlank = /^ +$/.test(token.text);
  const nodes = [];
  let plain = "";
  for (const letter of token.text) {
    if (!(isBlank || isHidden(letter))) {
      plain += letter;
      continue;
    }
    nodes.push(plain);
    plain = letter === "\n" || letter === "\t" ? letter : "";
    nodes.push(make("i", {}, { " ": "·", "\n": "⏎", "\t": "⇥" }[letter] || spelt(letter)));
  }
  return [...nodes, plain];
}

// --- The page ---------------------------------------------------------------------------------

function showWindow() {
  const read = readWindow(shown());
  document.body.dataset.view = at.view;
  const tokens = byId("tokens");
  tokens.classList.toggle("masked", read.isMasked);
  tokens.replaceChildren(...read.segments.map((segment, index) => segmentNode(read, segment, index)));
  const first = tokens.querySelector(".t");
  if (first) first.tabIndex = 0;
  byId("map").replaceChildren(...read.segments.map((segment, index) => mapNode(read, segment, index)));
  showSummary(read);
  showDocuments(read);
  showPager();
  showLegend(read);
  markMatches();
  hideCard();
}

const hue = (index) => ({ "--h": HUES[index % HUES.length] });
// Of a segment or a token: its first and its last character, counted from 0.
function charactersOf({ from, to }) {
  return to - from > 1 ? `characters ${number(from)}–${number(to - 1)}` : `character ${number(from)}`;
}

function segmentNode(read, segment, index) {
  if (segment.file < 0) {
    const note = `${counted(segment.num, "token")} of padding, id ${number(segment.id)}`;
    return make("div", { className: "segment padding", id: `s${index}` },
      make("div", { className: "note" }, make("span", {}, note)));
  }
  const facts = [`row ${number(segment.row)}`, counted(segment.num, "token")];
  if (segment.to > segment.from) facts.push(charactersOf(segment));
  if (segment.token > 0) facts.push(`from token ${number(segment.token)} of its text`);
  const head = make("div", { className: "head" }, make("b", {}, DATA.files[segment.file]));
  head.append(...facts.map((fact) => make("span", {}, fact)));
  const text = make("div", { className: "text", dir: "auto" });
  for (let i = segment.first; i < segment.first + segment.num; i++) {
    text.append(tokenNode(read.tokens[i], i));
  }
  return make("div", { className: "segment", id: `s${index}`, style: hue(index) }, head, text);
}

function tokenNode(token, index) {
  const names = ["t", token.isLoss && "loss", SPECIAL.has(token.id) && "special"];
  const node = make("span", { className: names.filter(Boolean).join(" "), tabIndex: -1, data: { i: index } });
  if (at.view === "ids") node.append(String(token.id));
  else node.append(...textNodes(token));
  if (at.view === "both") node.append(make("small", {}, String(token.id)));
  return node;
}

function mapNode(read, segment, index) {
  const node = make("div", { data: { segment: index }, style: { ...hue(index), "flex-grow": segment.num } });
  if (segment.file < 0) node.className = "padding";
  else if (read.isMasked) node.append(...lossBars(read.tokens.slice(segment.first, segment.first + segment.num)));
  return node;
}

// Bars below those tokens of a segment whose label counts.
function lossBars(tokens) {
  const bars = [];
  for (let start = 0; start < tokens.length; start++) {
    if (!tokens[start].isLoss) continue;
    let stop = start;
    while (tokens[stop]?.isLoss) stop++;
    const share = (num) => `${(100 * num) / tokens.length}%`;
    bars.push(make("i", { style: { left: share(start), width: share(stop - start) } }));
    start = stop;
  }
  return bars;
}

function showSummary(read) {
  const { length, isStream } = part();
  const { position, tokens } = read;
  const sequence = Math.floor(position / length);
  const begin = position % length;
  const numPositions = read.segments.reduce((sum, segment) => sum + segment.num, 0);
  let name = isStream
    ? `Tokens ${number(position)}–${number(position + numPositions - 1)}`
    : `Sequence ${number(sequence)}`;
  if (!isStream && (begin || numPositions > 4095 && length > 4096)) {
    name += `, columns ${number(begin)}–${number(begin + numPositions - 1)}`;
  }
  const documents = read.segments.filter((segment) => segment.file >= 0).length;
  const facts = [counted(tokens.length, "token"), counted(documents, "segment")];
  if (read.numPadding) facts.push(`${number(read.numPadding)} of padding`);
  if (read.isMasked) {
    facts.push(`${number(tokens.filter((token) => token.isLoss).length)} with loss`);
  }
  byId("summary").replaceChildren(name, make("span", { className: "dim" }, ` · ${facts.join(" · ")}`));
}

function showDocuments(read) {
  byId("documents").replaceChildren(...read.segments.flatMap((segment, index) => {
    if (segment.file < 0) return [];
    const name = `${DATA.files[segment.file]}:${segment.row}`;
    const button = make("button", { type: "button", title: name, data: { segment: index }, style: hue(index) },
      make("i", { className: "swatch" }), make("span", {}, make("bdi", {}, name)),
      make("em", {}, number(segment.num)));
    return [make("li", {}, button)];
  }));
}

function showPager() {
  const { windows, first, stop, numSequences, isStream, length, isCut, name, chosen } = part();
  const noun = isStream ? "window" : "sequence";
  const field = byId("number");
  byId("unit").textContent = isStream ? "Window" : "Sequence";
  Object.assign(field, { min: first, max: stop - 1, value: Math.floor(shown()[0] / length) });
  field.setCustomValidity("");
  Object.assign(byId("slider"), { max: windows.length - 1, value: at.window, disabled: windows.length < 2 });
  byId("previous").disabled = at.window === 0;
  byId("next").disabled = at.window === windows.length - 1;
  const some = stop - first === 1 ? `${noun} ${number(first)}` : `${noun}s ${number(first)} to ${number(stop - 1)}`;
  const isAll = first === 0 && stop === numSequences && !isCut;
  byId("total").textContent = `of ${number(numSequences)}, ${isAll ? "from 0" : `here ${number(first)}–${number(stop - 1)}`}`;
  byId("scope").textContent = isAll
    ? `This page has all ${counted(numSequences, noun)} of ${name}.`
    : `This page has ${some} of the ${number(numSequences)} of ${name}${isCut ? ", the last in part" : ""}. ` +
      "`tokflow inspect EXPORT --html FILE --first N` shows others.";
  if (chosen) showChosen(field, chosen, name);
  for (const button of byId("parts").children) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.part) === at.part));
  }
  for (const button of byId("views").children) {
    button.setAttribute("aria-pressed", String(button.dataset.view === at.view));
  }
}

function showLegend(read) {
  const rows = [[make("span", { className: "t", style: hue(0) }, "to"), make("span", { className: "t", style: hue(1) }, "ken"), "a colour for each segment"]];
  if (read.isMasked) {
    const chip = make("span", { className: "masked" }, make("span", { className: "t loss", style: hue(0) }, "token"));
    rows.push([chip, "underlined: its label counts in the loss"]);
  }
  if (read.numPadding) rows.push([make("span", { className: "padding" }, "pad"), "padding"]);
  if (SPECIAL.size) rows.push([make("span", { className: "t special", style: hue(0) }, "<s>"), "special token"]);
  if (read.tokens.some((token) => token.text === "")) {
    rows.push([make("span", { className: "t", style: hue(0) }, make("i", {}, "‥")), "less than a character"]);
  }
  byId("legend").replaceChildren(...rows.map((row) => make("li", {}, ...row)));
}

// --- The card of one token --------------------------------------------------------------------

function cardRows(token, index) {
  const { segment, bytes } = token;
  const { length, isStream } = part();
  const place = segment.place + token.column;
  const rows = [["id", number(token.id)]];
  if (DATA.areBytes && bytes) rows.push([bytes.length === 1 ? "byte" : "bytes", hex(bytes)]);
  rows.push(["raw file", DATA.files[segment.file]], ["row", number(segment.row)]);
  if (token.added) rows.push(["characters", `none: the ${token.added} that was put around the text`]);
  else if (token.from === undefined) rows.push(["characters", "not known"]);
  else if (token.to === token.from && token.text) {
    rows.push(["characters", "none: a space that is put before the text"]);
  } else {
    const [noun, span] = charactersOf(token).split(" ");
    rows.push([noun, span + (segment.flags & FLAG.NORMALISED ? ", of the decoded text" : "")]);
  }
  const isMoved = segment.flags & FLAG.EOS_FIRST;
  const ofText = isMoved ? (token.column || segment.num) - 1 : segment.token + token.column;
  rows.push(["token of its text", number(ofText)]);
  if (!isStream) rows.push(["column", number(place % length)]);
  rows.push([`position in ${part().name}`, number(place)]);
  if (token.said) rows.push(["turn", token.said]);
  if (readWindow(shown()).isMasked) rows.push(["loss", token.isLoss ? "counts" : "does not count"]);
  return rows;
}

function showCard(node) {
  const token = readWindow(shown()).tokens[node.dataset.i];
  const card = byId("card");
  const rows = cardRows(token).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
  const text = token.text === null ? `#${token.id}` : token.text === "" ? "less than a character" : JSON.stringify(token.text);
  card.replaceChildren(make("p", {}, text), make("dl", {}, ...rows));
  card.hidden = false;
  const box = (node.getClientRects()[0] || node.getBoundingClientRect());
  const below = box.bottom + 8 + card.offsetHeight <= innerHeight;
  card.style.top = `${below ? box.bottom + 8 : Math.max(8, box.top - 8 - card.offsetHeight)}px`;
  card.style.left = `${Math.max(8, Math.min(box.left, innerWidth - card.offsetWidth - 8))}px`;
  for (const other of document.querySelectorAll("[aria-describedby]")) other.removeAttribute("aria-describedby");
  node.setAttribute("aria-describedby", "card");
}

function hideCard() {
  byId("card").hidden = true;
}

// --- Places -----------------------------------------------------------------------------------

function go(window, partIndex = at.part) {
  at.part = partIndex;
  at.window = Math.max(0, Math.min(window, part().windows.length - 1));
  showWindow();
  scrollTo({ top: 0, behavior: "instant" });
  keepPlace(shown()[0]);
}

function keepPlace(position) {
  history.replaceState(null, "", `#${encodeURIComponent(part().name)}=${position}`);
}

function windowAt(partIndex, position) {
  const { windows } = DATA.parts[partIndex];
  const after = windows.findIndex(([start]) => start > position);
  return after < 0 ? windows.length - 1 : Math.max(0, after - 1);
}

function goToAddress() {
  const [name, position] = location.hash.slice(1).split("=");
  const found = DATA.parts.findIndex((of) => encodeURIComponent(of.name) === name);
  if (found < 0 || !DATA.parts[found].windows.length || !/^\d+$/.test(position)) return false;
  go(windowAt(found, Number(position)), found);
  const wanted = Number(position);
  const index = readWindow(shown()).tokens.findIndex((of) => of.segment.place + of.column === wanted);
  if (index > 0) focusToken(index);
  return true;
}

function focusToken(index) {
  const nodes = document.querySelectorAll("#tokens .t");
  const node = nodes[Math.max(0, Math.min(index, nodes.length - 1))];
  if (!node) return;
  for (const other of nodes) other.tabIndex = -1;
  node.tabIndex = 0;
  node.focus({ preventScroll: true });
  node.scrollIntoView({ block: "nearest", behavior: "instant" });
  const { segment, column } = readWindow(shown()).tokens[node.dataset.i];
  keepPlace(segment.place + column);
  showCard(node);
}

// The token a line above or below, nearest to this one.
function tokenByLine(node, down) {
  const nodes = [...document.querySelectorAll("#tokens .t")];
  const boxes = nodes.map((each) => each.getBoundingClientRect());
  const index = Number(node.dataset.i);
  const step = down ? 1 : -1;
  let found = index + step;
  while (boxes[found] && Math.abs(boxes[found].top - boxes[index].top) < 4) found += step;
  if (!boxes[found]) return index;
  const line = boxes[found].top;
  let best = found;
  for (; boxes[found] && Math.abs(boxes[found].top - line) < 4; found += step) {
    if (Math.abs(boxes[found].left - boxes[index].left) < Math.abs(boxes[best].left - boxes[index].left)) best = found;
  }
  return best;
}

// --- What the user does -----------------------------------------------------------------------

function showView(view) {
  at.view = view;
  const focused = document.activeElement?.dataset?.i;
  showWindow();
  if (focused !== undefined) focusToken(Number(focused));
}

function nextPart() {
  const filled = DATA.parts.flatMap((of, index) => (of.windows.length ? [index] : []));
  go(0, filled[(filled.indexOf(at.part) + 1) % filled.length]);
}

const PAGE_KEYS = {
  ArrowRight: () => go(at.window + 1),
  ArrowLeft: () => go(at.window - 1),
  Home: () => go(0),
  End: () => go(part().windows.length - 1),
};
const KEYS = {
  j: PAGE_KEYS.ArrowRight,
  k: PAGE_KEYS.ArrowLeft,
  n: () => goToMatch(at.match + 1),
  N: () => goToMatch(at.match - 1),
  p: nextPart,
  t: () => focusToken(0),
  v: () => showView(VIEWS[(VIEWS.indexOf(at.view) + 1) % VIEWS.length]),
  "/": () => byId("query").select(),
  "?": () => byId("help").showModal(),
  Escape: () => { document.activeElement?.blur(); hideCard(); },
};
const tokenKeys = (node) => ({
  ArrowRight: () => focusToken(Number(node.dataset.i) + 1),
  ArrowLeft: () => focusToken(Number(node.dataset.i) - 1),
  ArrowDown: () => focusToken(tokenByLine(node, true)),
  ArrowUp: () => focusToken(tokenByLine(node, false)),
  Home: () => focusToken(0),
  End: () => focusToken(Infinity),
});

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const node = event.target;
  if (node.tagName === "INPUT") {
    if (event.key === "Escape") node.blur();
    return;
  }
  const keys = node.classList?.contains("t") ? tokenKeys(node) : PAGE_KEYS;
  const act = keys[event.key] || KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

function listen() {
  const tokens = byId("tokens");
  const onToken = (event) => event.target.closest?.(".t");
  tokens.addEventListener("mouseover", (event) => { const node = onToken(event); if (node) showCard(node); });
  tokens.addEventListener("mouseleave", hideCard);
  tokens.addEventListener("click", (event) => {
    const node = onToken(event);
    if (node && getSelection().isCollapsed) focusToken(Number(node.dataset.i));
  });
  tokens.addEventListener("focusin", (event) => { const node = onToken(event); if (node) showCard(node); });
  tokens.addEventListener("focusout", hideCard);
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", goToAddress);
  byId("previous").onclick = () => go(at.window - 1);
  byId("next").onclick = () => go(at.window + 1);
  byId("slider").oninput = (event) => go(Number(event.target.value));
  byId("number").onchange = (event) => goToNumber(event.target);
  byId("later").onclick = () => goToMatch(at.match + 1);
  byId("earlier").onclick = () => goToMatch(at.match - 1);
  byId("ask").onclick = KEYS["?"];
  let waiting;
  byId("query").oninput = () => { clearTimeout(waiting); waiting = setTimeout(search, 120); };
  byId("find").onsubmit = (event) => { event.preventDefault(); goToMatch(at.match + 1); };
  for (const id of ["map", "documents"]) {
    byId(id).onclick = (event) => {
      const index = event.target.closest("[data-segment]")?.dataset.segment;
      if (index !== undefined) byId(`s${index}`).scrollIntoView();
    };
  }
  byId("parts").onclick = (event) => { if (event.target.dataset.part) go(0, Number(event.target.dataset.part)); };
  byId("views").onclick = (event) => { if (event.target.dataset.view) showView(event.target.dataset.view); };
}

function start() {
  byId("dataset").textContent = DATA.dataset;
  byId("export").textContent = DATA.export;
  byId("description").textContent = DATA.description;
  byId("facts").append(...DATA.facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  byId("notes").append(...DATA.notes.map((note) => make("li", {}, note)));
  byId("remarks").hidden = !DATA.notes.length;
  byId("parts").append(...DATA.parts.map((of, index) =>
    make("button", { type: "button", disabled: !of.windows.length, data: { part: index } }, of.name)));
  listen();
  const filled = DATA.parts.findIndex((of) => of.windows.length);
  const why = DATA.parts.some((of) => of.numTokens) ? "Nothing of it fits into this page." : "This export has no tokens.";
  if (filled < 0) byId("tokens").append(make("p", { className: "empty" }, why));
  else if (!goToAddress()) go(0, filled);
}

start();
