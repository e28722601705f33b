/* The form that begins a run: of a pipeline, or of an earlier run with other parameters. */
import { useEffect, useState } from 'preact/hooks';
import { api, ApiError, Input, RunRequest } from './api';
import { Clock, ClockFields, NOW, triggerOf } from './recurring';
import { runLink } from './run';
import { Empty, Trouble, useLoaded } from './view';

interface Origin { title: string; project: string; inputs: Input[]; given: Record<string, any>; argo: boolean;
  request: Partial<RunRequest>; text?: () => Promise<string>; experiment: string }

async function origin(of: string, project: string, id: string, version: string): Promise<Origin> {
  if (of === 'run') {
    const [run, flow] = await Promise.all([api.run(project, id), api.flow(project, id)]);
    const e = await api.experiment(project, run.experiment).catch(() => null);
    return { title: run.name, project, inputs: flow.inputs ?? [], given: run.parameters ?? {}, experiment: e?.name ?? '',
             argo: flow.dialect === 'argo', text: () => api.runText(project, id),
             request: run.pipeline && run.version ? { pipeline: run.pipeline, version: run.version } : {} };
  }
  const [p, { versions }] = await Promise.all([api.pipeline(project, id), api.versions(project, id)]);
  const v = versions.find((x) => x.id === (version || p.default_version));
  if (!v) throw new ApiError(404, `${p.name} has no such version.`);
  return { title: p.display || p.name, project, inputs: v.inputs ?? [], given: {}, argo: v.dialect === 'argo',
           request: { pipeline: id, version: v.id }, experiment: '' };
}

const textOf = (v: any) => v === undefined || v === null ? '' : typeof v === 'string' ? v : JSON.stringify(v);

/* As its type wants it; undefined: left out. */
function valueOf(input: Input, text: string, argo: boolean): any {
  if (argo || input.type === 'STRING')
    return text === '' && input.default === undefined && input.optional ? undefined : text;
  if (text.trim() === '') return undefined;
  if (input.type === 'BOOLEAN') return text === 'true';
  let value;
  try { value = JSON.parse(text); }
  catch { throw new Error(`${input.name}: "${text}" is no ${input.type.toLowerCase()}`); }
  if (input.type.startsWith('NUMBER') && typeof value !== 'number')
    throw new Error(`${input.name}: "${text}" is no number`);
  return value;
}

function Field({ input, value, change }: { input: Input; value: string; change: (v: string) => void }) {
  const id = `p-${input.name}`, long = value.length > 60 || ['LIST', 'STRUCT'].includes(input.type);
  return <div class="field">
    <label for={id}>{input.name} <span class="faint">{input.type.toLowerCase().replace('number_', '')}
      {input.default === undefined && !input.optional ? ', needed' : ''}</span></label>
    {input.type === 'BOOLEAN'
      ? <select id={id} value={value} onChange={(e) => change(e.currentTarget.value)}>
          {['', 'true', 'false'].map((v) => <option value={v}>{v}</option>)}</select>
      : long ? <textarea id={id} rows={4} value={value} onInput={(e) => change(e.currentTarget.value)} />
      : <input id={id} value={value} inputMode={input.type.startsWith('NUMBER') ? 'decimal' : undefined}
               onInput={(e) => change(e.currentTarget.value)} />}
    {input.description && <small>{input.description}</small>}
  </div>;
}

export function Start({ of, project, id, version }: { of: string; project: string; id: string; version: string }) {
  const { value: from, error } = useLoaded(() => origin(of, project, id, version), [of, project, id, version]);
  const { value: known } = useLoaded(() => api.experiments({ limit: 1000 }), []);
  const [values, setValues] = useState<Record<string, string>>({});
  const [name, setName] = useState('');
  const [experiment, setExperiment] = useState('');
  const [clock, setClock] = useState<Clock>(NOW);
  const [fresh, setFresh] = useState(false);
  const [said, setSaid] = useState('');
  const [busy, setBusy] = useState(false);

  useEffect(() => {
    if (!from) return;
    setValues(Object.fromEntries(from.inputs.map((i) => [i.name, textOf(from.given[i.name] ?? i.default)])));
    setExperiment(from.experiment);
  }, [from]);
  if (error) return <main><Trouble error={error} /></main>;
  if (!from) return <main><Empty>…</Empty></main>;

  const begin = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    try {
      const parameters: Record<string, any> = {};
      for (const i of from.inputs) {
        const v = valueOf(i, values[i.name] ?? '', from.argo);
        if (v !== undefined) parameters[i.name] = v;
      }
      const doc: RunRequest = { project, parameters, experiment, no_cache: fresh, ...(name ? { name } : {}) };
      const trigger = clock.kind ? triggerOf(clock) : null;
      const send = async (of: Partial<RunRequest>) => trigger
        ? api.startRecurring({ ...doc, ...of, name: name || from.title, trigger, max_concurrency: Number(clock.most) || 1,
                               no_catchup: !clock.catchup }).then(() => '#/recurring')
        : api.start({ ...doc, ...of }).then(runLink);
      const inline = async () => send({ text: await from.text!() });
      location.hash = from.request.pipeline
        ? await send(from.request).catch((x: ApiError) => {
            if (x.status === 404 && from.text) return inline();   // the version is gone, what it said is not
            throw x;
          })
        : await inline();
    } catch (x) {
      setSaid((x as Error).message);
      setBusy(false);
    }
  };
  return <main>
    <header class="bar"><h1>{of === 'run' ? 'Run again' : 'Create run'}: {from.title}</h1></header>
    <form class="form" onSubmit={begin}>
      <div class="field"><label for="run-name">Name <span class="faint">optional</span></label>
        <input id="run-name" value={name} onInput={(e) => setName(e.currentTarget.value)} /></div>
      <div class="field"><label for="run-experiment">Experiment <span class="faint">made when it is new</span></label>
        <input id="run-experiment" list="experiments" value={experiment} placeholder="Default"
               onInput={(e) => setExperiment(e.currentTarget.value)} />
        <datalist id="experiments">{(known?.experiments ?? []).map((x) => <option value={x.name} />)}</datalist></div>
      <ClockFields of={clock} change={setClock} />
      {from.inputs.length > 0 && <h2>Parameters</h2>}
      {from.inputs.map((i) => <Field key={i.name} input={i} value={values[i.name] ?? ''}
        change={(v) => setValues({ ...values, [i.name]: v })} />)}
      <label><input type="checkbox" checked={fresh} onChange={(e) => setFresh(e.currentTarget.checked)} /> Run every step,
        also those that an earlier run did</label>
      {said && <p class="trouble" role="alert">{said}</p>}
      <p><button class="main-button" disabled={busy}>Start</button></p>
    </form>
  </main>;
}
