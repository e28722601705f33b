/* Runs that begin by the clock: what there is, when it is due, on and off. */
import { useState } from 'preact/hooks';
import { api, Recurring, Trigger } from './api';
import { clock, Empty, Rows, span, State, Trouble, useLoaded } from './view';

const enc = encodeURIComponent;

export const when = (t: Trigger) => t.cron !== undefined ? t.cron : `every ${span(t.interval_s ?? 0)}`;

/* What the form asks for, besides what every run is asked for. */
export interface Clock { kind: '' | 'cron' | 'period'; cron: string; period: string; most: string; catchup: boolean }
export const NOW: Clock = { kind: '', cron: '0 0 9 * * *', period: '3600', most: '1', catchup: true };

export function triggerOf(c: Clock): Trigger {
  if (c.kind === 'cron') return { cron: c.cron };
  const seconds = Number(c.period);
  if (!(seconds >= 1)) throw new Error(`"${c.period}" is no number of seconds`);
  return { interval_s: seconds };
}

export function ClockFields({ of, change }: { of: Clock; change: (c: Clock) => void }) {
  const set = (part: Partial<Clock>) => change({ ...of, ...part });
  return <>
    <div class="field"><label for="run-when">Begins</label>
      <select id="run-when" value={of.kind} onChange={(e) => set({ kind: e.currentTarget.value as Clock['kind'] })}>
        <option value="">now, once</option><option value="cron">by a cron line, again and again</option>
        <option value="period">after a period, again and again</option></select></div>
    {of.kind === 'cron' && <div class="field"><label for="run-cron">Cron line</label>
      <input id="run-cron" value={of.cron} onInput={(e) => set({ cron: e.currentTarget.value })} />
      <small>Minute, hour, day, month, weekday; with six, the first is the second. Times are UTC.</small></div>}
    {of.kind === 'period' && <div class="field"><label for="run-period">Period <span class="faint">seconds</span></label>
      <input id="run-period" inputMode="decimal" value={of.period}
             onInput={(e) => set({ period: e.currentTarget.value })} /></div>}
    {of.kind && <><div class="field"><label for="run-most">At once at most <span class="faint">1 to 10</span></label>
        <input id="run-most" inputMode="decimal" value={of.most} onInput={(e) => set({ most: e.currentTarget.value })} /></div>
      <label><input id="run-catchup" type="checkbox" checked={of.catchup}
        onChange={(e) => set({ catchup: e.currentTarget.checked })} /> Catch up with times that were missed</label></>}
  </>;
}

export function RecurringRuns() {
  const { value, error, again } = useLoaded(() => api.recurring(), [], 2000);
  const [said, setSaid] = useState('');
  const did = (what: Promise<any>) => what.then(() => { setSaid(''); again(); }, (e) => setSaid(e.message));
  const remove = (r: Recurring) => {
    if (confirm(`Delete ${r.name}? Its runs stay.`)) did(api.removeRecurring(r.project, r.id));
  };
  const items = value?.recurring ?? [];
  return <main>
    <header class="bar"><h1>Recurring runs</h1><span class="faint right">{value ? `${value.total} in all` : ''}</span></header>
    <Trouble error={error} />
    {said && <p class="trouble" role="alert">{said}</p>}
    {value && !items.length && <Empty>None yet. <i>Create run</i> of a <a href="#/pipelines">pipeline</a> asks when it
      begins: now, by a cron line, or after a period.</Empty>}
    {items.length > 0 && <table class="list">
      <thead><tr><th>Name</th><th>State</th><th>When</th><th class="wide">Next</th><th class="wide">Last</th>
        <th class="wide">Runs</th><th class="wide">At once</th><th class="wide">Missed times</th><th></th></tr></thead>
      <Rows>{items.map((r) => <tr key={r.id}>
        <td><a data-row href={`#/experiments/${enc(r.project)}/${enc(r.experiment)}`}
               title="the runs of its experiment">{r.name}</a>
          {r.message && <div class="trouble">{r.message}</div>}</td>
        <td><State of={r.state} /></td><td><code>{when(r.trigger)}</code></td>
        <td class="wide num">{clock(r.next)}</td><td class="wide num">{clock(r.last)}</td>
        <td class="wide num">{r.index}</td><td class="wide num">{r.max_concurrency}</td>
        <td class="wide">{r.no_catchup ? 'left out' : 'caught up with'}</td>
        <td class="num"><button onClick={() => did(api.recurringDo(r.project, r.id, r.state === 'enabled'
            ? 'disable' : 'enable'))} aria-label={`${r.state === 'enabled' ? 'disable' : 'enable'} ${r.name}`}>
            {r.state === 'enabled' ? 'Disable' : 'Enable'}</button>
          <button class="quiet" aria-label={`delete ${r.name}`} onClick={() => remove(r)}>×</button></td></tr>)}
      </Rows></table>}
  </main>;
}
