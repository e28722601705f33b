/* The list of runs, and several beside each other. */
import { useEffect, useRef, useState } from 'preact/hooks';
import { api, Node, Run, Series } from './api';
import { Plot } from './plot';
import { metric, runLink, runTook } from './run';
import { clock, Empty, Rows, State, Trouble, typing, useLoaded } from './view';

const STATES = ['', 'pending', 'running', 'succeeded', 'failed', 'error', 'terminated'];
const PAGE = 100;

function useNames() {
  const { value } = useLoaded(() => api.experiments({ limit: 1000 }), []);
  return new Map((value?.experiments ?? []).map((e) => [e.id, e]));
}

/* `experiment`: those of one. */
export function RunTable({ experiment }: { experiment?: string }) {
  const [state, setState] = useState('');
  const [text, setText] = useState('');
  const [archived, setArchived] = useState(false);
  const [more, setMore] = useState<Run[]>([]);
  const [next, setNext] = useState<string | null>(null);
  const [picked, setPicked] = useState<string[]>([]);
  const input = useRef<HTMLInputElement>(null);
  const names = useNames();
  const asked = { state, text, experiment, limit: PAGE, archived: archived ? 'true' : '' };
  const { value, error } = useLoaded(() => api.runs(asked), [state, text, experiment, archived], 1000);

  useEffect(() => { setMore([]); setNext(null); }, [state, text, experiment, archived]);
  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      if (e.key === '/' && !typing(e)) { e.preventDefault(); input.current?.focus(); }
      if (e.key === 'Escape') input.current?.blur();
    };
    addEventListener('keydown', key);
    return () => removeEventListener('keydown', key);
  }, []);

  const token = next ?? value?.next ?? '';
  const load = () => api.runs({ ...asked, token }).then((page) => {
    setMore(more.concat(page.runs));
    setNext(page.next);
  });
  const runs = (value?.runs ?? []).concat(more);
  const id = (r: Run) => `${r.project}/${r.id}`;
  const pick = (r: Run) => setPicked(picked.includes(id(r)) ? picked.filter((p) => p !== id(r)) : picked.concat(id(r)));
  return <>
    <header class="bar">
      {!experiment && <h1>Runs</h1>}
      <input ref={input} type="search" placeholder="Filter by name ( / )" value={text} aria-label="Filter by name"
             onInput={(e) => setText(e.currentTarget.value)} />
      <select value={state} aria-label="State" onChange={(e) => setState(e.currentTarget.value)}>
        {STATES.map((s) => <option value={s}>{s || 'all states'}</option>)}
      </select>
      <label class="faint"><input type="checkbox" checked={archived}
        onChange={(e) => setArchived(e.currentTarget.checked)} /> archived</label>
      {picked.length > 1 && <a class="button" href={`#/compare-runs/${picked.map(encodeURIComponent).join(',')}`}>
        Compare {picked.length}</a>}
      <span class="faint right">{value ? `${value.total} in all` : ''}</span>
    </header>
    <Trouble error={error} />
    {value && !runs.length && !error && <Empty>No runs{text || state ? ' like that' : ' yet'}. Create one of a{' '}
      <a href="#/pipelines">pipeline</a>, or: <code>muster apply -f pipeline.yaml</code></Empty>}
    {runs.length > 0 && <table class="list">
      <thead><tr><th></th><th>Name</th><th>State</th>{!experiment && <th class="wide">Experiment</th>}
        <th class="wide">Steps</th><th class="wide">Started</th><th>Took</th></tr></thead>
      <Rows>{runs.map((r) => <tr key={id(r)}>
        <td><input type="checkbox" aria-label={`pick ${r.name}`} checked={picked.includes(id(r))}
                   onChange={() => pick(r)} /></td>
        <td><a data-row href={runLink(r)}>{r.name}</a></td>
        <td><State of={r.state} /></td>
        {!experiment && <td class="wide">{names.get(r.experiment)?.name ?? ''}</td>}
        <td class="wide num">{r.nodes ? `${r.done} / ${r.nodes}` : ''}</td>
        <td class="wide num">{clock(r.started || r.created)}</td>
        <td class="num">{runTook(r)}</td>
      </tr>)}</Rows>
    </table>}
    {token && <button onClick={load}>More</button>}
  </>;
}

