/* Boxes and arrows in layers: a box comes after all that it depends on; the order within a layer is
   that of the neighbours' middle (few crossings); then boxes move to where their neighbours are, as
   near as the gaps allow. A layer that is much longer than the window is broken into several. Edges
   over several layers bend; those of one box share their bends, so that a fan of hundreds is one
   trunk with twigs. */

export interface Box { w: number; h: number }
export interface Placed { x: number; y: number }
export interface Line { d: string; to: number }         // to: the box where it ends; -1: a bend
export interface Layout { at: Placed[]; lines: Line[]; w: number; h: number; right: boolean }

const GAP_ALONG = 48, GAP_ACROSS = 14, BEND = 4, SWEEPS = 8, PULLS = 8, LAYER_MIN = 12;

type Edge = [number, number];
interface Graph {
  boxes: number;                // then come bends
  layer: number[];
  up: number[][]; down: number[][];
}

function layers(n: number, edges: Edge[]): number[] {
  const layer = new Array(n).fill(0), waits = new Array(n).fill(0), down: number[][] = [];
  for (let i = 0; i < n; i++) down.push([]);
  for (const [a, b] of edges) { down[a].push(b); waits[b]++; }
  const ready: number[] = [];
  waits.forEach((w, i) => { if (!w) ready.push(i); });
  for (let i = 0; i < ready.length; i++)
    for (const b of down[ready[i]]) {
      layer[b] = Math.max(layer[b], layer[ready[i]] + 1);
      if (!--waits[b]) ready.push(b);
    }
  return layer;
}

function bend(boxes: number, edges: Edge[], first: number[]): Graph {
  const layer = [...first], up: number[][] = [], down: number[][] = [];
  for (let i = 0; i < boxes; i++) { up.push([]); down.push([]); }
  const outs = new Array(boxes).fill(0), ins = new Array(boxes).fill(0);
  for (const [a, b] of edges) { outs[a]++; ins[b]++; }
  const bends = new Map<string, number>(), known = new Set<string>();
  for (const [a, b] of edges) {
    const trunk = outs[a] >= ins[b] ? `a${a}` : `b${b}`;
    let last = a;
    const to = (v: number) => {
      if (!known.has(`${last}>${v}`)) { down[last].push(v); up[v].push(last); }
      known.add(`${last}>${v}`);
      last = v;
    };
    for (let l = layer[a] + 1; l < layer[b]; l++) {
      const key = `${trunk}@${l}`;
      if (!bends.has(key)) {
        bends.set(key, layer.length);
        layer.push(l); up.push([]); down.push([]);
      }
      to(bends.get(key)!);
    }
    to(b);
  }
  return { boxes, layer, up, down };
}

const middle = (of: number[], place: number[], otherwise: number) =>
  of.length ? of.reduce((s, i) => s + place[i], 0) / of.length : otherwise;

function order(g: Graph): number[][] {
  const rows: number[][] = [], place: number[] = new Array(g.layer.length).fill(0);
  g.layer.forEach((l, i) => (rows[l] ??= []).push(i));
  const number = (row: number[]) => row.forEach((v, i) => { place[v] = i / row.length; });
  rows.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const forward = sweep % 2 === 0, near = forward ? g.up : g.down;
    for (const row of forward ? rows : [...rows].reverse()) {
      const wish = new Map(row.map((v) => [v, middle(near[v], place, place[v])]));
      row.sort((a, b) => wish.get(a)! - wish.get(b)! || place[a] - place[b]);
      number(row);
    }
  }
  return rows;
}

/* Layers of at most so many boxes; neighbours in a long one stay together. */
function broken(g: Graph, rows: number[][], most: number) {
  const layer: number[] = [], parts: boolean[] = [];      // parts: is that layer one of several
  let next = 0;
  for (const row of rows) {
    const boxes = row.filter((v) => v < g.boxes), n = Math.max(1, Math.ceil(boxes.length / most));
    boxes.forEach((v, i) => { layer[v] = next + Math.floor(i * n / boxes.length); });
    for (let i = 0; i < n; i++) parts[next++] = n > 1;
  }
  return { layer, parts };
}

/* The nearest places to the wishes that keep their order and their distances (least squares: those
   that would collide share the mean of their wishes). */
function settle(wish: number[], gap: number[]): number[] {
  const offset = [0];
  for (let i = 1; i < wish.length; i++) offset.push(offset[i - 1] + gap[i - 1]);
  const blocks: { sum: number; n: number }[] = [];
  wish.forEach((d, i) => {
    blocks.push({ sum: d - offset[i], n: 1 });
    for (let k = blocks.length - 1; k > 0 && blocks[k - 1].sum / blocks[k - 1].n > blocks[k].sum / blocks[k].n; k--) {
      const last = blocks.pop()!;
      blocks[k - 1].sum += last.sum;
      blocks[k - 1].n += last.n;
    }
  });
  const out: number[] = [];
  for (const b of blocks) for (let i = 0; i < b.n; i++) out.push(b.sum / b.n + offset[out.length]);
  return out;
}

