// Where a query, text or ids, is in all windows of the page.
const MOST_MATCHES = 10000;
let matches = [];

function findIds(read, ids) {
  return read.tokens.flatMap((_, start) =>
    ids.every((id, index) => read.tokens[start + index]?.id === id) ? [[start, start + ids.length]] : []);
}

function findText(read, pattern) {
  return read.segments.filter(({ file }) => file >= 0).flatMap((segment) => {
    const tokens = read.tokens.slice(segment.first, segment.first + segment.num);
    const ends = [];
    let text = "";
    for (const token of tokens) {
      text += token.text ?? "";
      ends.push(text.length);
    }
    let index = 0;
    return Array.from(text.matchAll(pattern), ({ index: begin, 0: { length } }) => {
      while (ends[index] <= begin) index++;
      let stop = index;
      while (ends[stop] < begin + length) stop++;
      return [segment.first + index, segment.first + stop + 1];
    });
  });
}

function search() {
  const query = byId("query").value;
  const asIds = /^\s*#\s*\d+([\s,#]+\d+)*\s*$/.test(query) && query.match(/\d+/g).map(Number);
  const pattern = new RegExp(query.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "giu");
  matches = [];
  at.match = -1;
  for (const [partIndex, of] of query ? DATA.parts.entries() : []) {
    for (const [window, each] of of.windows.entries()) {
      if (matches.length >= MOST_MATCHES) break;
      const read = readWindow(each);
      const found = asIds ? findIds(read, asIds) : findText(read, pattern);
      matches.push(...found.map(([start, stop]) => ({ part: partIndex, window, start, stop })));
    }
  }
  const here = matches.findIndex((m) => m.part > at.part || (m.part === at.part && m.window >= at.window));
  if (matches.length) goToMatch(Math.max(0, here));
  else markMatches();
}

// Of windows that are samples of a step of a training: which one, in place of its number in the part.
function showChosen(field, chosen, name) {
  Object.assign(field, { min: 1, max: part().windows.length, value: at.window + 1 });
  byId("unit").textContent = "Sample";
  byId("total").textContent = `of ${number(chosen)}`;
  byId("scope").textContent = `This page has samples of a training, in the order of their rows in ${name}.`;
}

function goToNumber(field) {
  const { first, stop, length, numSequences, chosen } = part();
  const asked = Number(field.value);
  if (chosen) return go(asked - 1);
  const isHere = Number.isInteger(asked) && asked >= first && asked < stop;
  const others = asked >= 0 && asked < numSequences ? `: --first ${asked} shows others` : `, of ${number(numSequences)}`;
  field.setCustomValidity(isHere ? "" : `This page has ${number(first)} to ${number(stop - 1)}${others}.`);
  if (isHere) go(windowAt(at.part, asked * length));
  else field.reportValidity();
}

function goToMatch(index) {
  if (!matches.length) return;
  at.match = (index + matches.length) % matches.length;
  const match = matches[at.match];
  if (match.part !== at.part || match.window !== at.window) go(match.window, match.part);
  markMatches();
  const node = document.querySelector(`#tokens .t[data-i="${match.start}"]`);
  node?.scrollIntoView({ block: "center", behavior: "instant" });
}

function markMatches() {
  const nodes = document.querySelectorAll("#tokens .t");
  for (const node of document.querySelectorAll("#tokens .hit")) node.classList.remove("hit", "now");
  for (const [index, match] of matches.entries()) {
    if (match.part !== at.part || match.window !== at.window) continue;
    for (let i = match.start; i < match.stop; i++) {
      nodes[i].classList.add("hit");
      nodes[i].classList.toggle("now", index === at.match);
    }
  }
  const asked = byId("query").value !== "";
  const most = matches.length >= MOST_MATCHES ? " or more" : "";
  byId("matches").textContent = !asked ? "" : matches.length
    ? `${number(at.match + 1)} of ${number(matches.length)}${most}` : "none in this page";
  byId("earlier").hidden = byId("later").hidden = matches.length < 2;
}
