/* The picture of a run: pan by dragging, zoom by buttons, keys or Ctrl and the wheel. */
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { Drawing, Item } from './flow';
import { Layout, layout } from './layout';

const W = 168, H = 34, JOIN = 6, MARGIN = 16, LETTERS = 19;
const READABLE = 0.55;          // smaller than that a graph is shown in part, with a map of the whole
const SIGN: Record<string, string> = { Pending: '○', Running: '◐', Succeeded: '✓', Failed: '✕', Error: '!',
                                       Skipped: '–', Omitted: '·', '': '○' };

interface Seen { x: number; y: number; k: number }       // what the middle shows, and how large

const short = (text: string, n: number) => text.length > n ? `${text.slice(0, n - 1)}…` : text;
const count = (i: Item) => i.group === 'loop' ? (i.node ? `×${i.inner}` : 'loop')
  : i.group === 'retry' ? `${i.inner} tries` : `${i.inner}`;

function spoken(i: Item) {
  const inside = i.group ? `, ${i.group} of ${i.inner}, ${i.folded ? 'folded' : 'unfolded'}` : '';
  return `${i.label}: ${i.phase || 'not begun'}${i.node?.cached ? ', cached' : ''}${inside}`;
}

function Box({ item, x, y, selected, first, choose }: { item: Item; x: number; y: number; selected: boolean;
  first: boolean; choose: (i: Item) => void }) {
  if (!item.label) return <circle class="join" cx={x + JOIN / 2} cy={y + JOIN / 2} r={JOIN / 2} />;
  const tail = item.group ? `${item.folded ? '▸' : '▾'} ${count(item)}` : '';
  return <g class={`box ${item.phase || 'Waiting'}${item.group ? ' group' : ''}${item.node?.cached ? ' cached' : ''}`}
            transform={`translate(${x},${y})`} role="button" tabIndex={first ? 0 : -1} aria-pressed={selected}
            aria-label={spoken(item)} data-key={item.key} onClick={() => choose(item)}>
    <title>{`${item.key}\n${spoken(item)}`}</title>
    {item.group && item.folded && <rect class="under" x={3} y={3} width={W} height={H} rx={6} />}
    <rect width={W} height={H} rx={6} />
    <text class="sign" x={12} y={22}>{SIGN[item.phase] ?? '○'}</text>
    <text x={28} y={22}>{short(item.label, LETTERS - (tail ? tail.length : 0))}</text>
    {tail && <text class="tail" x={W - 8} y={22}>{tail}</text>}
  </g>;
}

/* All of it, small, and what of it is seen. */
function Overview({ drawing, placed, seen, view, go }: { drawing: Drawing; placed: Layout; seen: Seen;
  view: { w: number; h: number }; go: (x: number, y: number) => void }) {
  const click = (e: MouseEvent) => {
    const svg = e.currentTarget as SVGSVGElement;
    const p = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM()!.inverse());
    go(p.x, p.y);
  };
  return <svg class="map" viewBox={`0 0 ${placed.w} ${placed.h}`} aria-hidden="true" onClick={click}>
    {drawing.items.map((i, n) => i.label && <rect class={`dot ${i.phase || 'Waiting'}`} x={placed.at[n].x}
      y={placed.at[n].y} width={W} height={H} />)}
    <rect class="seen" x={seen.x - view.w / 2 / seen.k} y={seen.y - view.h / 2 / seen.k} width={view.w / seen.k}
          height={view.h / seen.k} />
  </svg>;
}

/* The nearest box in the direction of an arrow key. */
function beside(all: SVGGElement[], from: SVGGElement, key: string): SVGGElement | null {
  const at = (e: Element) => { const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; };
  const [x, y] = at(from);
  let best: SVGGElement | null = null, least = Infinity;
  for (const e of all) {
    const [ex, ey] = at(e), dx = ex - x, dy = ey - y;
    const ahead = key === 'ArrowRight' ? dx : key === 'ArrowLeft' ? -dx : key === 'ArrowDown' ? dy : -dy;
    const aside = Math.abs(key === 'ArrowRight' || key === 'ArrowLeft' ? dy : dx);
    if (e !== from && ahead > 1 && ahead + 2 * aside < least) { least = ahead + 2 * aside; best = e; }
  }
  return best;
}

