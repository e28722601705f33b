/* One run: its graph, live; where the time went; what was asked. */
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { api, ApiError, Flow, follow, Node, Run } from './api';
import { draw, Item, leaves } from './flow';
import { Graph } from './graph';
import { NodePanel, took } from './node';
import { clock, Empty, span, State, Trouble, useLoaded } from './view';

const PAUSE_MS = 150;           // between two looks at the nodes, however much happens; longer for many
const BARS_MAX = 500;

export const runLink = (r: { project: string; id: string }, node = '') =>
  `#/runs/${encodeURIComponent(r.project)}/${encodeURIComponent(r.id)}${node ? `/${encodeURIComponent(node)}` : ''}`;
export const runTook = (r: Run) => r.started ? span((r.ended || Date.now() / 1000) - r.started) : '';

/* The run and its nodes, as they change: the server says when, the nodes are asked for then. */
function useRun(project: string, id: string) {
  const [run, setRun] = useState<Run | null>(null);
  const [nodes, setNodes] = useState<Node[]>([]);
  const [error, setError] = useState<ApiError | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let live = true, asked = false, again = false, told = false, many = 0;
    const look = async () => {
      if (asked) { again = true; return; }
      asked = true;
      try {
        const found = (await api.nodes(project, id, '1')).nodes;
        if (live) setNodes(found);
        many = found.length;
      } catch (e) { if (live) setError(e as ApiError); }
      setTimeout(() => { asked = false; if (again && live) { again = false; look(); } },
                 PAUSE_MS + many / 5);
    };
    // The answer may come after news that are newer, perhaps the last.
    api.run(project, id).then((r) => { if (live && !told) { setRun(r); look(); } }, (e) => { if (live) setError(e); });
    const stop = follow(api.watchUrl(project, id), (doc: Run) => { if (live) { told = true; setRun(doc); look(); } });
    const timer = setInterval(() => { if (!document.hidden && !ended.current) look(); }, 1000);
    return () => { live = false; stop(); clearInterval(timer); };
  }, [project, id, round]);
  const ended = useRef(false);
  ended.current = !!run?.ended;
  return { run, nodes, error, again: () => setRound((r) => r + 1) };
}

function TimeLine({ run, nodes, open }: { run: Run; nodes: Node[]; open: (n: Node) => void }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = run.ended ? 0 : setInterval(() => tick((n) => n + 1), 500);
    return () => clearInterval(timer);
  }, [!!run.ended]);
  const all = leaves(nodes).sort((a, b) => a.started - b.started);
  if (!all.length) return null;
  const from = run.started || run.created, to = run.ended || Date.now() / 1000, width = Math.max(to - from, 0.001);
  const end = (n: Node) => n.ended || to;
  const inSteps = all.reduce((s, n) => s + end(n) - n.started, 0);
  const busy = all.reduce((s, n) => {           // the time in which something ran, by the order of starts
    const begin = Math.max(n.started, s.at);
    return { at: Math.max(s.at, end(n)), sum: s.sum + Math.max(0, end(n) - begin) };
  }, { at: 0, sum: 0 });
  return <section><details open>
    <summary><h2>Time line</h2> {span(width)}: {span(inSteps)} in {all.length} steps,
      nothing ran for {span(Math.max(0, width - busy.sum))}</summary>
    <div class="gantt">{all.slice(0, BARS_MAX).map((n) => <button class={`row ${n.phase}`} onClick={() => open(n)}
      title={`${n.name}: ${n.phase}, ${took(n)}`}>
      <span class="name">{n.name.slice(n.name.indexOf('.') + 1)}</span>
      <span class="lane"><i style={{ left: `${100 * (n.started - from) / width}%`,
        width: `${Math.max(0.2, 100 * (end(n) - n.started) / width)}%` }} /></span>
      <span class="num">{took(n)}</span></button>)}</div>
    {all.length > BARS_MAX && <p class="faint">and {all.length - BARS_MAX} more</p>}
  </details></section>;
}

