/* The frame: where we are, and the keys that go elsewhere. */
import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import 'uplot/dist/uPlot.min.css';
import './style.css';
import { Bucket, Buckets } from './buckets';
import { Compare } from './compare';
import { Jobs } from './jobs';
import { api } from './api';
import { Machine } from './machine';
import { OneJob } from './job';
import { Experiments, OneExperiment, OnePipeline, Pipelines } from './pipelines';
import { RecurringRuns } from './recurring';
import { OneRun } from './run';
import { CompareRuns, Runs } from './runs';
import { Start } from './start';
import { typing } from './view';

const PAGES = [
  { key: 'j', hash: '#/jobs', name: 'Jobs' },
  { key: 'r', hash: '#/runs', name: 'Runs' },
  { key: 'p', hash: '#/pipelines', name: 'Pipelines' },
  { key: 'e', hash: '#/experiments', name: 'Experiments' },
  { key: 'c', hash: '#/recurring', name: 'Recurring' },
  { key: 'b', hash: '#/buckets', name: 'Buckets' },
  { key: 'm', hash: '#/machine', name: 'Machine' },
];

function page(hash: string) {
  const [where, ...parts] = hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
  if (where === 'jobs' && parts.length === 2) return <OneJob project={parts[0]} name={parts[1]} />;
  if (where === 'compare') return <Compare ids={parts.join('/').split(',').map(decodeURIComponent)} />;
  if (where === 'runs' && parts.length > 1)
    return <OneRun key={parts[1]} project={parts[0]} id={parts[1]} node={parts[2] ?? ''} />;
  if (where === 'runs') return <Runs />;
  if (where === 'compare-runs') return <CompareRuns ids={parts.join('/').split(',').map(decodeURIComponent)} />;
  if (where === 'pipelines' && parts.length > 1) return <OnePipeline key={parts[1]} project={parts[0]} id={parts[1]} />;
  if (where === 'pipelines') return <Pipelines />;
  if (where === 'experiments' && parts.length > 1) return <OneExperiment project={parts[0]} id={parts[1]} />;
  if (where === 'experiments') return <Experiments />;
  if (where === 'recurring') return <RecurringRuns />;
  if (where === 'start' && parts.length > 2)
    return <Start of={parts[0]} project={parts[1]} id={parts[2]} version={parts[3] ?? ''} />;
  if (where === 'buckets' && parts[0]) return <Bucket bucket={parts[0]} path={parts.slice(1).join('/')} />;
  if (where === 'buckets') return <Buckets />;
  if (where === 'machine') return <Machine />;
  return <Jobs />;
}

function Help({ close }: { close: () => void }) {
  return <dialog open class="help" onClick={close}>
    <p><kbd>g</kbd> then <kbd>j</kbd> jobs, <kbd>r</kbd> runs, <kbd>p</kbd> pipelines,
      <kbd>e</kbd> experiments, <kbd>c</kbd> recurring, <kbd>b</kbd> buckets, <kbd>m</kbd> machine</p>
    <p><kbd>j</kbd> <kbd>k</kbd> move, <kbd>Enter</kbd> open, <kbd>/</kbd> filter, <kbd>?</kbd> this</p>
    <p>In a graph: arrows move, <kbd>Enter</kbd> opens or unfolds, <kbd>+</kbd> <kbd>-</kbd> <kbd>0</kbd> zoom</p>
  </dialog>;
}

/* The link that `muster serve` prints has a token after its #. It leaves the address and the history
   before anything else happens; what the page keeps is a session of its own. */
async function enter() {
  const link = /^#token=(\w+)$/.exec(location.hash);
  if (!link) return;
  history.replaceState(null, '', '/#/jobs');
  await api.login(link[1]).catch(() => undefined);     // the page says that nobody is logged in
}

async function leave() {
  await api.logout();
  location.reload();
}

function App() {
  const [hash, setHash] = useState(location.hash);
  const [help, setHelp] = useState(false);
  useEffect(() => {
    let went = false;           // g was pressed: the next key says where to
    const key = (e: KeyboardEvent) => {
      if (typing(e)) return;
      const to = went && PAGES.find((p) => p.key === e.key);
      if (to) location.hash = to.hash;
      went = e.key === 'g';
      setHelp((h) => e.key === '?' ? !h : e.key === 'Escape' ? false : h);
    };
    const moved = () => location.hash.startsWith('#token=') ? enter().then(() => location.reload())
      : setHash(location.hash);
    addEventListener('keydown', key);
    addEventListener('hashchange', moved);
    return () => { removeEventListener('keydown', key); removeEventListener('hashchange', moved); };
  }, []);
  return <>
    <nav><a class="brand" href="#/jobs">muster</a>
      {PAGES.map((p) => <a href={p.hash} aria-current={(hash || '#/jobs').startsWith(p.hash) ? 'page' : undefined}>{p.name}</a>)}
      <button class="quiet right" onClick={leave}>Log out</button>
      <button class="quiet" aria-label="keys" onClick={() => setHelp(!help)}>?</button>
    </nav>
    {page(hash)}
    {help && <Help close={() => setHelp(false)} />}
  </>;
}

enter().then(() => render(<App />, document.getElementById('app')!));
