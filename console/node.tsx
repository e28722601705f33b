/* One node of a run: how it went, what it took and gave, what it printed. */
import { useState } from 'preact/hooks';
import { api, Node, Run, Values } from './api';
import { ArtifactView } from './artifact';
import { Item } from './flow';
import { Log } from './job';
import { Plot } from './plot';
import { clock, Empty, span, State, useLoaded } from './view';

const BUSY = ['Pending', 'Running'];
const show = (v: any) => typeof v === 'string' ? v : JSON.stringify(v);

export function took(n: Node) {
  return n.started ? span((n.ended || Date.now() / 1000) - n.started) : '';
}

function Parameters({ title, of, result }: { title: string; of?: Values; result?: boolean }) {
  const rows = Object.entries(of?.parameters ?? {});
  if (result && of?.result) rows.push(['result', of.result]);
  if (!rows.length && (title !== 'Inputs' || !Object.keys(of?.artifacts ?? {}).length)) return null;
  return <section><h2>{title}</h2>
    <table class="list values"><tbody>{rows.map(([k, v]) => <tr><td>{k}</td><td><code>{show(v)}</code></td></tr>)}
      {title === 'Inputs' && Object.entries(of?.artifacts ?? {}).map(([k, a]) =>
        <tr><td>{k}</td><td class="faint"><code>{a?.uri}</code></td></tr>)}
    </tbody></table></section>;
}

function Curves({ run, node }: { run: Run; node: Node }) {
  const every = BUSY.includes(node.phase) ? 1000 : 0;
  const { value } = useLoaded(() => api.nodeScalars(run.project, run.id, node.id), [node.id, node.phase], every);
  const tags = Object.keys(value ?? {}).sort();
  if (!tags.length) return null;
  return <section><h2>Metrics</h2>
    <div class="plots">{tags.map((t) => <Plot key={t} title={t} names={[t]} curves={[value![t]]} />)}</div></section>;
}

function Why({ run, node }: { run: Run; node: Node }) {
  const { value } = useLoaded(() => api.explain(run.project, run.id), [run.id, node.id, node.phase]);
  const why = value?.steps.find((s) => s.node === node.id);
  return why ? <p class="faint">{why.cached ? 'Cached' : 'Not cached'}: {why.why}
    {why.run && <> <a href={`#/runs/${encodeURIComponent(run.project)}/${encodeURIComponent(why.run)}`}>the run that it is of</a></>}</p> : null;
}

/* What is known once it has begun. */
function Begun({ run, node }: { run: Run; node: Node }) {
  const { value } = useLoaded(() => api.node(run.project, run.id, node.id), [node.id, node.phase],
                              BUSY.includes(node.phase) ? 2000 : 0);
  const full = value?.id === node.id ? value : node;
  const artifacts = Object.entries(full.outputs?.artifacts ?? {}).filter(([, a]) => a?.uri);
  const [said, setSaid] = useState('');
  const resume = () => api.resume(run.project, run.id, node.id).catch((e) => setSaid(e.message));
  return <>
    <p class="faint">{node.started ? `${clock(node.started)} · ${took(node)}` : 'Waits for its turn.'}
      {node.cached ? ' · outputs of an earlier run' : ''}{node.attempt > 0 ? ` · attempt ${node.attempt + 1}` : ''}</p>
    {node.message && <p class="reason">{node.message}</p>}
    {node.kind === 'Suspend' && node.phase === 'Running' && <button onClick={resume}>Resume</button>}
    {said && <p class="trouble" role="alert">{said}</p>}
    {node.kind === 'Pod' && node.job && <Log key={node.job} job={{ project: run.project, name: node.job }} />}
    {node.kind === 'Pod' && <Curves run={run} node={node} />}
    <Parameters title="Inputs" of={full.inputs} />
    <Parameters title="Outputs" of={full.outputs} result={node.kind === 'Pod'} />
    {artifacts.length > 0 && <section><h2>Artifacts</h2>{artifacts.map(([name, a]) =>
      <ArtifactView key={`${node.id}/${name}`} name={name} art={a}
                    at={{ project: run.project, run: run.id, node: node.id }} />)}</section>}
    {node.kind === 'Pod' && <Why run={run} node={node} />}
    {node.job && <p><a href={`#/jobs/${encodeURIComponent(run.project)}/${encodeURIComponent(node.job)}`}>
      Its job</a></p>}
  </>;
}

export function NodePanel({ run, item, close }: { run: Run; item: Item; close: () => void }) {
  return <aside class="panel" aria-label={`Step ${item.label}`}>
    <header class="bar"><h2>{item.label}</h2><State of={(item.phase || 'not begun').toLowerCase()} />
      <button class="quiet right" aria-label="close" onClick={close}>×</button></header>
    <p class="faint path">{item.key}{item.template ? ` · ${item.template}` : ''}</p>
    {item.when && <p class="faint">when <code>{item.when}</code></p>}
    {item.group && <p>{item.done} of {item.inner} {item.group === 'retry' ? 'attempts' : item.group === 'loop'
      ? 'iterations' : 'tasks'} have ended.
      <span class="faint"> Another click {item.folded ? 'unfolds' : 'folds'} it.</span></p>}
    {item.node ? <Begun key={item.node.id} run={run} node={item.node} />
      : <Empty>It has not begun.</Empty>}
  </aside>;
}
