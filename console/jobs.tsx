/* The list of jobs. */
import { useEffect, useRef, useState } from 'preact/hooks';
import { api, Job } from './api';
import { clock, Empty, Rows, span, State, Trouble, typing, useLoaded } from './view';

const STATES = ['', 'active', 'queued', 'preparing', 'running', 'succeeded', 'failed', 'cancelled'];

export function lasted(job: Job) {
  if (!job.started) return '';
  return span((job.ended || Date.now() / 1000) - job.started);
}

export function Jobs() {
  const [state, setState] = useState('');
  const [text, setText] = useState('');
  const [more, setMore] = useState<Job[]>([]);
  const [next, setNext] = useState<string | null>(null);
  const [picked, setPicked] = useState<string[]>([]);
  const input = useRef<HTMLInputElement>(null);
  const { value, error } = useLoaded(() => api.jobs({ state, text, limit: 100 }), [state, text], 1000);

  useEffect(() => { setMore([]); setNext(null); }, [state, text]);
  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      if (e.key === '/' && !typing(e)) { e.preventDefault(); input.current?.focus(); }
      if (e.key === 'Escape') input.current?.blur();
    };
    addEventListener('keydown', key);
    return () => removeEventListener('keydown', key);
  }, []);

  const token = next ?? value?.next ?? '';
  const load = () => api.jobs({ state, text, token, limit: 100 }).then((page) => {
    setMore(more.concat(page.jobs));
    setNext(page.next);
  });
  const jobs = (value?.jobs ?? []).concat(more);
  const id = (j: Job) => `${j.project}/${j.name}`;
  const pick = (j: Job) => setPicked(picked.includes(id(j)) ? picked.filter((p) => p !== id(j))
                                                            : picked.concat(id(j)));
  return <main>
    <header class="bar">
      <h1>Jobs</h1>
      <input ref={input} type="search" placeholder="Filter by name ( / )" value={text} aria-label="Filter by name"
             onInput={(e) => setText(e.currentTarget.value)} />
      <select value={state} aria-label="State" onChange={(e) => setState(e.currentTarget.value)}>
        {STATES.map((s) => <option value={s}>{s || 'all states'}</option>)}
      </select>
      {picked.length > 1 && <a class="button" href={`#/compare/${picked.map(encodeURIComponent).join(',')}`}>
        Compare {picked.length}</a>}
    </header>
    <Trouble error={error} />
    {value && !jobs.length && !error && <Empty>No jobs{text || state ? ' like that' : ' yet'}.
      Submit one: <code>muster submit examples/fashion-lenet/train.yaml</code></Empty>}
    {jobs.length > 0 && <table class="list">
      <thead><tr><th></th><th>Name</th><th>State</th><th class="wide">Project</th><th class="wide">Workers</th>
        <th>Started</th><th>Took</th></tr></thead>
      <Rows>{jobs.map((j) => <tr key={id(j)}>
        <td><input type="checkbox" aria-label={`pick ${j.name}`} checked={picked.includes(id(j))}
                   onChange={() => pick(j)} /></td>
        <td><a data-row href={`#/jobs/${encodeURIComponent(j.project)}/${encodeURIComponent(j.name)}`}>{j.name}</a></td>
        <td><State of={j.state} /></td>
        <td class="wide">{j.project}</td>
        <td class="wide num">{j.workers.now || ''}{j.workers.max > 1 && <small> of {j.workers.min}..{j.workers.max}</small>}</td>
        <td class="num">{clock(j.started || j.created)}</td>
        <td class="num">{lasted(j)}</td>
      </tr>)}</Rows>
    </table>}
    {token && <button onClick={load}>More</button>}
  </main>;
}