export function Graph({ drawing, selected, choose }: { drawing: Drawing; selected: string;
  choose: (i: Item) => void }) {
  const svg = useRef<SVGSVGElement>(null);
  const [size, setSize] = useState({ w: 800, h: 420 });
  const [moved, setMoved] = useState<Seen | null>(null);          // null: all of it is shown
  const fingers = useRef(new Map<number, { x: number; y: number }>());
  const dragged = useRef(false);
  const lies = useRef<boolean | undefined>(undefined);
  const shape = drawing.items.map((i) => i.key).join('\n') + drawing.edges.length;

  useEffect(() => {
    const fit = new ResizeObserver(() => {
      const r = svg.current!.getBoundingClientRect();
      setSize({ w: r.width || 800, h: r.height || 420 });
    });
    fit.observe(svg.current!);
    return () => fit.disconnect();
  }, []);
  const placed = useMemo(() => {
    const index = new Map(drawing.items.map((i, n) => [i.key, n]));
    const made = layout(drawing.items.map((i) => i.label ? { w: W, h: H } : { w: JOIN, h: JOIN }),
                        drawing.edges.map(([a, b]) => [index.get(a)!, index.get(b)!]), size, lies.current);
    lies.current = made.right;
    return made;
  }, [shape, size.w, size.h]);
  const whole: Seen = { x: placed.w / 2, y: placed.h / 2,
    k: Math.min(1, (size.w - 2 * MARGIN) / (placed.w || 1), (size.h - 2 * MARGIN) / (placed.h || 1)) };
  /* What is too large to be read begins where the run does, or at what was chosen. */
  const begin = (): Seen => {
    const at = placed.at[Math.max(0, drawing.items.findIndex((i) => i.key === selected))];
    const edge = (c: number, all: number, view: number) => all * READABLE + 2 * MARGIN <= view ? all / 2
      : Math.max(view / 2 / READABLE - MARGIN, Math.min(all - view / 2 / READABLE + MARGIN, c));
    return { x: edge(at.x + W / 2, placed.w, size.w), y: edge(at.y + H / 2, placed.h, size.h), k: READABLE };
  };
  const seen = moved ?? (whole.k >= READABLE || !placed.at.length ? whole : begin());
  const clamp = (k: number) => Math.max(Math.min(whole.k, 0.2), Math.min(2, k));
  const zoom = (by: number) => setMoved({ ...seen, k: clamp(seen.k * by) });

  const reveal = (e: SVGGElement) => {          // what has the focus is seen
    const b = e.getBoundingClientRect(), r = svg.current!.getBoundingClientRect();
    if (b.left >= r.left && b.right <= r.right && b.top >= r.top && b.bottom <= r.bottom) return;
    setMoved({ k: seen.k, x: seen.x + ((b.left + b.right) / 2 - (r.left + r.right) / 2) / seen.k,
               y: seen.y + ((b.top + b.bottom) / 2 - (r.top + r.bottom) / 2) / seen.k });
  };
  const key = (e: KeyboardEvent) => {
    const at = (e.target as Element).closest<SVGGElement>('g.box');
    if (e.key === '+' || e.key === '=') zoom(1.3);
    else if (e.key === '-') zoom(1 / 1.3);
    else if (e.key === '0') setMoved(whole);
    else if (at && e.key.startsWith('Arrow')) {
      const to = beside([...svg.current!.querySelectorAll<SVGGElement>('g.box')], at, e.key);
      if (to) { to.focus({ preventScroll: true }); reveal(to); }
    } else if (at && (e.key === 'Enter' || e.key === ' ')) {
      const item = drawing.items.find((i) => i.key === at.dataset.key);
      if (item) choose(item);
    } else return;
    e.preventDefault();
  };
  const down = (e: PointerEvent) => {
    fingers.current.set(e.pointerId, { x: e.clientX, y: e.clientY });
    dragged.current = false;
  };
  const move = (e: PointerEvent) => {
    const was = fingers.current.get(e.pointerId);
    if (!was) return;
    const now = { x: e.clientX, y: e.clientY };
    if (!dragged.current && Math.hypot(now.x - was.x, now.y - was.y) < 5) return;
    if (!dragged.current) svg.current!.setPointerCapture(e.pointerId);
    dragged.current = true;
    const other = [...fingers.current].find(([id]) => id !== e.pointerId)?.[1];
    const grown = other ? Math.hypot(now.x - other.x, now.y - other.y) /
      Math.max(1, Math.hypot(was.x - other.x, was.y - other.y)) : 1;
    fingers.current.set(e.pointerId, now);
    setMoved({ x: seen.x - (other ? 0 : (now.x - was.x) / seen.k), y: seen.y - (other ? 0 : (now.y - was.y) / seen.k),
               k: clamp(seen.k * grown) });
  };
  const up = (e: PointerEvent) => { fingers.current.delete(e.pointerId); };
  const wheel = (e: WheelEvent) => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    zoom(Math.exp(-e.deltaY / 300));
  };
  useEffect(() => {             // what was chosen elsewhere is moved into the window
    const n = drawing.items.findIndex((i) => i.key === selected), at = placed.at[n];
    if (!at) return;
    const x = (at.x + W / 2 - seen.x) * seen.k, y = (at.y + H / 2 - seen.y) * seen.k;
    if (Math.abs(x) > size.w / 2 - W / 2 * seen.k || Math.abs(y) > size.h / 2 - H / 2 * seen.k)
      setMoved({ x: at.x + W / 2, y: at.y + H / 2, k: seen.k });
  }, [selected, placed]);
  const first = drawing.items.some((i) => i.key === selected) ? selected : drawing.items.find((i) => i.label)?.key;
  const pick = (i: Item) => { if (!dragged.current) choose(i); };
  return <div class="graph">
    <svg ref={svg} onKeyDown={key} onPointerDown={down} onPointerMove={move} onPointerUp={up} onPointerCancel={up}
         onWheel={wheel} role="group" aria-label="Graph of the run">
      <defs><marker id="arrow" viewBox="0 0 8 8" refX={7} refY={4} markerWidth={7} markerHeight={7} orient="auto">
        <path d="M0 0L8 4L0 8z" /></marker></defs>
      <g transform={`translate(${size.w / 2},${size.h / 2}) scale(${seen.k}) translate(${-seen.x},${-seen.y})`}>
        {placed.lines.map((l) => <path class="edge" d={l.d}
          marker-end={l.to >= 0 && drawing.items[l.to]?.label ? 'url(#arrow)' : undefined} />)}
        {drawing.items.map((i, n) => placed.at[n] && <Box key={i.key} item={i} x={placed.at[n].x} y={placed.at[n].y}
          selected={i.key === selected} first={i.key === first} choose={pick} />)}
      </g>
    </svg>
    {seen.k > 1.1 * whole.k && placed.at.length > 0 && <Overview drawing={drawing} placed={placed}
      seen={seen} view={size} go={(x, y) => setMoved({ x, y, k: seen.k })} />}
    <div class="zoom"><button aria-label="larger" onClick={() => zoom(1.3)}>+</button>
      <button aria-label="smaller" onClick={() => zoom(1 / 1.3)}>−</button>
      <button aria-label="all of it" onClick={() => setMoved(whole)}>□</button></div>
    {drawing.cut > 0 && <p class="faint">{drawing.cut} more are not drawn; the time line has them.</p>}
  </div>;
}
