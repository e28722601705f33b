/* Curves over steps. */
import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import { Series } from './api';

const COLORS = ['#3573d9', '#d97a35', '#2e9e6b', '#b04ac0', '#c23b4e', '#7a6a2b', '#2a9db5', '#7d7d7d'];

/* All curves over one axis of steps, as uPlot wants it. */
export function align(curves: Series[]): uPlot.AlignedData {
  const steps = [...new Set(curves.flatMap((c) => c.map((p) => p[1])))].sort((a, b) => a - b);
  const at = new Map(steps.map((s, i) => [s, i]));
  return [steps, ...curves.map((c) => {
    const column: (number | undefined)[] = new Array(steps.length);
    for (const [, step, value] of c) column[at.get(step)!] = value;
    return column;
  })] as uPlot.AlignedData;
}

/* One value makes no line: a point is drawn. */
const single = (u: uPlot, i: number) => [...u.data[i]].filter((v) => v !== undefined && v !== null).length === 1;

export function Plot({ title, names, curves }: { title: string; names: string[]; curves: Series[] }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shape = names.join('\n');

  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue('--faint').trim(), line = style.getPropertyValue('--line').trim();
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    plot.current = new uPlot({
      title, width: box.current!.clientWidth, height: 220, scales: { x: { time: false } },
      axes: [axis, { ...axis, size: 60 }],
      series: [{ label: 'step' }, ...names.map((label, i) => (
        { label, stroke: COLORS[i % COLORS.length], width: 1.5, spanGaps: true,
          points: { show: single, fill: COLORS[i % COLORS.length] } }))],
    }, align(curves), box.current!);
    const fit = new ResizeObserver(() => plot.current?.setSize({ width: box.current!.clientWidth, height: 220 }));
    fit.observe(box.current!);
    return () => { fit.disconnect(); plot.current?.destroy(); };
  }, [title, shape]);
  useEffect(() => plot.current?.setData(align(curves)), [curves]);
  return <div class="plot" ref={box} />;
}
