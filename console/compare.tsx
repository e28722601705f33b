/* The curves of several jobs in one picture each. */
import { api } from './api';
import { Plot } from './plot';
import { Empty, Trouble, useLoaded } from './view';

export function Compare({ ids }: { ids: string[] }) {
  const { value, error } = useLoaded(() => Promise.all(ids.map((id) => {
    const at = id.indexOf('/');
    return api.scalars(id.slice(0, at), id.slice(at + 1));
  })), [ids.join(',')], 2000);
  const tags = [...new Set((value ?? []).flatMap((of) => Object.keys(of)))].sort();

  return <main>
    <header class="bar"><h1>Compare</h1><span class="faint">{ids.join(' · ')}</span></header>
    <Trouble error={error} />
    {value && !tags.length && <Empty>None of them has reported a metric yet.</Empty>}
    <div class="plots">{tags.map((tag) => {
      const having = ids.map((id, i) => ({ id, curve: value![i][tag] })).filter((h) => h.curve);
      return <Plot key={tag} title={tag} names={having.map((h) => h.id)} curves={having.map((h) => h.curve)} />;
    })}</div>
  </main>;
}
