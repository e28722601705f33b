/* Boxes and arrows in layers: a box comes after all that it depends on; the order within a layer is
   that of the neighbours' middle (few crossings); then boxes move to where their neighbours are, as
   near as the gaps allow. */

export interface Box { w: number; h: number }
export interface Placed { x: number; y: number }
export interface Layout { at: Placed[]; paths: string[]; w: number; h: number }

const GAP_ALONG = 48, GAP_ACROSS = 14, BEND = 8, BENDS_MAX = 4000, SWEEPS = 8, PULLS = 8;

interface Graph {
  n: number;                    // boxes, then bends of long edges
  layer: number[];
  up: number[][]; down: number[][];
  chains: number[][];           // of each edge: what it goes through
}

function layers(n: number, edges: [number, number][]): number[] {
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

function bend(boxes: number, edges: [number, number][]): Graph {
  const layer = layers(boxes, edges), up: number[][] = [], down: number[][] = [];
  for (let i = 0; i < boxes; i++) { up.push([]); down.push([]); }
  const needed = edges.reduce((s, [a, b]) => s + Math.max(0, layer[b] - layer[a] - 1), 0);
  const chains = edges.map(([a, b]) => {
    const chain = [a];
    for (let l = layer[a] + 1; l < layer[b] && needed <= BENDS_MAX; l++) {
      chain.push(layer.length);
      layer.push(l); up.push([]); down.push([]);
    }
    chain.push(b);
    for (let i = 1; i < chain.length; i++) { down[chain[i - 1]].push(chain[i]); up[chain[i]].push(chain[i - 1]); }
    return chain;
  });
  return { n: layer.length, layer, up, down, chains };
}

const middle = (of: number[], place: number[], otherwise: number) =>
  of.length ? of.reduce((s, i) => s + place[i], 0) / of.length : otherwise;

function order(g: Graph): number[][] {
  const rows: number[][] = [], place: number[] = new Array(g.n).fill(0);
  for (let i = 0; i < g.n; i++) (rows[g.layer[i]] ??= []).push(i);
  const number = (row: number[]) => row.forEach((v, i) => { place[v] = i; });
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

/* The nearest places to the wishes that keep their order and their distances (least squares: those
   that would collide share the mean of their wishes). */
export function settle(wish: number[], gap: number[]): number[] {
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

function across(g: Graph, rows: number[][], size: (i: number) => number): number[] {
  const at: number[] = new Array(g.n).fill(0);
  const gaps = rows.map((row) => row.slice(1).map((v, i) => (size(row[i]) + size(v)) / 2 + GAP_ACROSS));
  rows.forEach((row, r) => row.forEach((v, i) => { at[v] = i ? at[row[i - 1]] + gaps[r][i - 1] : 0; }));
  for (let pull = 0; pull < PULLS; pull++) {
    const forward = pull % 2 === 0, near = forward ? g.up : g.down;
    const rest = rows.map((_, r) => r);
    for (const r of forward ? rest : rest.reverse())
      settle(rows[r].map((v) => middle(near[v], at, at[v])), gaps[r]).forEach((x, i) => { at[rows[r][i]] = x; });
  }
  return at;
}

function arrange(boxes: Box[], g: Graph, rows: number[][], right: boolean): Layout {
  const along = (i: number) => i < boxes.length ? (right ? boxes[i].w : boxes[i].h) : 0;
  const side = (i: number) => i < boxes.length ? (right ? boxes[i].h : boxes[i].w) : BEND;
  const cross = across(g, rows, side), start: number[] = [], width: number[] = [];
  let end = 0;
  rows.forEach((row, r) => {
    start[r] = end;
    width[r] = Math.max(...row.map(along));
    end += width[r] + GAP_ALONG;
  });
  let least = Infinity, most = -Infinity;
  cross.forEach((c, i) => {
    least = Math.min(least, c - side(i) / 2);
    most = Math.max(most, c + side(i) / 2);
  });
  const point = (a: number, c: number) => right ? `${a.toFixed(1)} ${c.toFixed(1)}` : `${c.toFixed(1)} ${a.toFixed(1)}`;
  const paths = g.chains.map((chain) => {
    let d = '', from = 0;
    chain.forEach((v, i) => {
      const c = cross[v] - least, begin = start[g.layer[v]], over = v >= boxes.length;
      if (i) {
        const half = (from + begin) / 2, before = cross[chain[i - 1]] - least;
        d += `C${point(half, before)} ${point(half, c)} ${point(begin, c)}`;
      }
      from = over ? begin + width[g.layer[v]] : begin + along(v);
      if (i === 0) d = `M${point(from, c)}`;
      else if (over) d += `L${point(from, c)}`;
    });
    return d;
  });
  const at = boxes.map((_, i) => {
    const a = start[g.layer[i]], c = cross[i] - side(i) / 2 - least;
    return right ? { x: a, y: c } : { x: c, y: a };
  });
  const long = Math.max(0, end - GAP_ALONG), broad = Math.max(0, most - least);
  return { at, paths, w: right ? long : broad, h: right ? broad : long };
}

/* To the right or downwards: whichever is larger in a window of that size. */
export function layout(boxes: Box[], edges: [number, number][], view: Box): Layout {
  if (!boxes.length) return { at: [], paths: [], w: 0, h: 0 };
  const g = bend(boxes.length, edges), rows = order(g);
  const scale = (l: Layout) => Math.min(view.w / l.w, view.h / l.h, 1);
  const right = arrange(boxes, g, rows, true), down = arrange(boxes, g, rows, false);
  return scale(down) > scale(right) ? down : right;
}