function Asked({ run, flow }: { run: Run; flow: Flow }) {
  const [text, setText] = useState('');
  const inputs = flow.inputs ?? [];
  return <section>
    {inputs.length > 0 && <><h2>Parameters</h2><table class="list values"><tbody>{inputs.map((i) => {
      const v = run.parameters?.[i.name] ?? i.default;
      return <tr><td>{i.name}</td><td><code>{typeof v === 'string' ? v : JSON.stringify(v)}</code></td></tr>;
    })}</tbody></table></>}
    {run.metrics?.length > 0 && <><h2>Metrics</h2><table class="list values"><tbody>{run.metrics.map((m) =>
      <tr><td>{m.name}</td><td class="num">{metric(m)}</td></tr>)}</tbody></table></>}
    <details onToggle={(e) => { if (e.currentTarget.open && !text) api.runText(run.project, run.id).then(setText); }}>
      <summary><h2>What was asked</h2></summary><pre>{text}</pre></details>
  </section>;
}

export const metric = (m: { value: number; format: string }) =>
  m.format === 'PERCENTAGE' ? `${(100 * m.value).toFixed(2)} %` : String(m.value);

function Buttons({ run, again, say }: { run: Run; again: () => void; say: (text: string) => void }) {
  const act = (what: string) => () => api.runDo(run.project, run.id, what).then(again, (e) => say(e.message));
  const remove = () => {
    if (confirm(`Delete ${run.name}, with its logs and artifacts?`))
      api.removeRun(run.project, run.id).then(() => { location.hash = '#/runs'; }, (e) => say(e.message));
  };
  const failed = ['failed', 'error', 'terminated'].includes(run.state);
  return <span class="right buttons">
    {!run.ended && <button class="danger" disabled={run.state === 'terminating'} onClick={act('terminate')}>
      Terminate</button>}
    {failed && <button onClick={act('retry')}>Retry what failed</button>}
    <a class="button" href={`#/start/run/${encodeURIComponent(run.project)}/${encodeURIComponent(run.id)}`}>
      Run again</a>
    {!!run.ended && <button onClick={act(run.archived ? 'unarchive' : 'archive')}>
      {run.archived ? 'Unarchive' : 'Archive'}</button>}
    {!!run.ended && <button class="danger" onClick={remove}>Delete</button>}
  </span>;
}

export function OneRun({ project, id, node }: { project: string; id: string; node: string }) {
  const { run, nodes, error, again } = useRun(project, id);
  const { value: flow } = useLoaded(() => api.flow(project, id), [project, id]);
  const [turned, setTurned] = useState<Set<string>>(new Set());
  const [said, setSaid] = useState('');
  const drawing = useMemo(() => flow ? draw(flow, nodes, turned) : null, [flow, nodes, turned]);

  const select = (key: string) => { location.hash = runLink({ project, id }, key); };
  useEffect(() => { setTurned(new Set()); setSaid(''); }, [id]);
  useEffect(() => {
    const key = (e: KeyboardEvent) => { if (e.key === 'Escape' && node) select(''); };
    addEventListener('keydown', key);
    return () => removeEventListener('keydown', key);
  }, [node, id]);
  if (error && !run) return <main><Trouble error={error} /></main>;
  if (!run || !flow || !drawing) return <main><Empty>…</Empty></main>;

  const choose = (item: Item) => {
    if (item.group) {
      const next = new Set(turned);
      if (!next.delete(item.key)) next.add(item.key);
      setTurned(next);
    }
    select(item.key);
  };
  const asItem = (n: Node): Item => ({ key: n.name, label: n.display, phase: n.phase, node: n, template: n.template });
  const bare = nodes.find((n) => n.name === node);
  const chosen = drawing.items.find((i) => i.key === node) ?? (bare ? asItem(bare) : undefined);
  return <main class="broad">
    <header class="bar">
      <h1>{run.name}</h1><State of={run.state} />
      <span class="faint">{run.project} · {clock(run.started || run.created)} · {runTook(run)}
        {run.nodes ? ` · ${run.done} of ${run.nodes} done` : ''}</span>
      <Buttons run={run} again={again} say={setSaid} />
    </header>
    {run.message && <p class="reason">{run.message}</p>}
    {said && <p class="trouble" role="alert">{said}</p>}
    <div class={chosen ? 'split' : ''}>
      <div class="main"><Graph drawing={drawing} selected={node} choose={choose} />
        <TimeLine run={run} nodes={nodes} open={(n) => select(n.name)} />
        <Asked run={run} flow={flow} /></div>
      {chosen && <NodePanel run={run} item={chosen} close={() => select('')} />}
    </div>
  </main>;
}