/* `centred`: layers that stay in the middle, since what they hang on is far away for most of them. */
function across(g: Graph, rows: number[][], size: (i: number) => number, centred: boolean[]): number[] {
  const at: number[] = new Array(g.layer.length).fill(0);
  const gaps = rows.map((row) => row.slice(1).map((v, i) => (size(row[i]) + size(v)) / 2 + GAP_ACROSS));
  rows.forEach((row, r) => {
    const half = gaps[r].reduce((s, x) => s + x, 0) / 2;
    row.forEach((v, i) => { at[v] = i ? at[row[i - 1]] + gaps[r][i - 1] : -half; });
  });
  for (let pull = 0; pull < PULLS; pull++) {
    const forward = pull % 2 === 0, near = forward ? g.up : g.down, turn = rows.map((_, r) => r);
    for (const r of forward ? turn : turn.reverse()) {
      const places = settle(rows[r].map((v) => middle(near[v], at, at[v])), gaps[r]);
      const off = centred[r] ? (places[0] + places[places.length - 1]) / 2 : 0;
      places.forEach((x, i) => { at[rows[r][i]] = x - off; });
    }
  }
  return at;
}

function arrange(boxes: Box[], edges: Edge[], view: Box, right: boolean): Layout {
  const along = (i: number) => i < boxes.length ? (right ? boxes[i].w : boxes[i].h) : 0;
  const side = (i: number) => i < boxes.length ? (right ? boxes[i].h : boxes[i].w) : BEND;
  const pitch = (along(0) + GAP_ALONG) / (side(0) + GAP_ACROSS);
  const most = Math.max(right ? LAYER_MIN : LAYER_MIN / 2, Math.sqrt(boxes.length * pitch *
    (right ? view.h / view.w : view.w / view.h)) * 1.3);
  let g = bend(boxes.length, edges, layers(boxes.length, edges)), rows = order(g);
  let parts: boolean[] = [];
  if (rows.some((row) => row.filter((v) => v < boxes.length).length > most)) {
    const cut = broken(g, rows, most);
    parts = cut.parts;
    g = bend(boxes.length, edges, cut.layer);
    rows = order(g);
  }
  const cross = across(g, rows, side, parts), start: number[] = [], width: number[] = [];
  let end = 0, least = Infinity, last = -Infinity;
  rows.forEach((row, r) => {
    start[r] = end;
    width[r] = Math.max(...row.map(along));
    end += width[r] + GAP_ALONG;
  });
  cross.forEach((c, i) => { least = Math.min(least, c - side(i) / 2); last = Math.max(last, c + side(i) / 2); });
  const point = (a: number, c: number) => right ? `${a.toFixed(1)} ${(c - least).toFixed(1)}`
    : `${(c - least).toFixed(1)} ${a.toFixed(1)}`;
  const lines: Line[] = [];
  g.down.forEach((to, u) => to.forEach((v) => {
    const a = start[g.layer[u]] + (u < boxes.length ? along(u) : width[g.layer[u]]), b = start[g.layer[v]];
    const half = (start[g.layer[v]] + start[g.layer[v] - 1] + width[g.layer[v] - 1]) / 2;
    const far = start[g.layer[v] - 1] + width[g.layer[v] - 1];      // past the longest of its layer
    const curve = `C${point(half, cross[u])} ${point(half, cross[v])} ${point(b, cross[v])}`;
    const d = `M${point(a, cross[u])}L${point(far, cross[u])}${curve}`;
    lines.push({ d, to: v < boxes.length ? v : -1 });
  }));
  for (let v = boxes.length; v < cross.length; v++) {
    const a = start[g.layer[v]];
    lines.push({ d: `M${point(a, cross[v])}L${point(a + width[g.layer[v]], cross[v])}`, to: -1 });
  }
  const at = boxes.map((_, i) => {
    const a = start[g.layer[i]], c = cross[i] - side(i) / 2 - least;
    return right ? { x: a, y: c } : { x: c, y: a };
  });
  const long = Math.max(0, end - GAP_ALONG), broad = Math.max(0, last - least);
  return { at, lines, w: right ? long : broad, h: right ? broad : long, right };
}

/* To the right or downwards: whichever is larger in a window of that size. `was`: how it lies now,
   and stays unless the other way is much better. */
export function layout(boxes: Box[], edges: Edge[], view: Box, was?: boolean): Layout {
  if (!boxes.length) return { at: [], lines: [], w: 0, h: 0, right: true };
  const scale = (l: Layout) => Math.min(view.w / l.w, view.h / l.h, 1);
  const right = arrange(boxes, edges, view, true), down = arrange(boxes, edges, view, false);
  const bias = was === undefined ? 1 : was ? 1.7 : 1 / 1.7;
  return scale(down) > scale(right) * bias ? down : right;
}