export function Runs() {
  return <main><RunTable /></main>;
}

/* ---------------------------------------------------------------- beside each other */

const CURVES_MAX = 40;          // steps of a run that are asked for curves

interface Compared { run: Run; parameters: Record<string, string>; metrics: Record<string, string>;
  curves: Record<string, Series> }

const show = (v: any) => v === undefined ? '' : typeof v === 'string' ? v : JSON.stringify(v);

function metricsOf(run: Run, nodes: Node[]) {
  const out: Record<string, string> = {};
  for (const n of nodes)
    for (const [name, a] of Object.entries(n.outputs?.artifacts ?? {}))
      if (/Metrics/.test(a?.type ?? ''))
        for (const [k, v] of Object.entries(a.metadata ?? {}))
          if (typeof v !== 'object') out[`${n.display} · ${name} · ${k}`] = show(v);
  for (const m of run.metrics ?? []) out[m.name] = metric(m);
  return out;
}

async function compared(id: string): Promise<Compared> {
  const at = id.indexOf('/'), project = id.slice(0, at), name = id.slice(at + 1);
  const [run, { nodes }, flow] = await Promise.all([api.run(project, name), api.nodes(project, name),
                                                    api.flow(project, name)]);
  const curves: Record<string, Series> = {};
  await Promise.all(nodes.filter((n) => n.kind === 'Pod' && n.job).slice(0, CURVES_MAX).map(async (n) => {
    for (const [tag, s] of Object.entries(await api.nodeScalars(project, name, n.id)))
      curves[`${n.display}: ${tag}`] = s;
  }));
  const parameters: Record<string, string> = {};
  for (const i of flow.inputs ?? []) parameters[i.name] = show(run.parameters?.[i.name] ?? i.default);
  return { run, parameters, metrics: metricsOf(run, nodes), curves };
}

function Side({ title, rows, of }: { title: string; rows: string[]; of: (row: string) => string[] }) {
  if (!rows.length) return null;
  return <><tr><th class="part" colSpan={99}>{title}</th></tr>{rows.map((row) => {
    const values = of(row), differ = new Set(values).size > 1;
    return <tr class={differ ? 'differs' : ''}><td>{row}</td>{values.map((v) => <td><code>{v}</code></td>)}</tr>;
  })}</>;
}

export function CompareRuns({ ids }: { ids: string[] }) {
  const { value, error } = useLoaded(() => Promise.all(ids.map(compared)), [ids.join(',')], 3000);
  const all = value ?? [], union = (of: (c: Compared) => object) => [...new Set(all.flatMap((c) => Object.keys(of(c))))];
  return <main>
    <header class="bar"><h1>Compare runs</h1></header>
    <Trouble error={error} />
    {all.length > 0 && <div class="scroll"><table class="list side">
      <thead><tr><th></th>{all.map((c) => <th><a href={runLink(c.run)}>{c.run.name}</a></th>)}</tr></thead>
      <tbody>
        <tr><td>state</td>{all.map((c) => <td><State of={c.run.state} /></td>)}</tr>
        <tr><td>started</td>{all.map((c) => <td>{clock(c.run.started)}</td>)}</tr>
        <tr><td>took</td>{all.map((c) => <td>{runTook(c.run)}</td>)}</tr>
        <Side title="Parameters" rows={union((c) => c.parameters)} of={(k) => all.map((c) => c.parameters[k] ?? '')} />
        <Side title="Metrics" rows={union((c) => c.metrics).sort()} of={(k) => all.map((c) => c.metrics[k] ?? '')} />
      </tbody></table></div>}
    <div class="plots">{union((c) => c.curves).sort().map((tag) => {
      const having = all.filter((c) => c.curves[tag]);
      return <Plot key={tag} title={tag} names={having.map((c) => c.run.name)} curves={having.map((c) => c.curves[tag])} />;
    })}</div>
  </main>;
}
