"use strict";
// What the page's data says of the tokens of a window.
const DATA = JSON.parse(document.getElementById("data").textContent);
const FLAG = { BOS: 1, EOS: 2, SPACE: 4, NORMALISED: 8, EOS_FIRST: 16 };
const encoder = new TextEncoder();

const isContinued = (byte) => (byte & 0xc0) === 0x80;

// Of an id: its bytes, its text if it is whole characters, and how many characters begin in it.
const knownById = new Map();
function knownOf(id) {
  if (!knownById.has(id)) {
    const known = DATA.vocabulary[id];
    const text = typeof known === "string" ? known : null;
    const bytes = text === null ? known && Uint8Array.from(known) : encoder.encode(text);
    const numBegun = bytes ? bytes.filter((byte) => !isContinued(byte)).length : 0;
    knownById.set(id, { bytes: bytes ?? null, text, numBegun });
  }
  return knownById.get(id);
}

// Tokens of a window with their text, document, characters and loss; padding has none.
function readWindow(of) {
  if (of.read) return of.read;
  const [position, ids, segments, runs] = of;
  const read = { tokens: [], segments: [], numPadding: 0, isMasked: runs !== 0, position };
  const mask = runs === 0 ? null : runs.flatMap((num, index) => Array(num).fill(index % 2 === 0));
  let place = position;
  let next = 0;
  for (const [num, file, ...others] of segments) {
    const segment = { num, file, place, first: read.tokens.length };
    if (file < 0) {
      const [id, isInFiles] = others;
      if (isInFiles) {
        read.segments.push(Object.assign(segment, { id }));
        read.numPadding += num;
      }
    } else {
      read.segments.push(segment);
      [segment.row, segment.token, segment.chars, segment.flags = 0, segment.places, segment.turns] = others;
      const own = ids.slice(next, next + num);
      const loss = mask && mask.slice(next, next + num);
      read.tokens.push(...readTokens(segment, own, loss));
      next += num;
    }
    place += num;
  }
  return (of.read = read);
}

// Text comes where a character ends; of a token that is less than a character it is "".
function readTokens(segment, ids, loss) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const { flags, places, turns } = segment; // places: where bytes do not tell them, those of each token
  const said = (turns || []).flatMap(([num, words]) => Array(num).fill(words));
  const numBefore = (flags & FLAG.EOS_FIRST ? 1 : 0) + (flags & FLAG.BOS ? 1 : 0);
  let { chars } = segment;
  let isWhole = true; // nothing of a character is left in the decoder
  const tokens = ids.map((id, index) => {
    const { bytes, text, numBegun } = knownOf(id);
    const token = { id, bytes, segment, column: index, isLoss: loss ? loss[index] : true, said: said[index] };
    token.text = isWhole && text !== null ? text : bytes && decoder.decode(bytes, { stream: true });
    isWhole = text !== null;
    token.added = (index < numBefore && (flags & FLAG.EOS_FIRST ? "EOS" : "BOS")) ||
      (flags & FLAG.EOS && index === ids.length - 1 && "EOS");
    if (places && !token.added) {
      const at = 2 * (index - numBefore);
      [token.from, token.to] = [chars + places[at], chars + places[at + 1]];
    } else if (chars !== null && bytes && !token.added) {
      const isSpace = flags & FLAG.SPACE && index === numBefore;
      token.from = bytes.length && isContinued(bytes[0]) ? chars - 1 : chars;
      token.to = chars += numBegun - (isSpace ? 1 : 0);
    }
    return token;
  });
  const spoken = tokens.filter((token) => token.from !== undefined);
  if (spoken.length) [segment.from, segment.to] = [spoken[0].from, spoken.at(-1).to];
  return tokens;
}
