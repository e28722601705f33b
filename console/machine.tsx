/* What the machine has, what of it is in use, who waits. */
import { api } from './api';
import { bytes, State, Trouble, useLoaded } from './view';

function Gauge({ name, used, of, unit }: { name: string; used: number; of: number; unit: (n: number) => string }) {
  return <div class="gauge"><span>{name}</span>
    <meter min={0} max={of || 1} value={used} aria-label={name} />
    <span class="num">{unit(used)} of {unit(of)}</span></div>;
}

export function Machine() {
  const { value: m, error } = useLoaded(() => api.machine(), [], 1000);
  const cores = (n: number) => `${n.toFixed(1)} cores`;
  return <main>
    <header class="bar"><h1>Machine</h1></header>
    <Trouble error={error} />
    {m && <section>
      <Gauge name="CPU, promised" used={m.cpu?.used ?? 0} of={m.cpu?.limit ?? m.cpu?.total ?? 0} unit={cores} />
      <Gauge name="Memory, promised" used={m.memory?.used ?? 0} of={m.memory?.total ?? 0} unit={bytes} />
      {!!m.gpu?.total && <Gauge name="GPU" used={m.gpu.used} of={m.gpu.total} unit={String} />}
      <h2>Jobs</h2>
      <p>{Object.entries(m.jobs ?? {}).map(([state, n]) => <span class="count"><State of={state} /> {String(n)}</span>)}</p>
    </section>}
  </main>;
}
